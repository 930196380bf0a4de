// Package withdrawal decides which endpoints of remote nodes are withdrawn, by what local
// nodes report of the paths to them.
package withdrawal

import (
	"iter"
	"maps"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/pathreport"
)

// Node is a node of a remote cluster.
type Node struct{ Cluster, Name string }

// Table has the path reports of local nodes, and decides which remote nodes have their
// endpoints withdrawn. K identifies what has endpoints.
//
//	| a remote node is reported down by          | its endpoints   |
//	| ------------------------------------------ | --------------- |
//	| more than half of the ready local nodes    | are withdrawn   |
//	| fewer: the fault is likely local           | stay            |
//	| none, or by expired reports                | stay            |
//
// The work for a changed report is proportional to the change.
type Table[K comparable] struct {
	ready   map[string]bool // ready local nodes
	reports map[string]*received
	counted map[string]*pathreport.Report // valid reports of ready nodes, by node
	remotes map[string]*counts
	// next is at or before the time when the first report expires.
	next time.Time
	// readFailed is when reading reports last failed: renewals may have been missed.
	readFailed time.Time

	verdicts map[Node]*verdict
	due      map[Node]time.Time // when to update a verdict without a change
	dueNext  time.Time          // at or before the first of due; zero: none
	// origins are those with endpoints on a node, and their number of slices.
	origins map[Node]map[K]int
	nodes   map[string]map[string]struct{} // those of origins, by cluster

	touched map[Node]struct{}
	all     map[string]struct{} // remotes whose nodes are all to be updated
}

// received is a report as last observed.
type received struct {
	*pathreport.Report
	seen time.Time // of its last change, by the local clock
}

// counts counts the reports about one remote: all counts those of kind AllBut, nodes the
// difference from that per node.
type counts struct {
	all   int
	nodes map[string]int
}

// New returns an empty table.
func New[K comparable]() *Table[K] {
	return &Table[K]{
		ready: map[string]bool{}, reports: map[string]*received{}, counted: map[string]*pathreport.Report{},
		remotes: map[string]*counts{}, verdicts: map[Node]*verdict{}, due: map[Node]time.Time{},
		origins: map[Node]map[K]int{}, nodes: map[string]map[string]struct{}{},
		touched: map[Node]struct{}{}, all: map[string]struct{}{},
	}
}

// SetNode updates whether a local node is ready.
func (p *Table[K]) SetNode(name string, ready bool) {
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

// Report updates the report of a local node; nil: it was deleted.
func (p *Table[K]) Report(node string, r *pathreport.Report, now time.Time) {
	if r == nil {
		delete(p.reports, node)
		p.recount(node)
		return
	}
	if before := p.reports[node]; before != nil && before.Equal(r) {
		r = before.Report // renewed
	}
	p.reports[node] = &received{r, now}
	p.next = earliest(p.next, now.Add(pathreport.Expiry))
	p.recount(node)
}

// expire removes expired reports.
func (p *Table[K]) expire(now time.Time) {
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
func (p *Table[K]) recount(node string) {
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

func (p *Table[K]) count(r *pathreport.Report, n int) {
	for remote, down := range r.Remotes {
		c := p.remotes[remote]
		if c == nil {
			c = &counts{nodes: map[string]int{}}
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
			p.touched[Node{remote, node}] = struct{}{}
		}
		if c.all == 0 && len(c.nodes) == 0 {
			delete(p.remotes, remote)
		}
	}
}

// Down returns the number of ready local nodes that report a remote node as down.
func (p *Table[K]) Down(n Node) int {
	if c := p.remotes[n.Cluster]; c != nil {
		return c.all + c.nodes[n.Name]
	}
	return 0
}

// Place adds change to the number of an origin's slices with an endpoint on a node.
func (p *Table[K]) Place(n Node, id K, change int) {
	at := p.origins[n]
	if at == nil {
		at = map[K]int{}
		p.origins[n] = at
		if p.nodes[n.Cluster] == nil {
			p.nodes[n.Cluster] = map[string]struct{}{}
		}
		p.nodes[n.Cluster][n.Name] = struct{}{}
		if len(p.remotes) > 0 {
			p.touched[n] = struct{}{} // it has no verdict yet
		}
	}
	if at[id] += change; at[id] <= 0 {
		delete(at, id)
	}
	if len(at) == 0 {
		delete(p.origins, n)
		if delete(p.nodes[n.Cluster], n.Name); len(p.nodes[n.Cluster]) == 0 {
			delete(p.nodes, n.Cluster)
		}
	}
}

// Judge updates verdicts, and calls changed for the nodes whose verdict has changed.
func (p *Table[K]) Judge(now time.Time, changed func(n Node, withdrawn bool)) {
	p.expire(now)
	p.revisit(now)
	for remote := range p.all {
		for node := range p.nodes[remote] {
			p.touched[Node{remote, node}] = struct{}{}
		}
		if c := p.remotes[remote]; c != nil {
			for node := range c.nodes {
				p.touched[Node{remote, node}] = struct{}{}
			}
		}
		for n := range p.verdicts {
			if n.Cluster == remote {
				p.touched[n] = struct{}{}
			}
		}
	}
	for n := range p.touched {
		if p.update(now, n) {
			changed(n, p.Withdrawn(n))
		}
	}
	clear(p.all)
	p.touched = map[Node]struct{}{} // clearing a map takes time in proportion to its largest size
}

// revisit adds the nodes whose verdicts are due to touched.
func (p *Table[K]) revisit(now time.Time) {
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
func (p *Table[K]) update(now time.Time, n Node) (changed bool) {
	down := 2*p.Down(n) > len(p.ready) && p.Down(n) > 0
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

// Withdrawn reports whether the endpoints on a remote node are withdrawn.
func (p *Table[K]) Withdrawn(n Node) bool {
	v := p.verdicts[n]
	return v != nil && v.withdrawn
}

// Due returns when judge is due without an event; zero: never.
func (p *Table[K]) Due() time.Time { return earliest(p.next, p.dueNext) }

// Withdrawal is a node whose endpoints are withdrawn.
type Withdrawal struct {
	Node
	Since      time.Time
	ReportedBy int // ready local nodes
	Origins    int // with endpoints on it
}

// Withdrawals returns the nodes whose endpoints are withdrawn, in any order.
func (p *Table[K]) Withdrawals() []Withdrawal {
	var all []Withdrawal
	for n, v := range p.verdicts {
		if v.withdrawn {
			all = append(all, Withdrawal{n, v.since, p.Down(n), len(p.origins[n])})
		}
	}
	return all
}

// Origins returns what has endpoints on a node.
func (p *Table[K]) Origins(n Node) iter.Seq[K] { return maps.Keys(p.origins[n]) }

// ReadFailed records that reading reports failed: renewals may have been missed.
func (p *Table[K]) ReadFailed(now time.Time) { p.readFailed = now }

// Ready returns the number of ready local nodes.
func (p *Table[K]) Ready() int { return len(p.ready) }

// Reports returns the number of reports of ready local nodes.
func (p *Table[K]) Reports() int { return len(p.counted) }
