package judge

import (
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/probe"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
)

// Facts is the input of the rules.
type Facts struct {
	Clusters []*inspect.Cluster
	// Results are the results of temporary pods; nil: none ran.
	Results *probe.Results
	// Done, when closed, ends all iterations over reports and pairs, of which there may be
	// millions.
	Done <-chan struct{}

	sites map[*inspect.Cluster]*site
	maps  map[*inspect.Cluster]*subnets
	pairs []Pair
	first map[[2]*inspect.Cluster]int // of pairs
}

// done reports whether Done is closed.
func (f *Facts) done() bool {
	select {
	case <-f.Done:
		return true
	default:
		return false
	}
}

// site indexes the facts of a cluster by node.
type site struct {
	// all are the cluster's nodes. If they can't be read, they are those that agents of other
	// clusters have as peers.
	all    []inspect.Node
	acting map[string]*statuspage.Agent
	status map[string]string // commands that show the agents' reports
	nodes  map[string]*inspect.Node
	number map[string]int // of nodes
}

func (f *Facts) site(c *inspect.Cluster) *site {
	if s := f.sites[c]; s != nil {
		return s
	}
	s := &site{f.nodes(c), c.Acting(), map[string]string{}, map[string]*inspect.Node{}, map[string]int{}}
	for i := range c.Agents {
		if a := &c.Agents[i]; s.status[a.Pod.Node] == "" {
			s.status[a.Pod.Node] = statusOf(a)
		}
	}
	for i := range s.all {
		n := &s.all[i]
		s.nodes[n.Name], s.number[n.Name] = n, i
	}
	if f.sites == nil {
		f.sites = map[*inspect.Cluster]*site{}
	}
	f.sites[c] = s
	return s
}

// nodes returns a cluster's nodes. Those of a cluster that can't be read are the peers in
// the reports of other clusters' agents, of which names are all that is known.
func (f *Facts) nodes(c *inspect.Cluster) []inspect.Node {
	if c.Nodes.Known() && c.Kubernetes.Known() {
		return c.Nodes.Value
	}
	names, widest := map[string]bool{}, 0
	for other, a := range f.agents() {
		if r := a.Value.Remote(c.Name); other != c && r != nil {
			widest = max(widest, len(other.Nodes.Value))
			for i := range r.Peers {
				if name := r.Peers[i].Node; len(validation.IsDNS1123Subdomain(name)) == 0 {
					names[name] = true
				}
			}
		}
	}
	if inspect.TooMany(len(names), widest) {
		return nil
	}
	var all []inspect.Node
	for _, name := range slices.Sorted(maps.Keys(names)) {
		all = append(all, inspect.Node{Name: name})
	}
	return all
}

// status is the command that shows the report of a node's agent.
func (f *Facts) status(c *inspect.Cluster, node string) string { return f.site(c).status[node] }

func statusOf(a *inspect.Reported[statuspage.Agent]) string {
	return strings.TrimSuffix(a.Source, " -o json")
}

// reports iterates over the reports that could be read, each with its cluster.
func reports[R any](f *Facts, of func(*inspect.Cluster) []inspect.Reported[R]) iter.Seq2[*inspect.Cluster, *inspect.Reported[R]] {
	return func(yield func(*inspect.Cluster, *inspect.Reported[R]) bool) {
		for _, c := range f.Clusters {
			all := of(c)
			for i := range all {
				if all[i].Known() && (f.done() || !yield(c, &all[i])) {
					return
				}
			}
		}
	}
}

func (f *Facts) agents() iter.Seq2[*inspect.Cluster, *inspect.Reported[statuspage.Agent]] {
	return reports(f, func(c *inspect.Cluster) []inspect.Reported[statuspage.Agent] { return c.Agents })
}

func (f *Facts) mirrors() iter.Seq2[*inspect.Cluster, *inspect.Reported[statuspage.Mirror]] {
	return reports(f, func(c *inspect.Cluster) []inspect.Reported[statuspage.Mirror] { return c.Mirrors })
}

func (f *Facts) policies() iter.Seq2[*inspect.Cluster, *inspect.Reported[statuspage.Policy]] {
	return reports(f, func(c *inspect.Cluster) []inspect.Reported[statuspage.Policy] { return c.Policies })
}

func (f *Facts) relays() iter.Seq2[*inspect.Cluster, *inspect.Reported[statuspage.Relay]] {
	return reports(f, func(c *inspect.Cluster) []inspect.Reported[statuspage.Relay] { return c.Relays })
}

// Pair is the path from a node to a node of another cluster. There may be millions.
type Pair struct {
	*start
	node *inspect.Node    // the destination
	peer *statuspage.Peer // of the source's agent
	turn int              // index of the reverse pair
}

