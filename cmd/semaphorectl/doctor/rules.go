package doctor

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/survey"
)

// agentGone are the rules that explain a missing report of a node's agent.
var agentGone = []string{"node-not-ready", "agent-crash-loop", "agent-missing"}

// unpeered are the rules that explain why two nodes aren't peers, or can't decrypt each
// other's packets.
var unpeered = []string{
	"node-not-ready", "agent-crash-loop", "agent-missing", "clocks-apart", "subnets-overlap", "annotations-gone", "key-changed",
	"duplicate-key", "pod-subnets-wrong", "node-rejected", "device-missing", "remote-missing",
}

// Rules returns all rules, roots first: findings of a rule can only be explained by earlier
// ones.
func Rules() []Rule {
	return slices.Concat(clusterRules(), apiRules(), nodeRules(), pathRules(), controllerRules(), podRules(), restRules())
}

// rejections maps the agents' reasons for rejecting a node to rules.
var rejections = []struct{ rule, reason, remedy string }{
	{"duplicate-key", "duplicate_key", "two nodes have the same key file, such as clones of one machine image: delete the file of the younger node in /var/lib/semaphore-wireguard and restart its agent"},
	{"pod-subnets-wrong", "pod_cidr", "set SEMAPHORE_REMOTE_<NAME>_POD_SUBNETS so that it contains the pod prefixes of all of the remote's nodes, and restart the agents"},
	{"node-rejected", "", "see docs/troubleshooting.md, \"A node is rejected\", for the remedy of each reason"},
}

