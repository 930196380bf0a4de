package doctor

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/survey"
)

// agentGone are what a node's silence has as reasons.
var agentGone = []string{"node-not-ready", "agent-crash-loop", "agent-missing"}

// unpeered are what keeps two nodes from being peers, or from understanding each other.
var unpeered = []string{
	"node-not-ready", "agent-crash-loop", "agent-missing", "clocks-apart", "subnets-overlap", "annotations-gone", "key-changed",
	"duplicate-key", "pod-subnets-wrong", "node-rejected", "device-missing", "remote-missing",
}

// Rules are all rules, roots first: what a rule finds can be explained by those before it
// only.
func Rules() []Rule {
	return slices.Concat(clusterRules(), contactRules(), nodeRules(), pathRules(), controllerRules(), podRules(), restRules())
}

// rejections are the reasons of agents, and the rules for them.
var rejections = []struct{ rule, reason, remedy string }{
	{"duplicate-key", "duplicate_key", "two nodes share a key file, as clones of one machine image do: delete the file of the younger one in /var/lib/semaphore-wireguard and restart its agent"},
	{"pod-subnets-wrong", "pod_cidr", "make SEMAPHORE_REMOTE_<NAME>_POD_SUBNETS hold the pod prefixes of all of the remote's nodes, and restart the agents"},
	{"node-rejected", "", "see docs/troubleshooting.md, \"A node is rejected\", for what each reason asks for"},
}

func nodeRules() []Rule {
	rules := []Rule{
		{
			ID: "subnets-overlap", Local: true,
			Remedy: "write the pod subnets of the remote more narrowly, or give one of the clusters other ones: no two may share addresses",
			Find: func(f *Facts, found func(Finding)) {
				f.eachView(found, func(v *view) (string, string) { return v.remote.Refused, "the remote " + v.Remote + " is refused" })
			},
		},
		{
			ID: "annotations-gone", Local: true, After: agentGone,
			Remedy: "let the agent publish them: its ServiceAccount needs the right to patch its node (deploy/wireguard/rbac.yaml), and nothing else may remove them",
			Find:   annotationsGone,
		},
		{
			ID: "key-changed", Local: true, After: []string{"agent-crash-loop"},
			Remedy: "let the agent publish its key: its ServiceAccount needs the right to patch its node (deploy/wireguard/rbac.yaml); deleting the annotation makes it publish anew",
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
			Remedy: "end the process that has the port, or choose another one with SEMAPHORE_REMOTE_<NAME>_WG_LISTEN_PORT; remotes learn of it by themselves",
			Find: func(f *Facts, found func(Finding)) {
				f.eachView(found, func(v *view) (string, string) {
					_, err := first(v.failing, "listen port is taken")
					return err, "the listen port of " + v.remote.Device.Name + " is taken"
				})
			},
		},
		Rule{
			ID: "device-missing", Local: true, After: []string{"port-taken", "subnets-overlap"},
			Remedy: "the agent makes the device as soon as it can: remove what its error names, as a foreign link of that name or a missing capability",
			Find: func(f *Facts, found func(Finding)) {
				f.eachView(found, func(v *view) (string, string) {
					err := cmp.Or(v.remote.Device.Error, v.agent.Failing["device "+v.remote.Name])
					return err, "the device " + v.remote.Device.Name + " isn't there"
				})
			},
		},
		Rule{
			ID: "foreign-route", Local: true,
			Remedy: "find out who made that route, and have them leave the remote's pod subnets and table 115115 alone; it is never overwritten",
			Find: func(f *Facts, found func(Finding)) {
				f.eachView(found, func(v *view) (string, string) {
					return v.inTheWay, "a route of others is in the way"
				})
			},
		},
		Rule{
			ID: "remote-missing", Local: true, After: agentGone,
			Remedy: "name each cluster among SEMAPHORE_REMOTES of the other one",
			Find: func(f *Facts, found func(Finding)) {
				for p := range f.Pairs() {
					if p.agent != nil && p.remote == nil && p.node == &p.to.Nodes.Value[0] {
						found(Finding{Scope{Cluster: p.Cluster, Node: p.Node, Remote: p.Remote}, p.why(), []Evidence{{"it isn't in the agent's report", p.source}}})
					}
				}
			},
		},
		Rule{
			ID: "peers-outdated", After: []string{"wrong-ca", "token-refused", "rights-missing", "credentials-missing", "api-away", "api-failing"},
			Remedy: "the agent reads the remote's nodes as soon as it can: see why it hasn't in its log",
			Find: func(f *Facts, found func(Finding)) {
				for p := range f.Pairs() {
					key := annotation(p.node, p.Cluster, "pubKey")
					if p.peer != nil && key != "" && p.peer.PublicKey != key {
						found(Finding{p.Scope, p.Node + " has another key of " + p.Peer + " than that publishes", []Evidence{{"key in use " + p.peer.PublicKey + ", published " + key, p.source}}})
					}
				}
			},
		},
	)
}

