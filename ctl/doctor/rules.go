package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
)

// agentGone are the rules that explain a missing report of a node's agent.
var agentGone = []string{"node-not-ready", "agent-crash-loop", "agent-missing"}

// unpeered are the rules that explain why two nodes aren't peers, or can't decrypt each
// other's packets.
var unpeered = []string{
	"cluster-away", "other-cluster", "not-installed", "node-not-ready", "agent-crash-loop", "agent-missing", "clocks-apart", "virtual-subnets-missing", "virtual-subnets-differ", "subnets-overlap", "remote-missing", "admission-refuses", "annotations-gone",
	"key-changed", "duplicate-key", "pod-subnets-wrong", "node-rejected", "device-missing",
}

// Rules returns all rules, roots first: findings of a rule can only be explained by earlier
// ones.
func Rules() []Rule {
	return slices.Concat(clusterRules(), apiRules(), virtualRules(), nodeRules(), pathRules(), relayRules(), controllerRules(), serviceRules(), importRules(), podRules(), askRules(), restRules())
}

// rejections maps the agents' reasons for rejecting a node to rules.
var rejections = []struct{ rule, reason, remedy string }{
	{"duplicate-key", "duplicate_key", "two nodes have the same key file, such as clones of one machine image: delete the file of the younger node in /var/lib/semaphore-wireguard and restart its agent"},
	{"pod-subnets-wrong", "pod_cidr", "set SEMAPHORE_REMOTE_<NAME>_POD_SUBNETS so that it contains the pod prefixes of all of the remote's nodes, and restart the agents"},
	{"node-rejected", "", "correct what the remote's node publishes, or this cluster's limit for it"},
}

// rejected are the remedies for the other reasons for which agents reject a node.
var rejectedFor = map[string]string{
	"public_key":       "delete the annotation pubKey of that node, so that its agent publishes its key again; a key that equals this node's own was copied with its file",
	"endpoint":         "check the InternalIP of that node; add a new subnet of the remote's nodes to SEMAPHORE_REMOTE_<NAME>_NODE_SUBNETS",
	"no_endpoint":      "give one of the two nodes an endpoint that the other one reaches: annotate it with wireguard.semaphore.uw.io/endpoint-address",
	"duplicate_prefix": "two nodes of the remote publish the same pod prefix: correct spec.podCIDRs there, or delete the Node that no longer exists",
	"undecided":        "wait until the agents have read the remote's nodes whole; check their access to its API server if that doesn't end",
	"too_many_peers":   "raise SEMAPHORE_REMOTE_<NAME>_WG_MAX_PEERS if the remote really has so many nodes",
	"many_prefixes":    "raise SEMAPHORE_REMOTE_<NAME>_WG_MAX_PREFIXES or _WG_MAX_ALLOWED_IPS if the remote really has so many prefixes",
}

