// Package status implements "semaphorectl status". It shows joined clusters in one view: the
// installed programs, the paths between all nodes of different clusters, and faults of
// mirrors and network sets.
package status

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
)

// View is the view of several clusters.
type View struct {
	Taken    time.Time `json:"taken"`
	Clusters []Cluster `json:"clusters"`
	Meshes   []Mesh    `json:"meshes"`
	// Imports are those of the Multi-Cluster Services API, with the clusters that agree on each.
	Imports []Import `json:"imports,omitempty"`
	// Tiers are proposals for clusters whose remotes differ in distance.
	Tiers []Proposal `json:"tiers,omitempty"`
	// Wrong are faults, Unknown is what couldn't be found out.
	Wrong   []string `json:"wrong,omitempty"`
	Unknown []string `json:"unknown,omitempty"`

	lines map[lineKind]int
}

// lineKind is the key by which lines are counted: the list, and the cluster that they come
// from.
type lineKind struct {
	wrong   bool
	cluster string
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

// maxLines bounds the lines from each cluster in each of the lists.
const maxLines = 200

// Of makes a view of a survey.
func Of(now time.Time, clusters []*inspect.Cluster) *View {
	v := &View{Taken: now, lines: map[lineKind]int{}}
	for _, c := range clusters {
		v.Clusters = append(v.Clusters, v.cluster(c))
	}
	for _, from := range clusters {
		for _, to := range clusters {
			if from != to {
				v.Meshes = append(v.Meshes, v.mesh(from, to))
			}
		}
	}
	for _, c := range clusters {
		v.names(c, clusters)
		v.credentials(c)
		v.mirrors(c)
		v.sets(c)
		v.relays(c)
	}
	v.imports(clusters)
	v.tiers(clusters)
	for _, l := range inspect.Lacking(clusters) {
		v.wrong(l.Cluster.Name, "%s", l)
	}
	for _, c := range clusters {
		v.omitted(c.Name)
	}
	return v
}

// wrong adds a line from a cluster or its programs. They are bounded by cluster, so that one
// can't crowd out the lines of another.
func (v *View) wrong(cluster, format string, args ...any) {
	if kind := (lineKind{true, cluster}); v.count(kind) {
		v.Wrong = append(v.Wrong, fmt.Sprintf(format, args...))
	}
}

func (v *View) unknown(cluster, format string, args ...any) {
	if kind := (lineKind{false, cluster}); v.count(kind) {
		v.Unknown = append(v.Unknown, fmt.Sprintf(format, args...))
	}
}

// count counts a line, and reports whether to show it.
func (v *View) count(kind lineKind) bool {
	v.lines[kind]++
	return v.lines[kind] <= maxLines
}

// omitted adds lines with the number of a cluster's omitted lines.
func (v *View) omitted(cluster string) {
	if n := v.lines[lineKind{true, cluster}] - maxLines; n > 0 {
		v.Wrong = append(v.Wrong, fmt.Sprintf("%s: and %d more", cluster, n))
	}
	if n := v.lines[lineKind{false, cluster}] - maxLines; n > 0 {
		v.Unknown = append(v.Unknown, fmt.Sprintf("%s: and %d more", cluster, n))
	}
}

func (v *View) cluster(c *inspect.Cluster) Cluster {
	shown := Cluster{Name: c.Name, Context: c.Context, Kubernetes: c.Kubernetes.Value, Error: c.Kubernetes.Err}
	if !c.Kubernetes.Known() {
		v.unknown(c.Name, "%s: its API server can't be read: %s", c.Name, c.Kubernetes.Err)
		return shown
	}
	for _, unread := range []struct{ what, err string }{
		{"its nodes", c.Nodes.Err}, {"its pods of Kube-Semaphore", c.Pods.Err}, {"its DaemonSets and Deployments", c.Workloads.Err},
	} {
		if unread.err != "" {
			v.unknown(c.Name, "%s: %s: %s", c.Name, unread.what, unread.err)
		}
	}
	subnets, others := c.SubnetMap()
	for _, m := range subnets {
		shown.Subnets = append(shown.Subnets, Subnet{m.Real.String(), m.Virtual.String()})
	}
	for _, n := range others {
		v.wrong(c.Name, "%s: %s publishes other virtual subnets than its cluster has in the settings", c.Name, n.Name)
	}
	versions := map[string]map[string]bool{}
	note := func(program, version string) {
		if versions[program] == nil {
			versions[program] = map[string]bool{}
		}
		versions[program][version] = true
	}
	for i := range c.Agents {
		if a := &c.Agents[i]; a.Known() {
			note(inspect.WireGuard, a.Value.Version)
			v.relayed(c, &shown, a)
			if off := a.Value.Forwarding.Off; len(off) > 0 {
				v.wrong(c.Name, "%s: %s doesn't forward packets of its pods: %s", c.Name, a.Pod.Node, some(off, len(off)))
			}
		}
	}
	for i := range c.Mirrors {
		if m := &c.Mirrors[i]; m.Known() {
			note(inspect.ServiceMirror, m.Value.Version)
		}
	}
	for i := range c.Policies {
		if p := &c.Policies[i]; p.Known() {
			note(inspect.NetworkPolicy, p.Value.Version)
		}
	}
	for i := range c.Relays {
		if r := &c.Relays[i]; r.Known() {
			note(inspect.Relay, r.Value.Version)
		}
	}
	for _, w := range c.Workloads.Value {
		shown.Tools = append(shown.Tools, Tool{w.Name, w.Ready, w.Wanted, slices.Sorted(maps.Keys(versions[w.Name]))})
		if w.Ready < w.Wanted {
			v.wrong(c.Name, "%s: %s: %s ready", c.Name, w.Name, cli.Of(int(w.Ready), int(w.Wanted), "pod"))
		}
	}
	if c.Workloads.Known() && len(c.Workloads.Value) == 0 {
		v.wrong(c.Name, "%s: Kube-Semaphore isn't installed", c.Name)
	}
	return shown
}

func (v *View) mesh(from, to *inspect.Cluster) Mesh {
	m := Mesh{From: from.Name, To: to.Name, Rows: names(from), Columns: names(to)}
	if len(m.Columns) == 0 {
		// If the cluster's API server can't be read, its nodes are known from agents.
		m.Columns = peersOf(from, to.Name)
	}
	if inspect.TooMany(len(m.Rows), len(m.Columns)) {
		v.unknown(from.Name, "%s to %s: too many paths between %d and %d nodes", from.Name, to.Name, len(m.Rows), len(m.Columns))
		m.Rows, m.Columns = nil, nil
		return m
	}
	backends, agents := map[string]bool{}, from.Acting()
	var down, small, unknown []string
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
			if err := cmp.Or(remote.Refused, remote.API.Error, remote.Device.Error); err != "" {
				v.wrong(from.Name, "%s: remote %s: %s", row, to.Name, err)
			}
			if remote.Stopping {
				v.wrong(from.Name, "%s: drops packets to pods of %s that would leave in plaintext, the last one %s", row, to.Name, age(v.Taken, remote.LastStopped))
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
					if m.Counts.SmallOnly++; len(small) < few {
						small = append(small, row+" to "+column)
					}
				}
			case Down:
				m.Counts.Down++
				if len(down) < few {
					down = append(down, row+" to "+column)
				}
			default:
				m.Counts.Unknown++
				if len(unknown) < few {
					unknown = append(unknown, row+" to "+column)
				}
			}
		}
		m.Paths = append(m.Paths, paths)
	}
	m.Backends = slices.Sorted(maps.Keys(backends))
	if len(down) > 0 {
		v.wrong(from.Name, "%s to %s: %s down: %s", from.Name, to.Name, cli.Of(m.Counts.Down, len(m.Rows)*len(m.Columns), "path"), some(down, m.Counts.Down))
	}
	if len(small) > 0 {
		v.wrong(from.Name, "%s to %s: %d of %d paths carry small packets only: %s", from.Name, to.Name, m.Counts.SmallOnly, len(m.Rows)*len(m.Columns), some(small, m.Counts.SmallOnly))
	}
	if len(unknown) > 0 {
		v.unknown(from.Name, "%s to %s: %s unknown: %s", from.Name, to.Name, cli.Of(m.Counts.Unknown, len(m.Rows)*len(m.Columns), "path"), some(unknown, m.Counts.Unknown))
	}
	if len(m.Rows)*len(m.Columns) == 0 {
		v.unknown(from.Name, "%s to %s: no nodes are known", from.Name, to.Name)
	}
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
	} else {
		// Older agents report handshakes only.
		p.State, p.Sign = peer.Health, "handshake"
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

// led adds a line if there is no report of a program's leader.
func led[R any](v *View, c *inspect.Cluster, program string, replicas []inspect.Reported[R], leads func(*R) bool) {
	why := "no replica leads"
	for i := range replicas {
		switch r := &replicas[i]; {
		case !r.Known():
			why = r.Pod.Name + ": " + r.Err
		case leads(r.Value):
			return
		}
	}
	if len(replicas) > 0 {
		v.unknown(c.Name, "%s: no report of the leader of %s: %s", c.Name, program, why)
	}
}

func (v *View) mirrors(c *inspect.Cluster) {
	for what, err := range map[string]string{"the services that other clusters mirror": c.Exports.Err, "its global services": c.Shared.Err, "its mirrors": c.Imports.Err} {
		if err != "" && c.Kubernetes.Known() {
			v.unknown(c.Name, "%s: %s: %s", c.Name, what, err)
		}
	}
	led(v, c, inspect.ServiceMirror, c.Mirrors, func(m *statuspage.Mirror) bool { return m.Leading })
	for i := range c.Mirrors {
		m := &c.Mirrors[i]
		if !m.Known() || !m.Value.Leading {
			continue
		}
		for _, s := range m.Value.Services {
			what := cmp.Or(s.Error, s.Held)
			for _, conflict := range s.Conflicts {
				what = cmp.Or(what, "conflict with "+conflict.Cluster+": "+conflict.What)
			}
			for _, cluster := range slices.Sorted(maps.Keys(s.Refused)) {
				what = cmp.Or(what, "endpoints of "+cluster+" are refused: "+s.Refused[cluster])
			}
			if len(s.Overridden) > 0 {
				what = cmp.Or(what, s.Overridden[0].String())
			}
			if len(s.Foreign) > 0 {
				what = cmp.Or(what, "foreign EndpointSlices belong to it: "+some(s.Foreign, len(s.Foreign)))
			}
			if what != "" {
				v.wrong(c.Name, "%s: service %s: %s", c.Name, s.Name, what)
			}
		}
		for _, r := range m.Value.Rejected {
			v.wrong(c.Name, "%s: %s isn't mirrored: %s", c.Name, r.Origin, r.Reason)
		}
		for _, f := range m.Value.Former {
			v.wrong(c.Name, "%s: %s is no longer configured, and still has services (%d) and endpoint slices (%d) there", c.Name, f.Name, f.Services, f.Slices)
		}
		for _, name := range m.Value.Departed {
			v.wrong(c.Name, "%s: services of %s are ignored: it is in SEMAPHORE_DEPARTED_REMOTES", c.Name, name)
		}
		for _, of := range m.Value.Clusters {
			for _, w := range of.Watches {
				if w.Error != "" {
					v.wrong(c.Name, "%s: service mirror: cluster %s, %s: %s", c.Name, of.Name, w.Kind, w.Error)
				}
			}
		}
	}
}

func (v *View) sets(c *inspect.Cluster) {
	led(v, c, inspect.NetworkPolicy, c.Policies, func(p *statuspage.Policy) bool { return p.Leading })
	for i := range c.Policies {
		p := &c.Policies[i]
		if !p.Known() || !p.Value.Leading {
			continue
		}
		for _, remote := range slices.Sorted(maps.Keys(p.Value.Pools.Faults)) {
			v.wrong(c.Name, "%s: IP pools for %s: %s", c.Name, remote, some(p.Value.Pools.Faults[remote], len(p.Value.Pools.Faults[remote])))
		}
		for j := range p.Value.Remotes {
			r := &p.Value.Remotes[j]
			if r.API.Error != "" {
				v.wrong(c.Name, "%s: network sets of %s: %s", c.Name, r.Name, r.API.Error)
			}
			for _, name := range slices.Sorted(maps.Keys(r.Failing)) {
				v.wrong(c.Name, "%s: network set %s: %s", c.Name, name, r.Failing[name])
			}
			for _, s := range r.Sets {
				if s.NameTaken != "" {
					v.wrong(c.Name, "%s: %s", c.Name, s.NameTaken)
				}
			}
			for i := range r.Overridden {
				v.wrong(c.Name, "%s: %s", c.Name, r.Overridden[i].String())
			}
		}
	}
}

// credentials adds lines for API servers that don't accept what programs have on disk, although
// watches that were opened before may continue, and for tokens that aren't renewed: one for all
// agents with the same fault.
func (v *View) credentials(c *inspect.Cluster) {
	type fault struct{ program, text string }
	var order []fault
	var line []func(cluster, format string, args ...any)
	nodes := map[fault][]string{}
	for t := range c.CredentialChecks() {
		add := v.wrong
		text := "a request to " + t.Remote + " with the credentials on disk: " + t.Error
		switch {
		case t.Error != "":
		case c.Overdue(&t.CredentialCheck):
			text = "the token for " + t.Remote + " on disk expires at " + t.Expires.UTC().Format(time.RFC3339) + " and hasn't been renewed"
		case t.Unanswered():
			add, text = v.unknown, "a request to "+t.Remote+" with the credentials on disk isn't answered yet"
		default:
			continue
		}
		f := fault{t.Program, text}
		if _, known := nodes[f]; !known {
			order, line = append(order, f), append(line, add)
		}
		nodes[f] = append(nodes[f], t.Node)
	}
	for i, f := range order {
		on := ""
		if all := nodes[f]; all[0] != "" {
			on = " on " + some(all, len(all))
		}
		line[i](c.Name, "%s: %s%s: %s", c.Name, f.program, on, f.text)
	}
}

// relayed counts an agent that reads the objects of semaphore-relay.
func (v *View) relayed(c *inspect.Cluster, shown *Cluster, a *inspect.Reported[statuspage.Agent]) {
	if a.Value.RemotesFrom != inspect.RemotesFromRelay || a.Value.Standby != nil {
		return
	}
	if shown.Relay == nil {
		shown.Relay = &Relay{Clusters: len(c.Stored.Value)}
	}
	shown.Relay.Agents++
	if behind := c.Behind(a.Value); len(behind) > 0 {
		v.wrong(c.Name, "%s: %s hasn't read the latest nodes of %s from semaphore-relay", c.Name, a.Pod.Node, cli.Some(few, behind...))
		return
	}
	if c.Stored.Known() {
		shown.Relay.Current++
	}
}

func (v *View) relays(c *inspect.Cluster) {
	led(v, c, inspect.Relay, c.Relays, func(r *statuspage.Relay) bool { return r.Leading })
	for i := range c.Relays {
		r := &c.Relays[i]
		if !r.Known() || !r.Value.Leading {
			continue
		}
		for j := range r.Value.Clusters {
			of := &r.Value.Clusters[j]
			if of.API.Error != "" {
				v.wrong(c.Name, "%s: relay: nodes of %s: %s", c.Name, of.Name, of.API.Error)
			}
			if of.API.Synced && of.Incomplete != "" {
				v.wrong(c.Name, "%s: relay: the objects of %s are incomplete, so that agents add its nodes and remove none: %s", c.Name, of.Name, of.Incomplete)
			}
			for _, name := range slices.Sorted(maps.Keys(of.Failing)) {
				v.wrong(c.Name, "%s: relay: object %s: %s", c.Name, name, of.Failing[name])
			}
			for k := range of.Overridden {
				v.wrong(c.Name, "%s: relay: %s", c.Name, of.Overridden[k].String())
			}
		}
	}
}

// few is the number of items that some names.
const few = 5

// some joins the first items of a list, and counts the rest of all.
func some(list []string, all int) string {
	list = list[:min(len(list), few)]
	if all == len(list) {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list, ", "), all-len(list))
}
