package mirror

import (
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/paths"
)

// remoteNode is a node of a remote.
type remoteNode struct{ cluster, node string }

// pathTable is what the local nodes report of the paths to remote nodes, and which of
// those have their endpoints withdrawn for it:
//
//	| a remote node that                                  | its endpoints   |
//	| --------------------------------------------------- | --------------- |
//	| more than half of the ready local nodes report down | are withdrawn   |
//	| fewer do: some have a broken cable                  | stay            |
//	| nobody reports, or with reports that are too old    | stay            |
//
// Each change of a report costs what it changes, and not what there is.
type pathTable struct {
	ready   map[string]bool // local nodes that are
	reports map[string]*pathReport
	counted map[string]*paths.Report // those that count, by node
	remotes map[string]*pathCount
	// next is not after the moment when the first report becomes too old.
	next time.Time
	// trouble is when reports could last not be read: nobody knows whether they
	// have been renewed.
	trouble time.Time

	verdicts map[remoteNode]*verdict
	due      map[remoteNode]time.Time // when to look at a verdict without a change
	dueNext  time.Time                // not after the first of them; zero: there is none
	// origins are those with endpoints on a node, and how many slices of each.
	origins map[remoteNode]map[ID]int
	nodes   map[string]map[string]struct{} // those of origins, by cluster

	touched map[remoteNode]struct{}
	all     map[string]struct{} // remotes of which all nodes are to be looked at
}

// pathReport is a report as it was last seen.
type pathReport struct {
	*paths.Report
	seen time.Time // when it was last seen to change, by the own clock
}

// pathCount counts reports about one remote: those that say that all of its nodes are
// down, and how many more, or fewer, say that of a node.
type pathCount struct {
	all   int
	nodes map[string]int
}

func newPathTable() *pathTable {
	return &pathTable{
		ready: map[string]bool{}, reports: map[string]*pathReport{}, counted: map[string]*paths.Report{},
		remotes: map[string]*pathCount{}, verdicts: map[remoteNode]*verdict{}, due: map[remoteNode]time.Time{},
		origins: map[remoteNode]map[ID]int{}, nodes: map[string]map[string]struct{}{},
		touched: map[remoteNode]struct{}{}, all: map[string]struct{}{},
	}
}

// node takes in whether a local node is ready.
func (p *pathTable) node(name string, ready bool) {
	if p.ready[name] == ready {
		return
	}
	if ready {
		p.ready[name] = true
	} else {
		delete(p.ready, name)
	}
	p.recount(name)
	for remote := range p.remotes {
		p.all[remote] = struct{}{} // half of them are another number
	}
}

// report takes in that the report of a local node came or changed; nil: it went.
func (p *pathTable) report(node string, r *paths.Report, now time.Time) {
	if r == nil {
		delete(p.reports, node)
		p.recount(node)
		return
	}
	if before := p.reports[node]; before != nil && before.Equal(r) {
		r = before.Report // renewed
	}
	p.reports[node] = &pathReport{r, now}
	p.next = earliest(p.next, now.Add(paths.Expiry))
	p.recount(node)
}

// expire has reports that are too old count no more.
func (p *pathTable) expire(now time.Time) {
	if p.next.IsZero() || now.Before(p.next) {
		return
	}
	p.next = time.Time{}
	for node, r := range p.reports {
		seen := r.seen
		if p.trouble.After(seen) {
			seen = p.trouble
		}
		until := seen.Add(paths.Expiry)
		if !now.Before(until) {
			r.Report = nil
			delete(p.reports, node)
			p.recount(node)
			continue
		}
		p.next = earliest(p.next, until)
	}
}

// recount counts what a local node reports, and no more what it reported.
func (p *pathTable) recount(node string) {
	var now *paths.Report
	if r := p.reports[node]; r != nil && p.ready[node] {
		now = r.Report
	}
	before := p.counted[node]
	if before == now {
		return
	}
	if delete(p.counted, node); now != nil {
		p.counted[node] = now
	}
	if before != nil {
		p.count(before, -1)
	}
	if now != nil {
		p.count(now, 1)
	}
}