func nodeRules() []Rule {
	rules := []Rule{
		{
			ID: "subnets-overlap", Local: true, After: []string{"virtual-subnets-missing", "virtual-subnets-differ"},
			Remedy: "narrow the configured pod subnets of the remote, or let semaphorectl join propose virtual subnets for the pods of one of the clusters (docs/overlapping-subnets.md)",
			Find: func(f *Facts, found func(Finding)) {
				for v := range f.allViews() {
					if v.remote.Refused == "" {
						continue
					}
					what := v.Node + ": the remote " + v.Remote + " is refused"
					if v.agent.Standby != nil {
						what += " by the agent with the latest settings, which doesn't take over"
					}
					found(Finding{v.Scope, what, []Evidence{{v.remote.Refused, v.source}}})
				}
			},
		},
		{
			ID: "remote-missing", Local: true, After: append([]string{"other-cluster", "not-installed"}, agentGone...),
			Remedy: "add each cluster to SEMAPHORE_REMOTES of the other one: semaphorectl join with all clusters as arguments does it",
			Find: func(f *Facts, found func(Finding)) {
				for p := range f.Pairs() {
					if p.agent != nil && p.agent.Standby == nil && p.remote == nil && p.first {
						found(Finding{Scope{Cluster: p.Cluster, Node: p.Node, Remote: p.Remote}, p.why(), []Evidence{{"the agent's report doesn't list it", p.source}}})
					}
				}
			},
		},
		{
			ID: "annotations-gone", Local: true, After: append([]string{"other-cluster", "not-installed", "remote-missing", "admission-refuses", "own-api-failing"}, agentGone...),
			Remedy: "the agent publishes them again if its ServiceAccount may patch its node (deploy/wireguard/rbac.yaml); find out what removes them",
			Find:   annotationsGone,
		},
		{
			ID: "key-changed", Local: true, After: []string{"agent-crash-loop", "admission-refuses", "own-api-failing"},
			Remedy: "the agent publishes its key if its ServiceAccount may patch its node (deploy/wireguard/rbac.yaml); delete the annotation to make it publish again",
			Find:   keyChanged,
		},
	}
	var before []string
	for _, r := range rejections {
		after := append([]string{"annotations-gone", "key-changed", "virtual-subnets-missing", "virtual-subnets-differ", "subnets-overlap"}, before...)
		fix := func(finding Finding) string {
			if last := finding.Evidence[len(finding.Evidence)-1]; strings.HasSuffix(last.Text, renamed) {
				return "delete the object of the node's former name: " + strings.Replace(last.Command, " get node ", " delete node ", 1)
			}
			_, reason, _ := strings.Cut(finding.What, " is rejected: ")
			return rejectedFor[reason]
		}
		rules = append(rules, Rule{ID: r.rule, Remedy: r.remedy, Fix: fix, After: after, Find: func(f *Facts, found func(Finding)) { rejected(f, r.reason, found) }})
		before = append(before, r.rule)
	}
	return append(rules,
		Rule{
			ID: "port-taken", Local: true,
			Remedy: "stop the process that uses the port, or set another one with SEMAPHORE_REMOTE_<NAME>_WG_LISTEN_PORT, which is published to the remotes",
			Find: func(f *Facts, found func(Finding)) {
				f.eachView(found, func(v *view) (string, string) {
					return v.fails(statuspage.ReasonPortTaken), "the listen port of " + v.remote.Device.Name + " is taken"
				})
			},
		},
		Rule{
			ID: "device-missing", Local: true, After: []string{"port-taken", "subnets-overlap"},
			Remedy: "fix what its error names, such as a foreign link of that name or a missing capability; the agent then creates the device",
			Find: func(f *Facts, found func(Finding)) {
				f.eachView(found, func(v *view) (string, string) {
					err := v.remote.Device.Error
					for _, c := range v.failing {
						if c.Object == "device "+v.remote.Name && c.Reason != statuspage.ReasonUndone { // That one exists.
							err = cmp.Or(err, c.Message)
						}
					}
					return err, "the device " + v.remote.Device.Name + " is missing"
				})
			},
		},
		Rule{
			ID: "foreign-route", Local: true,
			Remedy: "find the program that created this route, and configure it to leave the remote's pod subnets and table 115115 alone; the agent never overwrites foreign routes",
			Find: func(f *Facts, found func(Finding)) {
				f.eachView(found, func(v *view) (string, string) {
					return v.inTheWay, "a foreign route is in the way"
				})
			},
		},
		forwardingRule(),
		translationRule(),
		foreignRuleRule(),
		Rule{
			ID:     "repairs-undone",
			Remedy: "find the program on that node which removes or changes it, such as a firewall manager or a network manager, and configure it to leave devices wireguard.*, table 115115 and nftables tables semaphore-wireguard* alone; the agent goes on repairing",
			Find: func(f *Facts, found func(Finding)) {
				for c, a := range f.agents() {
					for _, fails := range a.Value.Of(statuspage.Failing) {
						if fails.Reason == statuspage.ReasonUndone {
							found(Finding{Scope{Cluster: c.Name, Node: a.Pod.Node}, "on " + a.Pod.Node + " another program undoes what the agent sets up: " + fails.Object, []Evidence{{fails.Message, statusOf(a)}}})
						}
					}
				}
			},
		},
		Rule{
			ID: "peers-outdated", After: connecting(),
			Remedy: "the agent's log says why it can't read the remote's nodes",
			Find: func(f *Facts, found func(Finding)) {
				for p := range f.Pairs() {
					key := annotation(p.node, p.Cluster, "pubKey")
					if p.peer != nil && key != "" && p.peer.PublicKey != key {
						found(Finding{p.Scope, p.Node + " uses an outdated key of " + p.Peer, []Evidence{{"key in use " + p.peer.PublicKey + ", published " + key, p.source}}})
					}
				}
			},
		},
	)
}

