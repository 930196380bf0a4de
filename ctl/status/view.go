// Package status implements "semaphorectl status". It shows joined clusters in one view: the
// installed programs, the paths between all nodes of different clusters, and what judge finds.
package status

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/judge"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
)

// View is the view of several clusters.
type View struct {
	Taken    time.Time `json:"taken"`
	Clusters []Cluster `json:"clusters"`
	Meshes   []Mesh    `json:"meshes"`
	// Imports are those of the Multi-Cluster Services API, with the clusters that agree on each.
	Imports []Import `json:"imports,omitempty"`
	// Verdict is well, wrong or unknown, Findings what is wrong: causes, and then what they explain.
	Verdict  string        `json:"verdict"`
	Findings []judge.Cause `json:"findings,omitempty"`
	// Wrong are the causes as lines, Unknown is what couldn't be found out.
	Wrong   []string `json:"wrong,omitempty"`
	Unknown []string `json:"unknown,omitempty"`
}

// Cluster is one cluster of a view.
type Cluster struct {
	Name       string `json:"name"`
	Context    string `json:"context"`
	Kubernetes string `json:"kubernetes,omitempty"`
	Error      string `json:"error,omitempty"`
	Tools      []Tool `json:"tools"`
	// Subnets are those of its pods that other clusters know by virtual ones.
	Subnets []Subnet `json:"virtualSubnets,omitempty"`
	// Relay is set if agents read the objects of semaphore-relay.
	Relay *Relay `json:"relay,omitempty"`
}

// Relay is what agents know that read the objects of semaphore-relay.
type Relay struct {
	// Clusters is the number of clusters with objects, Agents that of agents which read them, and
	// Current that of those which have read the latest.
	Clusters int `json:"clusters"`
	Agents   int `json:"agents"`
	Current  int `json:"current"`
}

// Subnet is a subnet of pods, and the virtual one by which other clusters know it.
type Subnet struct {
	Real    string `json:"real"`
	Virtual string `json:"virtual"`
}

// Tool is one of our programs in a cluster.
type Tool struct {
	Name     string   `json:"name"`
	Ready    int32    `json:"ready"`
	Wanted   int32    `json:"wanted"`
	Versions []string `json:"versions"`
}

// Mesh is the paths from the nodes of one cluster to those of another one.
type Mesh struct {
	From    string   `json:"from"`
	To      string   `json:"to"`
	Rows    []string `json:"rows"` // nodes of From
	Columns []string `json:"columns"`
	// Contact is the oldest of all agents' last contacts with To's API server.
	Contact  *time.Time `json:"contact,omitempty"`
	Backends []string   `json:"backends"`
	Counts   Counts     `json:"counts"`
	// Paths are indexed by row and column.
	Paths [][]Path `json:"paths"`
}

// Counts is the number of paths in each state.
type Counts struct {
	Up      int `json:"up"`
	Down    int `json:"down"`
	Unknown int `json:"unknown"`
	// SmallOnly counts those of Up that lose full-size packets.
	SmallOnly int `json:"smallOnly"`
}

// States of a path.
const (
	Up      = "up"
	Down    = "down"
	Unknown = "unknown"
)

// Path is the path from one node to another one.
type Path struct {
	State     string     `json:"state"`
	Sign      string     `json:"sign,omitempty"`
	Why       string     `json:"why,omitempty"` // if no agent reports this path
	Since     *time.Time `json:"since,omitempty"`
	Endpoint  string     `json:"endpoint,omitempty"`
	RTT       float64    `json:"rtt,omitempty"` // median of the last probes in seconds; 0: not measured
	SmallOnly bool       `json:"smallOnly,omitempty"`
}

// maxLines bounds the paths that are listed of each mesh.
const maxLines = 200

// Of makes a view of a survey.
func Of(ctx context.Context, now time.Time, clusters []*inspect.Cluster) (*View, error) {
	d, err := judge.Diagnose(ctx, clusters, nil, false)
	if err != nil {
		return nil, err
	}
	v := &View{Taken: now, Findings: slices.Concat(d.Causes, d.Following), Verdict: d.Verdict}
	for i := range d.Causes {
		v.Wrong = append(v.Wrong, d.Causes[i].Line())
	}
	for _, o := range d.Unknown {
		v.Unknown = append(v.Unknown, o.What+": "+o.Why)
	}
	for _, c := range clusters {
		v.Clusters = append(v.Clusters, clusterOf(c))
	}
	for _, from := range clusters {
		for _, to := range clusters {
			if from != to {
				v.Meshes = append(v.Meshes, mesh(from, to))
			}
		}
	}
	v.imports(clusters)
	return v, nil
}

