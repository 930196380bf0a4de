package doctor

import (
	"cmp"
	"iter"
	"strconv"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/probe"
	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/survey"
)

// Facts are what the rules reason from.
type Facts struct {
	Clusters []*survey.Cluster
	// Tried is what temporary pods have found out; nil: there were none.
	Tried *probe.Tried

	pairs []Pair
	at    map[Scope]int // of pairs
}

// reports are the reports of programs that are known, each with its cluster.
func reports[R any](f *Facts, of func(*survey.Cluster) []survey.Reported[R]) iter.Seq2[*survey.Cluster, *survey.Reported[R]] {
	return func(yield func(*survey.Cluster, *survey.Reported[R]) bool) {
		for _, c := range f.Clusters {
			all := of(c)
			for i := range all {
				if all[i].Known() && !yield(c, &all[i]) {
					return
				}
			}
		}
	}
}

func (f *Facts) agents() iter.Seq2[*survey.Cluster, *survey.Reported[survey.Agent]] {
	return reports(f, func(c *survey.Cluster) []survey.Reported[survey.Agent] { return c.Agents })
}

func (f *Facts) mirrors() iter.Seq2[*survey.Cluster, *survey.Reported[survey.Mirror]] {
	return reports(f, func(c *survey.Cluster) []survey.Reported[survey.Mirror] { return c.Mirrors })
}

func (f *Facts) policies() iter.Seq2[*survey.Cluster, *survey.Reported[survey.Policy]] {
	return reports(f, func(c *survey.Cluster) []survey.Reported[survey.Policy] { return c.Policies })
}

// Pair is a node and one of another cluster, seen from the first.
type Pair struct {
	Scope
	from, to *survey.Cluster
	node     *survey.Node // the other one's
	// agent is the first one's, nil: it doesn't answer; remote its view of the other
	// cluster, peer that of the other node.
	agent  *survey.Agent
	remote *survey.Remote
	peer   *survey.Peer
	source string // of these
}

// Pairs are those of all clusters' nodes, each in both directions.
func (f *Facts) Pairs() []Pair {
	if f.pairs != nil {
		return f.pairs
	}
	f.at = map[Scope]int{}
	for _, from := range f.Clusters {
		for _, to := range f.Clusters {
			if from == to {
				continue
			}
			for i := range from.Nodes.Value {
				name := from.Nodes.Value[i].Name
				agent := from.Agent(name)
				peers := map[string]*survey.Peer{}
				if agent != nil && agent.Remote(to.Name) != nil {
					known := agent.Remote(to.Name).Peers
					for j := range known {
						peers[known[j].Node] = &known[j]
					}
				}
				for j := range to.Nodes.Value {
					node := &to.Nodes.Value[j]
					p := Pair{Scope: Scope{from.Name, name, to.Name, node.Name}, from: from, to: to, node: node, agent: agent, source: statusOf(from, name)}
					if agent != nil {
						p.remote, p.peer = agent.Remote(to.Name), peers[node.Name]
					}
					f.at[p.Scope] = len(f.pairs)
					f.pairs = append(f.pairs, p)
				}
			}
		}
	}
	return f.pairs
}

// statusOf is the command that shows what the agent of a node reports.
func statusOf(c *survey.Cluster, node string) string {
	for i := range c.Agents {
		if c.Agents[i].Pod.Node == node {
			return strings.TrimSuffix(c.Agents[i].Source, " -o json")
		}
	}
	return ""
}

// state is that of the path: up, down, unknown, none for a node that is no peer, or
// empty where nobody says.
func (p *Pair) state() string {
	switch {
	case p.remote == nil:
		return ""
	case p.peer == nil:
		return "none"
	case p.peer.Path != nil:
		return p.peer.Path.State
	case p.peer.Health == "silent" || p.peer.Health == "connecting":
		return "unknown"
	}
	return p.peer.Health
}