// eachView adds a finding for each agent's remote for which say returns a fact.
func (f *Facts) eachView(found func(Finding), say func(v *view) (fact, what string)) {
	for v := range f.views() {
		if fact, what := say(v); fact != "" {
			found(Finding{v.Scope, fmt.Sprintf("%s: %s", v.Node, what), []Evidence{{fact, v.source}}})
		}
	}
}

// admissionRefuses finds writes of our programs, and pods of them, that an admission
// controller refuses.
func admissionRefuses(f *Facts, found func(Finding)) {
	refused := func(s Scope, err, source string) {
		found(Finding{s, s.Cluster + ": an admission controller refuses what our programs write", []Evidence{{err, source}}})
	}
	say := func(s Scope, err, source string) {
		if kube.RefusedByAdmission(err) {
			refused(s, err, source)
		}
	}
	for c, a := range f.agents() {
		for _, fails := range a.Value.Of(statuspage.Failing) {
			if fails.Reason == statuspage.ReasonRefused {
				refused(Scope{Cluster: c.Name, Node: a.Pod.Node}, fails.Message, statusOf(a))
			}
		}
	}
	for c, m := range f.mirrors() {
		say(Scope{Cluster: c.Name}, m.Value.ElectionError(), m.Source)
		for i := range m.Value.Services {
			say(Scope{Cluster: c.Name}, m.Value.Services[i].Error, m.Source)
		}
	}
	for c, p := range f.policies() {
		say(Scope{Cluster: c.Name}, p.Value.ElectionError, p.Source)
		for i := range p.Value.Remotes {
			r := &p.Value.Remotes[i]
			for _, name := range slices.Sorted(maps.Keys(r.Failing)) {
				say(Scope{Cluster: c.Name, Remote: r.Name}, r.Failing[name], p.Source)
			}
		}
	}
	for _, c := range f.Clusters {
		for _, e := range c.Warnings.Value {
			// Events stay for an hour: a workload that has all of its pods is no longer refused.
			if _, name, _ := strings.Cut(e.About, "/"); e.Reason == "FailedCreate" && slices.ContainsFunc(c.Workloads.Value, func(w inspect.Workload) bool {
				return w.Ready < w.Wanted && strings.HasPrefix(name, w.Name) && podsOf(c, w.Name) < w.Wanted
			}) {
				say(Scope{Cluster: c.Name}, e.Message, c.Warnings.Source)
			}
		}
	}
}

// podsOf returns the number of pods of a program.
func podsOf(c *inspect.Cluster, program string) (n int32) {
	for _, p := range c.Pods.Value {
		if p.Program == program && !p.Deleting {
			n++
		}
	}
	return n
}