func clusterOf(c *inspect.Cluster) Cluster {
	shown := Cluster{Name: c.Name, Context: c.Context, Kubernetes: c.Kubernetes.Value, Error: c.Kubernetes.Err}
	subnets, _ := c.SubnetMap()
	for _, m := range subnets {
		shown.Subnets = append(shown.Subnets, Subnet{m.Real.String(), m.Virtual.String()})
	}
	versions := map[string]map[string]bool{}
	for _, r := range c.Reports() {
		if r.Err == "" {
			if versions[r.Program] == nil {
				versions[r.Program] = map[string]bool{}
			}
			versions[r.Program][r.Version] = true
		}
	}
	for i := range c.Agents {
		if a := &c.Agents[i]; a.Known() {
			shown.relayed(c, a.Value)
		}
	}
	for _, w := range c.Workloads.Value {
		shown.Tools = append(shown.Tools, Tool{w.Name, w.Ready, w.Wanted, slices.Sorted(maps.Keys(versions[w.Name]))})
	}
	return shown
}

func mesh(from, to *inspect.Cluster) Mesh {
	m := Mesh{From: from.Name, To: to.Name, Rows: names(from), Columns: names(to)}
	if len(m.Columns) == 0 {
		// If the cluster's API server can't be read, its nodes are known from agents.
		m.Columns = peersOf(from, to.Name)
	}
	if inspect.TooMany(len(m.Rows), len(m.Columns)) {
		m.Rows, m.Columns = nil, nil
		return m
	}
	backends, agents := map[string]bool{}, from.Acting()
	for _, row := range m.Rows {
		var remote *statuspage.Remote
		why := ""
		if agent := agents[row]; agent == nil {
			why = "no agent answers on " + row
		} else if remote = agent.Remote(to.Name); remote == nil {
			why = "remote " + to.Name + " isn't configured on " + row
		}
		if remote != nil {
			backends[cmp.Or(remote.Device.Backend, "none")] = true
			if at := remote.API.LastContact; at != nil && (m.Contact == nil || at.Before(*m.Contact)) {
				m.Contact = at
			}
		}
		known := index(remote)
		paths := make([]Path, len(m.Columns))
		for i, column := range m.Columns {
			p := known.path(why, column)
			paths[i] = p
			switch p.State {
			case Up:
				m.Counts.Up++
				if p.SmallOnly {
					m.Counts.SmallOnly++
				}
			case Down:
				m.Counts.Down++
			default:
				m.Counts.Unknown++
			}
		}
		m.Paths = append(m.Paths, paths)
	}
	m.Backends = slices.Sorted(maps.Keys(backends))
	return m
}

// peers is an agent's report about the nodes of a remote, by node.
type peers struct {
	remote   *statuspage.Remote
	peers    map[string]*statuspage.Peer
	rejected map[string]*statuspage.Rejection
}

// index indexes an agent's report about a remote; nil without one.
func index(remote *statuspage.Remote) *peers {
	if remote == nil {
		return nil
	}
	known := &peers{remote, map[string]*statuspage.Peer{}, map[string]*statuspage.Rejection{}}
	for i := range remote.Peers {
		if p := &remote.Peers[i]; known.peers[p.Node] == nil {
			known.peers[p.Node] = p
		}
	}
	for i := range remote.Rejected {
		if r := &remote.Rejected[i]; !r.Partial && known.rejected[r.Node] == nil {
			known.rejected[r.Node] = r
		}
	}
	return known
}

// path returns the path to a node from an agent's report, or an unknown one with why.
func (known *peers) path(why, node string) Path {
	if known == nil {
		return Path{State: Unknown, Why: why}
	}
	peer := known.peers[node]
	if peer == nil {
		if r := known.rejected[node]; r != nil {
			return Path{State: Down, Sign: "rejected", Why: r.Reason + ": " + r.Detail}
		}
		return Path{State: Down, Sign: "no_peer", Why: cmp.Or(known.remote.Refused, known.remote.Device.Error, "the node isn't a peer")}
	}
	p := Path{Endpoint: peer.Endpoint}
	if peer.Path != nil {
		p.State, p.Sign, p.RTT, p.SmallOnly = peer.Path.State, peer.Path.Sign, peer.Path.RTT, peer.Path.SmallOnly
		p.Since = &peer.Path.Since
	}
	switch {
	case p.State == Up && p.SmallOnly:
		p.Sign = "small_only"
	case p.State != Up && p.State != Down:
		p.State = Unknown
	}
	return p
}

func names(c *inspect.Cluster) []string {
	list := make([]string, len(c.Nodes.Value))
	for i := range c.Nodes.Value {
		list[i] = c.Nodes.Value[i].Name
	}
	return list
}

func peersOf(c *inspect.Cluster, remote string) []string {
	found := map[string]bool{}
	for i := range c.Agents {
		if a := &c.Agents[i]; a.Known() {
			if r := a.Value.Remote(remote); r != nil {
				for j := range r.Peers {
					found[r.Peers[j].Node] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// relayed counts an agent that reads the objects of semaphore-relay.
func (shown *Cluster) relayed(c *inspect.Cluster, a *statuspage.Agent) {
	if a.RemotesFrom != inspect.RemotesFromRelay || a.Standby != nil {
		return
	}
	if shown.Relay == nil {
		shown.Relay = &Relay{Clusters: len(c.Stored.Value)}
	}
	shown.Relay.Agents++
	if c.Stored.Known() && len(c.Behind(a)) == 0 {
		shown.Relay.Current++
	}
}
