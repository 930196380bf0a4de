package mirror

import (
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/pathreport"
)

// remoteNode is a node of a remote.
type remoteNode struct{ cluster, node string }

// pathTable has the path reports of local nodes, and decides which remote nodes have their
// endpoints withdrawn:
//
//	| a remote node is reported down by          | its endpoints   |
//	| ------------------------------------------ | --------------- |
//	| more than half of the ready local nodes    | are withdrawn   |
//	| fewer: the fault is likely local           | stay            |
//	| none, or by expired reports                | stay            |
//
// The work for a changed report is proportional to the change.
type pathTable struct {
	ready   map[string]bool // ready local nodes
	reports map[string]*pathReport
	counted map[string]*pathreport.Report // valid reports of ready nodes, by node
	remotes map[string]*pathCount
	// next is at or before the time when the first report expires.
	next time.Time
	// readFailed is when reading reports last failed: renewals may have been missed.
	readFailed time.Time

	verdicts map[remoteNode]*verdict
	due      map[remoteNode]time.Time // when to update a verdict without a change
	dueNext  time.Time                // at or before the first of due; zero: none
	// origins are those with endpoints on a node, and their number of slices.
	origins map[remoteNode]map[ID]int
	nodes   map[string]map[string]struct{} // those of origins, by cluster

	touched map[remoteNode]struct{}
	all     map[string]struct{} // remotes whose nodes are all to be updated
}

// pathReport is a report as last observed.
type pathReport struct {
	*pathreport.Report
	seen time.Time // of its last change, by the local clock
}

// pathCount counts the reports about one remote: all counts those of kind AllBut, nodes the
// difference from that per node.
type pathCount struct {
	all   int
	nodes map[string]int
}

func newPathTable() *pathTable {
	return &pathTable{
		ready: map[string]bool{}, reports: map[string]*pathReport{}, counted: map[string]*pathreport.Report{},
		remotes: map[string]*pathCount{}, verdicts: map[remoteNode]*verdict{}, due: map[remoteNode]time.Time{},
		origins: map[remoteNode]map[ID]int{}, nodes: map[string]map[string]struct{}{},
		touched: map[remoteNode]struct{}{}, all: map[string]struct{}{},
	}
}

// node updates whether a local node is ready.
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
		p.all[remote] = struct{}{} // the majority has changed
	}
}

// report updates the report of a local node; nil: it was deleted.
func (p *pathTable) report(node string, r *pathreport.Report, now time.Time) {
	if r == nil {
		delete(p.reports, node)
		p.recount(node)
		return
	}
	if before := p.reports[node]; before != nil && before.Equal(r) {
		r = before.Report // renewed
	}
	p.reports[node] = &pathReport{r, now}
	p.next = earliest(p.next, now.Add(pathreport.Expiry))
	p.recount(node)
}

// expire removes expired reports.
func (p *pathTable) expire(now time.Time) {
	if p.next.IsZero() || now.Before(p.next) {
		return
	}
	p.next = time.Time{}
	for node, r := range p.reports {
		seen := r.seen
		if p.readFailed.After(seen) {
			seen = p.readFailed
		}
		until := seen.Add(pathreport.Expiry)
		if !now.Before(until) {
			r.Report = nil
			delete(p.reports, node)
			p.recount(node)
			continue
		}
		p.next = earliest(p.next, until)
	}
}

// recount replaces the counted report of a local node by the current one.
func (p *pathTable) recount(node string) {
	var now *pathreport.Report
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

func (p *pathTable) count(r *pathreport.Report, n int) {
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

// down returns the number of ready local nodes that report a remote node as down.
func (p *pathTable) down(n remoteNode) int {
	if c := p.remotes[n.cluster]; c != nil {
		return c.all + c.nodes[n.node]
	}
	return 0
}

// place adds change to the number of an origin's slices with an endpoint on a node.
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
			p.touched[n] = struct{}{} // it has no verdict yet
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

// judge updates verdicts, and calls changed for the nodes whose verdict has changed.
func (p *pathTable) judge(now time.Time, changed func(n remoteNode, withdrawn bool)) {
	p.expire(now)
	p.revisit(now)
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
		if p.update(now, n) {
			changed(n, p.withdrawn(n))
		}
	}
	clear(p.all)
	p.touched = map[remoteNode]struct{}{} // clearing a map takes time in proportion to its largest size
}

// revisit adds the nodes whose verdicts are due to touched.
func (p *pathTable) revisit(now time.Time) {
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

// earliest returns the earlier one of two times; the zero time is never.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// update updates one verdict, and reports whether it has changed.
func (p *pathTable) update(now time.Time, n remoteNode) (changed bool) {
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

// withdrawn reports whether the endpoints on a remote node are withdrawn.
func (p *pathTable) withdrawn(n remoteNode) bool {
	v := p.verdicts[n]
	return v != nil && v.withdrawn
}

// first returns when judge is due without an event; zero: never.
func (p *pathTable) first() time.Time { return earliest(p.next, p.dueNext) }