func annotationsGone(f *Facts, found func(Finding)) {
	for _, c := range f.Clusters {
		for _, other := range f.Clusters {
			for i := range c.Nodes.Value {
				n := &c.Nodes.Value[i]
				// A node that has to initiate all handshakes publishes an empty endpoint.
				_, endpoint := n.Annotations[annotationName(other.Name, "endpoint")]
				if c == other || annotation(n, other.Name, "pubKey") != "" && endpoint {
					continue
				}
				evidence := []Evidence{{"the node publishes no key or no endpoint for " + other.Name, c.Kubectl("get node %s -o yaml", n.Name)}}
				agent := f.site(c).acting[n.Name]
				if agent != nil && agent.Standby != nil {
					continue
				}
				if agent != nil && agent.Failure("publish") != "" {
					evidence = append(evidence, Evidence{agent.Failure("publish"), f.status(c, n.Name)})
				}
				found(Finding{Scope{Cluster: c.Name, Node: n.Name, Remote: other.Name}, "the annotations of " + n.Name + " are missing", evidence})
			}
		}
	}
}

// keyChanged compares the key of a device with the one that its node publishes.
func keyChanged(f *Facts, found func(Finding)) {
	for v := range f.views() {
		node := f.site(v.cluster).nodes[v.Node]
		if node == nil || v.remote.Device.PublicKey == "" {
			continue
		}
		published := annotation(node, v.Remote, "pubKey")
		if published == "" || published == v.remote.Device.PublicKey {
			continue
		}
		evidence := []Evidence{
			{"its device has " + v.remote.Device.PublicKey, v.source},
			{"the node publishes " + published, v.cluster.Kubectl("get node %s -o yaml", v.Node)},
		}
		if err := v.agent.Failure("publish"); err != "" {
			evidence = append(evidence, Evidence{err, v.source})
		}
		found(Finding{v.Scope, "the key of " + v.Node + " differs from its published key", evidence})
	}
}

// renamed is what is said of the object of a node's former name.
const renamed = " isn't ready and publishes the same key and endpoint: the node was renamed"

// former returns the node of a remote that publishes the same key and endpoint as one that is
// ready, and isn't itself; nil: none does.
func (f *Facts) former(v *view, name string) *inspect.Node {
	remote := f.cluster(v.Remote)
	if remote == nil {
		return nil
	}
	now := f.site(remote).nodes[name]
	if now == nil || now.Ready != "True" || annotation(now, v.Cluster, "endpoint") == "" {
		return nil
	}
	for i := range remote.Nodes.Value {
		n := &remote.Nodes.Value[i]
		if n.Name != name && n.Ready != "" && n.Ready != "True" && annotation(n, v.Cluster, "pubKey") == annotation(now, v.Cluster, "pubKey") &&
			annotation(n, v.Cluster, "endpoint") == annotation(now, v.Cluster, "endpoint") {
			return n
		}
	}
	return nil
}

// rejected adds a finding for each rejection with a reason; empty: any.
func rejected(f *Facts, reason string, found func(Finding)) {
	for v := range f.views() {
		for _, r := range v.remote.Rejected {
			if reason == "" || r.Reason == reason {
				evidence := []Evidence{{r.Detail, v.source}}
				if former := f.former(v, r.Node); former != nil && r.Reason == "duplicate_key" {
					evidence = append(evidence, Evidence{former.Name + renamed, f.cluster(v.Remote).Kubectl("get node %s -o yaml", former.Name)})
				}
				found(Finding{Scope{v.Cluster, v.Node, v.Remote, r.Node}, fmt.Sprintf("%s of %s is rejected: %s", r.Node, v.Remote, r.Reason), evidence})
			}
		}
	}
}

