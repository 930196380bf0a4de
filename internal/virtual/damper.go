package virtual

import "time"

const (
	// firstWait is the minimum time between two changes of a node's map. It doubles while there
	// are further changes, up to longestWait. A map is changed by an administrator, and each
	// change rewrites all endpoints on the node.
	firstWait, longestWait = 10 * time.Second, 10 * time.Minute
	// sweepEvery is the interval of forgetting nodes.
	sweepEvery = time.Minute
)

// pace is until when something stays as it is.
//
//	change   change                      change
//	|        |                           |
//	|--wait--|(delayed)                  | immediate again
//	         |------2 * wait------|
type pace struct {
	wait  time.Duration
	until time.Time
}

// next records a change.
func (p *pace) next(now time.Time) {
	if p.over(now) {
		p.wait = firstWait
	} else {
		p.wait = min(2*p.wait, longestWait)
	}
	p.until = now.Add(p.wait)
}

// over reports whether earlier changes have no effect any more.
func (p *pace) over(now time.Time) bool { return now.Sub(p.until) >= p.wait }

// damper delays changes of maps that follow another one too soon. notify is called when one is
// due.
type damper struct {
	notify func()
	nodes  map[string]*pace
	later  map[string]*Node // what delayed nodes publish by now; nil: they were deleted
	rest   pace             // of the maps for addresses on no known node
	first  time.Time        // when the first change is due; zero: none
	timer  *time.Timer
	sweep  time.Time
}

func newDamper(notify func()) damper {
	return damper{notify: notify, nodes: map[string]*pace{}, later: map[string]*Node{}}
}

// due reports whether a delayed change is due.
func (d *damper) due(now time.Time) bool { return !d.first.IsZero() && !now.Before(d.first) }

// delay notes when a change is due.
func (d *damper) delay(now, until time.Time) {
	if !d.first.IsZero() && !until.Before(d.first) {
		return
	}
	if d.first = until; d.timer != nil {
		d.timer.Stop()
	}
	d.timer = time.AfterFunc(until.Sub(now), d.notify)
}

// node calls update with what a node publishes, or delays that. update reports whether it is a
// change of a known node.
func (d *damper) node(now time.Time, name string, n *Node, update func(string, *Node) bool) {
	p := d.nodes[name]
	if p != nil && now.Before(p.until) {
		d.later[name] = n
		d.delay(now, p.until)
		return
	}
	delete(d.later, name)
	if !update(name, n) {
		return
	}
	if p == nil {
		p = &pace{}
		d.nodes[name] = p
	}
	p.next(now)
}

// release calls update for delayed nodes that are due, and forgets those that have not changed
// for long.
func (d *damper) release(now time.Time, update func(string, *Node) bool) {
	if d.due(now) {
		d.first = time.Time{}
		for name, n := range d.later {
			d.node(now, name, n, update)
		}
	}
	if now.Before(d.sweep) {
		return
	}
	d.sweep = now.Add(sweepEvery)
	for name, p := range d.nodes {
		if _, delayed := d.later[name]; !delayed && p.over(now) {
			delete(d.nodes, name)
		}
	}
}

// agreement reports whether the maps for addresses on no known node may change now.
func (d *damper) agreement(now time.Time) bool {
	if now.Before(d.rest.until) {
		d.delay(now, d.rest.until)
		return false
	}
	d.rest.next(now)
	return true
}