// eachView makes a finding of each agent's remote for which say returns something.
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
				// An empty endpoint is that of a node which is to speak first.
				_, endpoint := n.Annotations[annotationName(other.Name, "endpoint")]
				if c == other || annotation(n, other.Name, "pubKey") != "" && endpoint {
					continue
				}
				evidence := []Evidence{{"the node has no key or no endpoint for " + other.Name, c.Kubectl("get node %s -o yaml", n.Name)}}
				agent := f.site(c).acting[n.Name]
				if agent != nil && agent.Standby != nil {
					continue
				}
				if agent != nil && agent.Failing["publish"] != "" {
					evidence = append(evidence, Evidence{agent.Failing["publish"], f.status(c, n.Name)})
				}
				found(Finding{Scope{Cluster: c.Name, Node: n.Name, Remote: other.Name}, "the annotations of " + n.Name + " are gone", evidence})
			}
		}
	}
}

// keyChanged compares the key of a device with what its node publishes.
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
		found(Finding{v.Scope, v.Node + " has another key than it publishes", evidence})
	}
}

// rejected are the rejections with a reason, or with any.
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

func contactRules() []Rule {
	remedies := []struct{ id, what, remedy string }{
		{"wrong-ca", "its certificate isn't of the configured CA", "SEMAPHORE_REMOTE_<NAME>_CA_FILE or _CA_URL must be the CA of that API server, and _API_URL a name or address of its certificate"},
		{"token-refused", "the token is refused", "hand over another token: semaphorectl tokens; look whether their renewal works (deploy/tokens)"},
		{"rights-missing", "the account has too few rights", "apply deploy/remote to that cluster: it has the roles of its neighbours' accounts"},
		{"credentials-missing", "there are no credentials for it", "hand over a token: semaphorectl tokens"},
		{"api-away", "its API server doesn't answer", "look whether that API server runs and whether a firewall lets the nodes of this cluster reach SEMAPHORE_REMOTE_<NAME>_API_URL; what is known stays as it is meanwhile"},
		{"api-failing", "its API server can't be read", "see docs/troubleshooting.md, \"A remote is not synced\""},
	}
	rules := make([]Rule, len(remedies))
	for i, r := range remedies {
		rules[i] = Rule{ID: r.id, Remedy: r.remedy, Find: func(f *Facts, found func(Finding)) {
			for c := range f.contacts() {
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
			Remedy: "let the machines' clocks be kept by NTP: tokens, certificates and handshakes count on the time",
			Find:   clocksApart,
		},
		{
			ID:     "node-not-ready",
			Remedy: "see what is wrong with the machine or its kubelet; when it is gone for good delete its Node",
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
			Remedy: "the last lines of its log say why it ends or can't start; with code 2 its configuration is wrong",
			Find:   crashing,
		},
		{
			ID: "agent-missing", After: []string{"node-not-ready", "agent-crash-loop"},
			Remedy: "see why the DaemonSet makes no pod there, or take the node's annotations away when it isn't to have one (semaphorectl leave)",
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
							found(Finding{Scope{Cluster: c.Name, Node: node}, "there is no agent on " + node, []Evidence{{"no pod of the DaemonSet is there", c.Pods.Source}}})
						}
					}
				}
			},
		},
	}
}

// crashing finds pods of agents that don't come to run.
func crashing(f *Facts, found func(Finding)) {
	for _, c := range f.Clusters {
		for _, p := range c.Pods.Value {
			if p.Program == survey.WireGuard && p.Waiting != "" && p.Waiting != "ContainerCreating" {
				what := fmt.Sprintf("%s, %d restarts; ended with: %s", p.Waiting, p.Restarts, cmp.Or(p.Ended, "not known"))
				found(Finding{
					Scope{Cluster: c.Name, Node: p.Node}, "the agent of " + p.Node + " doesn't run", []Evidence{{what, c.Kubectl("-n sys-semaphore logs %s --previous", p.Name)}},
				})
			}
		}
	}
}