// connections are the rules about connections to API servers of remotes, each with the fault
// and the remedy.
var connections = []struct{ id, what, remedy string }{
	{"certificate-expired", "its certificate has expired, or isn't valid yet", "renew the certificate of that API server, and check the clocks of both sides"},
	{"wrong-ca", "its certificate isn't signed by the configured CA", "SEMAPHORE_REMOTE_<NAME>_CA_FILE or _CA_URL must be the CA of that API server, and _API_URL a name or address of its certificate"},
	{"token-refused", "the token is refused", "hand over a new token with semaphorectl tokens, and check that their renewal works (deploy/tokens)"},
	{"rights-missing", "the account lacks rights", "apply deploy/remote to that cluster: it contains the roles of its neighbours' accounts"},
	{"credentials-missing", "its credentials are missing", "hand over a token: semaphorectl tokens"},
	{"api-name-unresolved", "the name of its API server can't be resolved", "check the name in SEMAPHORE_REMOTE_<NAME>_API_URL, and the DNS of the nodes of this cluster"},
	{"api-away", "its API server doesn't answer", "check that the API server runs and that firewalls let the nodes of this cluster reach SEMAPHORE_REMOTE_<NAME>_API_URL, and that the proxy does which the error may name; peers, mirrors and network sets are retained meanwhile"},
	{"api-failing", "its API server can't be read", "the error is that of the API server, see its log; request the same with the token of the Secret: curl --cacert CA -H \"Authorization: Bearer TOKEN\" API_URL/api/v1/nodes?limit=1"},
}

// connecting are the IDs of these rules.
func connecting() []string {
	all := []string{"cluster-away"}
	for _, c := range connections {
		all = append(all, c.id)
	}
	return all
}

func apiRules() []Rule {
	rules := make([]Rule, len(connections))
	for i, r := range connections {
		rules[i] = Rule{ID: r.id, Remedy: r.remedy, After: []string{"cluster-away", "not-installed"}, Find: func(f *Facts, found func(Finding)) {
			for c := range f.connections() {
				if c.err != "" && inspect.KindOf(c.err) == r.id {
					found(Finding{c.Scope, fmt.Sprintf("%s to %s: %s", c.Cluster, c.Remote, r.what), []Evidence{{c.program + ": " + c.err, c.source}}})
				}
			}
		}}
	}
	rules = append(rules, Rule{
		ID: "own-api-failing", Local: true,
		Remedy: "restore the rights of our programs (deploy/*/rbac.yaml; semaphorectl join applies them), and the network between that node and its own API server",
		Find:   ownFailing,
	})
	return append(rules, Rule{
		ID: "token-expiring", After: []string{"token-refused"},
		Remedy: "check why deploy/tokens doesn't renew it: kubectl -n sys-semaphore logs deployment/semaphore-tokens; or hand over a new one with semaphorectl tokens",
		Find:   tokenExpiring,
	})
}

// ownFailing finds programs that can't read from the API server of their own cluster, or write
// to it.
func ownFailing(f *Facts, found func(Finding)) {
	for t := range f.credentialChecks() {
		if t.Remote == t.Cluster && t.Error != "" {
			found(Finding{Scope{Cluster: t.Cluster, Node: t.Node}, t.Cluster + ": our programs can't read their own API server", []Evidence{{t.program + ": " + t.Error, t.source}}})
		}
	}
	writes := func(c *inspect.Cluster, program, err, source string) {
		if err != "" && !kube.RefusedByAdmission(err) {
			found(Finding{Scope{Cluster: c.Name}, fmt.Sprintf("%s: %s can't write to its own API server", c.Name, program), []Evidence{{err, source}}})
		}
	}
	for c, m := range f.mirrors() {
		writes(c, inspect.ServiceMirror, m.Value.ElectionError(), m.Source)
		for i := range m.Value.Services {
			if err := m.Value.Services[i].Error; inspect.KindOf(err) == "rights-missing" {
				writes(c, inspect.ServiceMirror, err, m.Source)
			}
		}
	}
	for c, p := range f.policies() {
		writes(c, inspect.NetworkPolicy, p.Value.ElectionError, p.Source)
		for i := range p.Value.Remotes {
			failing := p.Value.Remotes[i].Failing
			for _, name := range slices.Sorted(maps.Keys(failing)) {
				if inspect.KindOf(failing[name]) == "rights-missing" {
					writes(c, inspect.NetworkPolicy, failing[name], p.Source)
				}
			}
		}
	}
	for c, r := range f.relays() {
		writes(c, inspect.Relay, r.Value.ElectionError, r.Source)
		for i := range r.Value.Clusters {
			failing := r.Value.Clusters[i].Failing
			for _, name := range slices.Sorted(maps.Keys(failing)) {
				if inspect.KindOf(failing[name]) == "rights-missing" {
					writes(c, inspect.Relay, failing[name], r.Source)
				}
			}
		}
	}
}