// start is what pairs of one node and one other cluster have in common.
type start struct {
	Cluster, Node, Remote string
	from, to              *inspect.Cluster
	first                 *inspect.Node // among the destinations
	// agent is that of the node; nil: no report. remote is its view of the other cluster.
	agent  *statuspage.Agent
	remote *statuspage.Remote
	source string // of these
}

func (p *Pair) scope() Scope { return Scope{p.Cluster, p.Node, p.Remote, p.node.Name} }

// Pairs iterates over the pairs of all clusters' nodes, each in both directions.
func (f *Facts) Pairs() iter.Seq[*Pair] {
	f.makePairs()
	return func(yield func(*Pair) bool) {
		for i := range f.pairs {
			if f.done() || !yield(&f.pairs[i]) {
				return
			}
		}
	}
}

// makePairs fills pairs, ordered by source cluster, destination cluster, source node and
// destination node.
func (f *Facts) makePairs() {
	if f.first != nil {
		return
	}
	f.first = map[[2]*inspect.Cluster]int{}
	all := 0
	for _, from := range f.Clusters {
		for _, to := range f.Clusters {
			if from != to {
				f.first[[2]*inspect.Cluster{from, to}] = all
				all += len(f.site(from).all) * len(f.site(to).all)
			}
		}
	}
	f.pairs = make([]Pair, 0, all)
	for _, from := range f.Clusters {
		for _, to := range f.Clusters {
			if from == to {
				continue
			}
			back := f.first[[2]*inspect.Cluster{to, from}]
			sources, destinations := f.site(from).all, f.site(to).all
			for i := range sources {
				name := sources[i].Name
				p := &start{Cluster: from.Name, Node: name, Remote: to.Name, from: from, to: to, agent: f.site(from).acting[name], source: f.status(from, name)}
				peers := map[string]*statuspage.Peer{}
				if p.agent != nil {
					p.remote = p.agent.Remote(to.Name)
				}
				if p.remote != nil {
					for j := range p.remote.Peers {
						peers[p.remote.Peers[j].Node] = &p.remote.Peers[j]
					}
				}
				for j := range destinations {
					node := &destinations[j]
					if j == 0 {
						p.first = node
					}
					f.pairs = append(f.pairs, Pair{p, node, peers[node.Name], back + j*len(sources) + i})
				}
			}
		}
	}
}

// pair returns the pair of a scope, or nil.
func (f *Facts) pair(s Scope) *Pair {
	f.makePairs()
	named := func(name string) *inspect.Cluster {
		i := slices.IndexFunc(f.Clusters, func(c *inspect.Cluster) bool { return c.Name == name })
		if i < 0 {
			return nil
		}
		return f.Clusters[i]
	}
	from, to := named(s.Cluster), named(s.Remote)
	if from == nil || to == nil || from == to {
		return nil
	}
	i, known := f.site(from).number[s.Node]
	j, peer := f.site(to).number[s.Peer]
	if !known || !peer {
		return nil
	}
	return &f.pairs[f.first[[2]*inspect.Cluster{from, to}]+i*len(f.site(to).all)+j]
}

// state is the state of the path: up, down, unknown, none if the destination isn't a peer,
// or empty without a report.
func (p *Pair) state() string {
	switch {
	case p.remote == nil:
		return ""
	case p.peer == nil:
		return "none"
	case p.peer.Path == nil:
		return "unknown"
	}
	return p.peer.Path.State
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
		return "remote " + p.Remote + " isn't configured on " + p.Node
	case p.peer == nil:
		return "it isn't a peer"
	}
	return p.sign()
}

// back is the reverse pair.
func (f *Facts) back(p *Pair) *Pair { return &f.pairs[p.turn] }

// annotation returns the value that a node publishes for a cluster.
func annotation(n *inspect.Node, cluster, what string) string {
	return n.Annotations[annotationName(cluster, what)]
}

func annotationName(cluster, what string) string {
	return cluster + "." + inspect.AnnotationGroup + "/" + what
}

// view is an agent with one of its remotes.
type view struct {
	Scope
	cluster *inspect.Cluster
	agent   *statuspage.Agent
	remote  *statuspage.Remote
	source  string
	// failing are the failures of the agent that concern this remote, inTheWay the failure
	// caused by a foreign route.
	failing  []statuspage.Condition
	inTheWay string
}

// fails returns the message of the first failure that concerns this remote, with a reason; empty:
// none.
func (v *view) fails(reason string) string {
	for _, c := range v.failing {
		if c.Reason == reason {
			return c.Message
		}
	}
	return ""
}