func (p *pathTable) count(r *paths.Report, n int) {
	for remote, down := range r.Remotes {
		c := p.remotes[remote]
		if c == nil {
			c = &pathCount{nodes: map[string]int{}}
			p.remotes[remote] = c
		}
		of := n
		if down.AllBut {
			c.all += n
			of = -n
			p.all[remote] = struct{}{}
		}
		for _, node := range down.Nodes {
			if c.nodes[node] += of; c.nodes[node] == 0 {
				delete(c.nodes, node)
			}
			p.touched[remoteNode{remote, node}] = struct{}{}
		}
		if c.all == 0 && len(c.nodes) == 0 {
			delete(p.remotes, remote)
		}
	}
}

// down returns how many ready local nodes report the path to a remote node as down.
func (p *pathTable) down(n remoteNode) int {
	if c := p.remotes[n.cluster]; c != nil {
		return c.all + c.nodes[n.node]
	}
	return 0
}

// place takes in that a slice of an origin has an endpoint on a node, or no more.
func (p *pathTable) place(n remoteNode, id ID, change int) {
	at := p.origins[n]
	if at == nil {
		at = map[ID]int{}
		p.origins[n] = at
		if p.nodes[n.cluster] == nil {
			p.nodes[n.cluster] = map[string]struct{}{}
		}
		p.nodes[n.cluster][n.node] = struct{}{}
		if len(p.remotes) > 0 {
			p.touched[n] = struct{}{} // nobody has asked about it yet
		}
	}
	if at[id] += change; at[id] <= 0 {
		delete(at, id)
	}
	if len(at) == 0 {
		delete(p.origins, n)
		if delete(p.nodes[n.cluster], n.node); len(p.nodes[n.cluster]) == 0 {
			delete(p.nodes, n.cluster)
		}
	}
}

// judge brings verdicts up to date, and hands out the nodes of which one is another
// one than before.
func (p *pathTable) judge(now time.Time, changed func(n remoteNode, withdrawn bool)) {
	p.expire(now)
	p.remind(now)
	for remote := range p.all {
		for node := range p.nodes[remote] {
			p.touched[remoteNode{remote, node}] = struct{}{}
		}
		if c := p.remotes[remote]; c != nil {
			for node := range c.nodes {
				p.touched[remoteNode{remote, node}] = struct{}{}
			}
		}
		for n := range p.verdicts {
			if n.cluster == remote {
				p.touched[n] = struct{}{}
			}
		}
	}
	for n := range p.touched {
		if p.look(now, n) {
			changed(n, p.withdrawn(n))
		}
	}
	clear(p.all)
	p.touched = map[remoteNode]struct{}{} // to empty a map takes as long as it ever was large
}

// remind has verdicts looked at whose time has come.
func (p *pathTable) remind(now time.Time) {
	if p.dueNext.IsZero() || now.Before(p.dueNext) {
		return
	}
	p.dueNext = time.Time{}
	for n, due := range p.due {
		if now.Before(due) {
			p.dueNext = earliest(p.dueNext, due)
		} else {
			p.touched[n] = struct{}{}
		}
	}
}

// earliest returns the earlier one of two times, of which a zero one is never.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// look brings one verdict up to date, and reports whether it is another one.
func (p *pathTable) look(now time.Time, n remoteNode) (changed bool) {
	down := 2*p.down(n) > len(p.ready) && p.down(n) > 0
	v := p.verdicts[n]
	if v == nil && !down {
		return false
	}
	if v == nil {
		v = &verdict{}
		p.verdicts[n] = v
	}
	before := v.withdrawn
	delete(p.due, n)
	due := v.step(now, down)
	if v.over(now) {
		delete(p.verdicts, n)
	} else if !due.IsZero() {
		p.due[n] = due
		p.dueNext = earliest(p.dueNext, due)
	}
	return v.withdrawn != before
}

// withdrawn reports whether the endpoints on a remote node are.
func (p *pathTable) withdrawn(n remoteNode) bool {
	v := p.verdicts[n]
	return v != nil && v.withdrawn
}

// first returns when judge has something to do without an event; zero: never.
func (p *pathTable) first() time.Time { return earliest(p.next, p.dueNext) }