func tokenExpiring(f *Facts, found func(Finding)) {
	for t := range f.credentialChecks() {
		if t.cluster.Overdue(&t.CredentialCheck) {
			left := t.Expires.Sub(t.cluster.Taken.Add(t.cluster.Clock.Value))
			found(Finding{t.Scope, fmt.Sprintf("%s to %s: the token on disk isn't renewed", t.Cluster, t.Remote), []Evidence{{fmt.Sprintf("%s: it expires at %s, in %s", t.program, t.Expires.UTC().Format(time.RFC3339), left.Round(time.Second)), t.source}}})
		}
	}
}

// away is the remedy for a cluster of which nothing answers.
const away = "bring the cluster back, or its network. Meanwhile its endpoints are withdrawn: global services go on with those of other clusters, and Services that only it has refuse connections. If it is gone for good, have the others forget it: semaphorectl leave --gone NAME OTHERS"

func clusterRules() []Rule {
	return []Rule{
		{
			ID: "cluster-away", Whole: true,
			Remedy: away,
			Fix:    func(finding Finding) string { return strings.Replace(away, "NAME", finding.Cluster, 1) },
			Find:   clusterAway,
		},
		{
			ID: "other-cluster", Whole: true,
			Remedy: "use the name that the cluster has in SEMAPHORE_CLUSTER_NAME as the argument, with --context NAME=CONTEXT if its kubeconfig context has another name",
			Find: func(f *Facts, found func(Finding)) {
				seen := map[*inspect.Cluster]bool{}
				for c, a := range f.agents() {
					if a.Value.Cluster != "" && a.Value.Cluster != c.Name && !seen[c] {
						seen[c] = true
						found(Finding{Scope{Cluster: c.Name}, fmt.Sprintf("the cluster of context %s isn't %s: its agents call it %s", c.Context, c.Name, a.Value.Cluster), []Evidence{{"cluster " + a.Value.Cluster, statusOf(a)}}})
					}
				}
			},
		},
		{
			ID: "not-installed", Whole: true,
			Remedy: "run semaphorectl join with all clusters as arguments: it installs what is missing, and continues an interrupted run",
			Find:   notInstalled,
		},
		{
			ID:     "clocks-apart",
			Remedy: "synchronize the machines' clocks with NTP: tokens, certificates and handshakes depend on the time",
			Find:   clocksApart,
		},
		{
			ID:     "node-not-ready",
			Remedy: "check the machine and its kubelet; if the machine was removed for good, delete its Node",
			Find: func(f *Facts, found func(Finding)) {
				for _, c := range f.Clusters {
					for i := range c.Nodes.Value {
						if n := &c.Nodes.Value[i]; n.Ready != "" && n.Ready != "True" {
							found(Finding{Scope{Cluster: c.Name, Node: n.Name}, n.Name + " isn't ready", []Evidence{{"the condition Ready is " + n.Ready, c.Kubectl("describe node %s", n.Name)}}})
						}
					}
				}
			},
		},
		{
			ID: "agent-crash-loop", After: []string{"node-not-ready"},
			Remedy: "the last lines of its log say why it exits or can't start; exit code 64, or 2 in older releases, means an invalid configuration",
			Find:   crashing,
		},
		{
			ID: "admission-refuses", Local: true,
			Remedy: "exempt the accounts of sys-semaphore from the admission policy, webhook or quota that the error names: its owner can do that, and rights (RBAC) aren't the cause",
			Find:   admissionRefuses,
		},
		{
			ID: "agent-missing", After: []string{"node-not-ready", "agent-crash-loop", "admission-refuses"},
			Remedy: "find out why the DaemonSet creates no pod there; if the node should have none, remove its annotations (semaphorectl leave)",
			Find: func(f *Facts, found func(Finding)) {
				for _, c := range f.Clusters {
					if _, installed := c.Workload(inspect.WireGuard); !installed || !c.Pods.Known() {
						continue
					}
					has := map[string]bool{}
					for _, p := range c.Pods.Value {
						has[p.Node] = has[p.Node] || p.Program == inspect.WireGuard
					}
					for i := range c.Nodes.Value {
						if node := c.Nodes.Value[i].Name; !has[node] {
							found(Finding{Scope{Cluster: c.Name, Node: node}, "no agent runs on " + node, []Evidence{{"the DaemonSet has no pod there", c.Pods.Source}}})
						}
					}
				}
			},
		},
	}
}