// views iterates over all remotes of all agents that aren't on standby. The node is that of
// the agent's pod: the report could name another one.
func (f *Facts) views() iter.Seq[*view] {
	return func(yield func(*view) bool) {
		for v := range f.allViews() {
			if v.agent.Standby == nil && !yield(v) {
				return
			}
		}
	}
}

// allViews is views with the agents on standby.
func (f *Facts) allViews() iter.Seq[*view] {
	return func(yield func(*view) bool) {
		for c, a := range f.agents() {
			failing, inTheWay := map[string][]statuspage.Condition{}, "" // by remote
			for _, c := range a.Value.Of(statuspage.Failing) {
				failing[lastWord(c.Object)] = append(failing[lastWord(c.Object)], c)
				if c.Reason == statuspage.ReasonRouteInTheWay {
					inTheWay = c.Message
				}
			}
			for j := range a.Value.Remotes {
				r := &a.Value.Remotes[j]
				v := &view{Scope{Cluster: c.Name, Node: a.Pod.Node, Remote: r.Name}, c, a.Value, r, statusOf(a), failing[r.Name], inTheWay}
				if f.done() || !yield(v) {
					return
				}
			}
		}
	}
}

// lastWord returns the last word of the name of a failure: the remote, if it concerns one.
func lastWord(what string) string { return what[strings.LastIndexByte(what, ' ')+1:] }

// watch is a program's watch of a remote.
type watch struct {
	Scope
	cluster     *inspect.Cluster
	program     string
	who         string // of the program's replicas
	err, reason string
	source      string
	synced      bool
	last        *time.Time // contact with the API server
	// relayed is whether the program reads the objects of semaphore-relay instead.
	relayed bool
}

// watches iterates over the watches of all programs.
func (f *Facts) watches() iter.Seq[watch] {
	return func(yield func(watch) bool) {
		of := func(c *inspect.Cluster, program, remote, source string, api *statuspage.Connection) bool {
			return yield(watch{Scope{Cluster: c.Name, Remote: remote}, c, program, program, api.Error, api.Reason, source, api.Synced, api.LastContact, false})
		}
		for v := range f.views() {
			api := &v.remote.API
			w := watch{v.Scope, v.cluster, inspect.WireGuard, "the agent of " + v.Node, api.Error, api.Reason, v.source, api.Synced, api.LastContact, v.agent.RemotesFrom == inspect.RemotesFromRelay}
			if v.remote.Refused != "" { // Nothing is read of it.
				w.synced, w.last = true, &v.cluster.Taken
			}
			if !yield(w) {
				return
			}
		}
		for c, m := range f.mirrors() {
			for _, remote := range m.Value.Clusters {
				for i := range remote.Watches {
					if !of(c, inspect.ServiceMirror, remote.Name, m.Source, &remote.Watches[i].Connection) {
						return
					}
				}
			}
		}
		for c, p := range f.policies() {
			for i := range p.Value.Remotes {
				if r := &p.Value.Remotes[i]; !of(c, inspect.NetworkPolicy, r.Name, p.Source, &r.API) {
					return
				}
			}
		}
		for c, r := range f.relays() {
			for i := range r.Value.Clusters {
				if remote := &r.Value.Clusters[i]; !of(c, inspect.Relay, remote.Name, r.Source, &remote.API) {
					return
				}
			}
		}
	}
}

// unread calls each with the errors of watches, and of requests with the credentials that are on
// disk, and their reasons.
func (f *Facts) unread(each func(at Scope, reason string, evidence Evidence)) {
	for w := range f.watches() {
		// An agent that reads the objects of semaphore-relay has no connection: see agentBehind.
		if w.err != "" && !w.relayed {
			each(w.Scope, w.reason, Evidence{w.program + ": " + w.err, w.source})
		}
	}
	for c, t := range f.credentialChecks() {
		// The own API server is another reason.
		if t.Error != "" && t.Remote != c.Name {
			each(Scope{Cluster: c.Name, Node: t.Node, Remote: t.Remote}, t.Reason, Evidence{t.Program + ", with the credentials on disk: " + t.Error, t.Source})
		}
	}
}

// credentialChecks iterates over the results of requests with the credentials on disk.
func (f *Facts) credentialChecks() iter.Seq2[*inspect.Cluster, inspect.CredentialCheck] {
	return func(yield func(*inspect.Cluster, inspect.CredentialCheck) bool) {
		for _, c := range f.Clusters {
			for t := range c.CredentialChecks() {
				if f.done() || !yield(c, t) {
					return
				}
			}
		}
	}
}