func nodeRules() []Rule {
	rules := []Rule{
		{
			ID: "subnets-overlap", Local: true,
			Remedy: "narrow the configured pod subnets of the remote, or move one of the clusters to other subnets: pod subnets of two clusters must not overlap",
			Find: func(f *Facts, found func(Finding)) {
				f.eachView(found, func(v *view) (string, string) { return v.remote.Refused, "the remote " + v.Remote + " is refused" })
			},
		},
		{
			ID: "annotations-gone", Local: true, After: agentGone,
			Remedy: "the agent publishes them again if its ServiceAccount may patch its node (deploy/wireguard/rbac.yaml); find out what removes them",
			Find:   annotationsGone,
		},
		{
			ID: "key-changed", Local: true, After: []string{"agent-crash-loop"},
			Remedy: "the agent publishes its key if its ServiceAccount may patch its node (deploy/wireguard/rbac.yaml); delete the annotation to make it publish again",
			Find:   keyChanged,
		},
	}
	var before []string
	for _, r := range rejections {
		after := append([]string{"annotations-gone", "key-changed", "subnets-overlap"}, before...)
		rules = append(rules, Rule{ID: r.rule, Remedy: r.remedy, After: after, Find: func(f *Facts, found func(Finding)) { rejected(f, r.reason, found) }})
		before = append(before, r.rule)
	}
	return append(rules,
		Rule{
			ID: "port-taken", Local: true,
			Remedy: "stop the process that uses the port, or set another one with SEMAPHORE_REMOTE_<NAME>_WG_LISTEN_PORT, which is published to the remotes",
			Find: func(f *Facts, found func(Finding)) {
				f.eachView(found, func(v *view) (string, string) {
					_, err := first(v.failing, "listen port is taken")
					return err, "the listen port of " + v.remote.Device.Name + " is taken"
				})
			},
		},
		Rule{
			ID: "device-missing", Local: true, After: []string{"port-taken", "subnets-overlap"},
			Remedy: "fix what its error names, such as a foreign link of that name or a missing capability; the agent then creates the device",
			Find: func(f *Facts, found func(Finding)) {
				f.eachView(found, func(v *view) (string, string) {
					err := cmp.Or(v.remote.Device.Error, v.agent.Failing["device "+v.remote.Name])
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
		Rule{
			ID: "remote-missing", Local: true, After: agentGone,
			Remedy: "add each cluster to SEMAPHORE_REMOTES of the other one",
			Find: func(f *Facts, found func(Finding)) {
				for p := range f.Pairs() {
					if p.agent != nil && p.remote == nil && p.node == &p.to.Nodes.Value[0] {
						found(Finding{Scope{Cluster: p.Cluster, Node: p.Node, Remote: p.Remote}, p.why(), []Evidence{{"the agent's report doesn't list it", p.source}}})
					}
				}
			},
		},
		Rule{
			ID: "peers-outdated", After: []string{"wrong-ca", "token-refused", "rights-missing", "credentials-missing", "api-away", "api-failing"},
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
				if agent != nil && agent.Failing["publish"] != "" {
					evidence = append(evidence, Evidence{agent.Failing["publish"], f.status(c, n.Name)})
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
		if err := v.agent.Failing["publish"]; err != "" {
			evidence = append(evidence, Evidence{err, v.source})
		}
		found(Finding{v.Scope, "the key of " + v.Node + " differs from its published key", evidence})
	}
}

// rejected adds a finding for each rejection with a reason; empty: any.
func rejected(f *Facts, reason string, found func(Finding)) {
	for v := range f.views() {
		for _, r := range v.remote.Rejected {
			if reason == "" || r.Reason == reason {
				found(Finding{
					Scope{v.Cluster, v.Node, v.Remote, r.Node}, fmt.Sprintf("%s of %s is rejected: %s", r.Node, v.Remote, r.Reason), []Evidence{{r.Detail, v.source}},
				})
			}
		}
	}
}

func apiRules() []Rule {
	remedies := []struct{ id, what, remedy string }{
		{"wrong-ca", "its certificate isn't signed by the configured CA", "SEMAPHORE_REMOTE_<NAME>_CA_FILE or _CA_URL must be the CA of that API server, and _API_URL a name or address of its certificate"},
		{"token-refused", "the token is refused", "hand over a new token with semaphorectl tokens, and check that their renewal works (deploy/tokens)"},
		{"rights-missing", "the account lacks rights", "apply deploy/remote to that cluster: it contains the roles of its neighbours' accounts"},
		{"credentials-missing", "its credentials are missing", "hand over a token: semaphorectl tokens"},
		{"api-away", "its API server doesn't answer", "check that the API server runs and that firewalls let the nodes of this cluster reach SEMAPHORE_REMOTE_<NAME>_API_URL; peers, mirrors and network sets are retained meanwhile"},
		{"api-failing", "its API server can't be read", "see docs/troubleshooting.md, \"A remote is not synced\""},
	}
	rules := make([]Rule, len(remedies))
	for i, r := range remedies {
		rules[i] = Rule{ID: r.id, Remedy: r.remedy, Find: func(f *Facts, found func(Finding)) {
			for c := range f.connections() {
				if c.err != "" && kindOf(c.err) == r.id {
					found(Finding{c.Scope, fmt.Sprintf("%s to %s: %s", c.Cluster, c.Remote, r.what), []Evidence{{c.program + ": " + c.err, c.source}}})
				}
			}
		}}
	}
	return rules
}

func clusterRules() []Rule {
	return []Rule{
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
			Remedy: "the last lines of its log say why it exits or can't start; exit code 2 means an invalid configuration",
			Find:   crashing,
		},
		{
			ID: "agent-missing", After: []string{"node-not-ready", "agent-crash-loop"},
			Remedy: "find out why the DaemonSet creates no pod there; if the node should have none, remove its annotations (semaphorectl leave)",
			Find: func(f *Facts, found func(Finding)) {
				for _, c := range f.Clusters {
					if _, installed := c.Workload(survey.WireGuard); !installed || !c.Pods.Known() {
						continue
					}
					has := map[string]bool{}
					for _, p := range c.Pods.Value {
						has[p.Node] = has[p.Node] || p.Program == survey.WireGuard
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

// crashing finds pods of agents that fail to start or keep exiting.
func crashing(f *Facts, found func(Finding)) {
	for _, c := range f.Clusters {
		for _, p := range c.Pods.Value {
			if p.Program == survey.WireGuard && p.Waiting != "" && p.Waiting != "ContainerCreating" {
				what := fmt.Sprintf("%s, %d restarts; last exit: %s", p.Waiting, p.Restarts, cmp.Or(p.Ended, "unknown"))
				found(Finding{
					Scope{Cluster: c.Name, Node: p.Node}, "the agent of " + p.Node + " doesn't run", []Evidence{{what, c.Kubectl("-n sys-semaphore logs %s --previous", p.Name)}},
				})
			}
		}
	}
}