// clusterAway finds clusters of which neither the API server answers nor any node: those
// that no agent of another cluster reaches.
func clusterAway(f *Facts, found func(Finding)) {
	type paths struct {
		up, down int
		evidence []Evidence
	}
	to := map[*inspect.Cluster]*paths{}
	for p := range f.Pairs() {
		if p.to.Kubernetes.Known() {
			continue
		}
		if to[p.to] == nil {
			to[p.to] = &paths{}
		}
		switch of := to[p.to]; p.state() {
		case "up":
			of.up++
		case "down":
			if of.down++; len(of.evidence) < maxEvidence-1 {
				of.evidence = append(of.evidence, bothWays(p, nil)...)
			}
		}
	}
	for _, c := range f.Clusters {
		if of := to[c]; of != nil && of.up == 0 && of.down > 0 {
			what := fmt.Sprintf("%s doesn't answer: neither its API server nor any of its nodes, and all %d paths to them are down", c.Name, of.down)
			found(Finding{Scope{Cluster: c.Name}, what, append([]Evidence{{c.Kubernetes.Err, c.Kubernetes.Source}}, of.evidence...)})
		}
	}
}

// notInstalled finds clusters without our programs, or without the agents that their nodes
// or other clusters know.
func notInstalled(f *Facts, found func(Finding)) {
	known := map[string]bool{}
	for c, a := range f.agents() {
		for i := range a.Value.Remotes {
			known[c.Name+" "+a.Value.Remotes[i].Name] = true
		}
	}
	for _, c := range f.Clusters {
		if !c.Kubernetes.Known() || !c.Workloads.Known() {
			continue
		}
		if _, installed := c.Workload(inspect.WireGuard); installed {
			continue
		}
		if len(c.Workloads.Value) == 0 {
			found(Finding{Scope{Cluster: c.Name}, "Kube-Semaphore isn't installed in " + c.Name + ", or not completely", []Evidence{{"no DaemonSet or Deployment of Kube-Semaphore", c.Workloads.Source}}})
			continue
		}
		for _, other := range f.Clusters {
			published := slices.ContainsFunc(c.Nodes.Value, func(n inspect.Node) bool { return annotation(&n, other.Name, "pubKey") != "" })
			if other != c && (published || known[other.Name+" "+c.Name]) {
				found(Finding{Scope{Cluster: c.Name}, "the agents' DaemonSet is missing in " + c.Name, []Evidence{{"no DaemonSet " + inspect.WireGuard, c.Workloads.Source}}})
				break
			}
		}
	}
}

// crashing finds pods of agents that fail to start or keep exiting.
func crashing(f *Facts, found func(Finding)) {
	for _, c := range f.Clusters {
		for _, p := range c.Pods.Value {
			if p.Program == inspect.WireGuard && p.Waiting != "" && p.Waiting != "ContainerCreating" {
				what := fmt.Sprintf("%s, %d restarts; last exit: %s", p.Waiting, p.Restarts, cmp.Or(p.Ended, "unknown"))
				found(Finding{
					Scope{Cluster: c.Name, Node: p.Node}, "the agent of " + p.Node + " doesn't run", []Evidence{{what, c.Kubectl("-n sys-semaphore logs %s --previous", p.Name)}},
				})
			}
		}
	}
}