func (p *Pair) sign() string {
	if p.peer == nil || p.peer.Path == nil {
		return ""
	}
	return p.peer.Path.Sign
}

func (p *Pair) why() string {
	switch {
	case p.agent == nil:
		return "no agent answers on " + p.Node
	case p.remote == nil:
		return "the agent of " + p.Node + " has no remote " + p.Remote
	case p.peer == nil:
		return "it isn't a peer"
	}
	return p.sign()
}

// back is the same pair seen from the other side; nil: it isn't known.
func (f *Facts) back(p *Pair) *Pair {
	if i, known := f.at[p.turned()]; known {
		return &f.pairs[i]
	}
	return nil
}

// annotation is what a node publishes for a cluster.
func annotation(n *survey.Node, cluster, what string) string {
	return n.Annotations[annotationName(cluster, what)]
}

func annotationName(cluster, what string) string {
	return cluster + "." + survey.AnnotationGroup + "/" + what
}

// view is an agent with one of its remotes.
type view struct {
	Scope
	cluster *survey.Cluster
	agent   *survey.Agent
	remote  *survey.Remote
	source  string
}

// views are all agents' remotes; those of agents that stand by don't count.
func (f *Facts) views() []view {
	var all []view
	for c, a := range f.agents() {
		if a.Value.Standby != nil {
			continue
		}
		for j := range a.Value.Remotes {
			r := &a.Value.Remotes[j]
			all = append(all, view{Scope{Cluster: c.Name, Node: a.Value.Node, Remote: r.Name}, c, a.Value, r, statusOf(c, a.Value.Node)})
		}
	}
	return all
}

// contact is what a program says of its contact with a remote's API server.
type contact struct {
	Scope
	program, err, source string
}

func (f *Facts) contacts() []contact {
	var all []contact
	for _, v := range f.views() {
		all = append(all, contact{v.Scope, survey.WireGuard, v.remote.API.Error, v.source})
	}
	for c, m := range f.mirrors() {
		for _, of := range m.Value.Clusters {
			for _, w := range of.Watches {
				all = append(all, contact{Scope{Cluster: c.Name, Remote: of.Name}, survey.ServiceMirror, w.Error, m.Source})
			}
		}
	}
	for c, p := range f.policies() {
		for j := range p.Value.Remotes {
			r := &p.Value.Remotes[j]
			all = append(all, contact{Scope{Cluster: c.Name, Remote: r.Name}, survey.NetworkPolicy, r.API.Error, p.Source})
		}
	}
	return all
}

// kinds of errors of API servers, by what is in them, as client-go and crypto/x509 write
// them.
var kinds = []struct {
	rule  string
	parts []string
}{
	{"wrong-ca", []string{"x509: certificate signed by unknown authority", "x509: certificate", "tls: failed to verify"}},
	{"token-refused", []string{"Unauthorized", "401"}},
	{"rights-missing", []string{"forbidden", "Forbidden"}},
	{"credentials-missing", []string{"no such file", "empty token"}},
	{"api-away", []string{
		"connection refused", "i/o timeout", "no route to host", "network is unreachable", "deadline exceeded", "no such host", "EOF",
		"connection reset", "TLS handshake timeout", "Client.Timeout", "did not answer", "no answer", "context canceled", "connection lost",
	}},
}

// kindOf returns which rule an error belongs to.
func kindOf(err string) string {
	for _, k := range kinds {
		for _, part := range k.parts {
			if strings.Contains(err, part) {
				return k.rule
			}
		}
	}
	return "api-failing"
}

func portOf(endpoint string) int {
	at := strings.LastIndexByte(endpoint, ':')
	port, err := strconv.Atoi(endpoint[at+1:])
	if err != nil {
		return 0
	}
	return port
}

func first(texts map[string]string, with ...string) (what, text string) {
	for key, value := range texts {
		for _, part := range with {
			if strings.Contains(value, part) && (what == "" || cmp.Less(key, what)) {
				what, text = key, value
			}
		}
	}
	return what, text
}
