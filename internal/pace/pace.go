// Package pace limits how many bytes a program writes to its API server for each cluster. etcd
// keeps all versions of an object until they are compacted: a cluster whose objects change all
// the time would fill it, and all agents and kube-proxies get each version.
//
// A controller asks before it writes, and is called when it is an object's turn:
//
//	p := pace.New(pace.Config[Key]{Ready: func(k Key, _ bool) { queue.Add(k) }})
//
//	func reconcile(key Key) error {
//		want, have := ...
//		if !p.Take(key, pace.Write{Cluster: "gcp", Namespace: "shop", Object: want.Name, Bytes: size(want)})[0] {
//			return nil // or keep.ErrWaits; Ready adds the key again
//		}
//		return client.Patch(want) // as it is now: changes meanwhile share the write
//	}
//
// Each call of reconcile that has nothing to write calls p.Take(key) without writes, so that the
// key's turns end. Deletions aren't paced: they cost little, and there is one for each creation.
//
// # Order
//
// Clusters get equal parts of the total, namespaces equal parts of their cluster's, and objects
// equal parts of their namespace's, in bytes. On each level a write waits until each of the others
// that wait has got as many bytes: a small one of what changes seldom comes next, whatever the
// number and size of the others, and a large one isn't held up for ever.
//
// A write that takes an address away is paced, too: otherwise a remote could cause any number of
// them by adding many addresses at once and removing one after the other. It comes before the
// other writes of its namespace, and within the burst all writes are made at once.
//
// # Budget
//
// An API server compacts each five minutes what was overwritten five minutes before or earlier, so
// etcd has what was written in ten minutes. With the default limits a program writes at most
// 32 MiB + 600 s * 1.25 MiB/s = 782 MiB in these, semaphore-relay less than 100 MiB: all three
// programs together less than 1.65 GiB. etcd's default quota is 2 GiB.
//
// [golang.org/x/time/rate] has the buckets. It lacks an order of those that wait: the first one to
// ask is the first one served, a thousand large ones before a small one.
package pace

import (
	"fmt"
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Limit is a rate in bytes per second, after a burst in bytes.
type Limit struct{ Rate, Burst int }

// Defaults of a Config. The total exceeds the limit of one cluster, so that a single one that
// writes at its limit doesn't delay the others.
const (
	DefaultRate       = 1 << 20
	DefaultBurst      = 16 << 20
	DefaultTotalRate  = 5 << 18
	DefaultTotalBurst = 32 << 20
)

// Config describes a Pacer.
type Config[K comparable] struct {
	// Cluster is the limit of each cluster, Total that of all together; zero: the defaults.
	Cluster, Total Limit
	// Ready is called when it is the turn of a write that Take refused, with its Write.Urgent. It
	// must not block.
	Ready func(key K, urgent bool)
}

// Write is a write of one object.
type Write struct {
	// Cluster is the cluster for which the object is written, Namespace the one there.
	Cluster, Namespace string
	// Object identifies the object among those of a key.
	Object string
	// Bytes is the size of the whole object, which is what is stored, also by a patch. 0: it is
	// not paced.
	Bytes int
	// Urgent is whether the write takes an address away.
	Urgent bool
}

// Pacer decides which write comes next. It is safe for concurrent use.
type Pacer[K comparable] struct {
	cfg Config[K]

	mu    sync.Mutex
	all   flow[K]
	turns map[K]map[string]*turn[K] // by key and object
	timer *time.Timer               // until the next turn
}

// turn is a write that waits, or one whose key was called and that wasn't taken yet.
type turn[K comparable] struct {
	Write
	key     K
	granted bool
	path    [4]*flow[K] // all clusters, its cluster, namespace and object
}

// New returns a Pacer.
func New[K comparable](cfg Config[K]) *Pacer[K] {
	if cfg.Cluster == (Limit{}) {
		cfg.Cluster = Limit{DefaultRate, DefaultBurst}
	}
	if cfg.Total == (Limit{}) {
		cfg.Total = Limit{DefaultTotalRate, DefaultTotalBurst}
	}
	return &Pacer[K]{cfg: cfg, all: flow[K]{bucket: cfg.Total.bucket()}, turns: map[K]map[string]*turn[K]{}}
}

func (l Limit) bucket() *rate.Limiter { return rate.NewLimiter(rate.Limit(l.Rate), l.Burst) }

// SetRates changes the rates of each cluster and of all.
func (p *Pacer[K]) SetRates(cluster, total int) {
	p.mu.Lock()
	p.cfg.Cluster.Rate = cluster
	p.all.bucket.SetLimit(rate.Limit(total))
	for _, f := range p.all.parts {
		f.bucket.SetLimit(rate.Limit(cluster))
	}
	p.mu.Unlock()
	p.wake()
}

// Take returns, for all writes that a key has to make, which ones may be made now. They are paid
// for by that, whether they are made or not. Ready is called with the key when it is the turn of
// another one. Turns of other writes of the key end.
func (p *Pacer[K]) Take(key K, writes ...Write) []bool {
	granted := make([]bool, len(writes))
	p.mu.Lock()
	now := time.Now()
	before, after := p.turns[key], map[string]*turn[K]{}
	for i, w := range writes {
		t := before[w.Object]
		switch {
		case w.Bytes <= 0:
			granted[i] = true
			continue
		case t != nil && t.granted:
			granted[i] = true
			p.pay(now, t, max(0, w.Bytes-t.Bytes))
			continue
		case t != nil && t.Cluster == w.Cluster && t.Namespace == w.Namespace:
			t.Write = w
			delete(before, w.Object)
		default:
			t = &turn[K]{Write: w, key: key}
			p.join(t)
		}
		after[w.Object] = t
	}
	for _, t := range before {
		if !t.granted {
			t.leave()
		}
	}
	p.turns[key] = after
	ready := p.next(now)
	for i, w := range writes {
		if t := after[w.Object]; w.Bytes > 0 && t != nil && t.granted {
			granted[i] = true
			delete(after, w.Object)
		}
	}
	if len(after) == 0 {
		delete(p.turns, key)
	}
	p.mu.Unlock()
	for _, t := range ready {
		if t.key != key {
			p.cfg.Ready(t.key, t.Urgent)
		}
	}
	return granted
}

// Waiting returns the number of writes that wait, by cluster.
func (p *Pacer[K]) Waiting() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	count := map[string]int{}
	for name, f := range p.all.parts {
		if f.waiting > 0 {
			count[name] = f.waiting
		}
	}
	return count
}

// wake grants what is due by now.
func (p *Pacer[K]) wake() {
	p.mu.Lock()
	ready := p.next(time.Now())
	p.mu.Unlock()
	for _, t := range ready {
		p.cfg.Ready(t.key, t.Urgent)
	}
}

// next grants and returns the turns that are due. Callers hold mu.
func (p *Pacer[K]) next(now time.Time) (ready []*turn[K]) {
	for p.all.wait(now) == 0 {
		t := p.all.next(now)
		if t == nil {
			break
		}
		p.pay(now, t, t.Bytes)
		t.leave()
		t.granted = true
		ready = append(ready, t)
	}
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
	first := time.Duration(math.MaxInt64)
	for _, f := range p.all.parts {
		if f.waiting > 0 {
			first = min(first, max(f.wait(now), p.all.wait(now)))
		}
	}
	if first < math.MaxInt64 {
		p.timer = time.AfterFunc(first, p.wake)
	}
	return ready
}

// flow is what is written for all clusters, for a cluster, a namespace or an object. Its parts
// share it evenly, by the virtual time of fair queueing: the bytes that each of the parts that
// wait has got.
//
//	         start                  start + bytes
//	part A     |------------------------>|            comes second
//	part B         |------>|                          comes first
//	               now: where a part starts that didn't wait
type flow[K comparable] struct {
	bucket  *rate.Limiter // nil: of a namespace, or an object
	parts   map[string]*flow[K]
	turn    *turn[K] // of an object that waits
	waiting int      // turns in it
	busy    int      // parts that might have come next, the last time

	now         float64 // the virtual time of its parts
	start, paid float64 // in the virtual time of its parent: its next turn, and the end of its last one
}

// wait returns how long nothing may be written.
func (f *flow[K]) wait(now time.Time) time.Duration {
	if f.bucket == nil {
		return 0
	}
	if missing := 1 - f.bucket.TokensAt(now); missing > 0 {
		return max(1, time.Duration(missing/float64(f.bucket.Limit())*float64(time.Second)))
	}
	return 0
}

// next returns the turn that comes next; nil: nothing waits, or only parts that may not write. It
// forgets parts that have nothing left to pay for.
func (f *flow[K]) next(now time.Time) (first *turn[K]) {
	least := math.Inf(1)
	f.busy = 0
	for name, part := range f.parts {
		switch {
		case part.waiting == 0 && part.bucket == nil && part.paid <= f.now:
			delete(f.parts, name)
			continue
		case part.waiting == 0:
			continue
		case part.wait(now) > 0: // what the others get meanwhile isn't owed to it
			part.start = max(part.start, f.now)
			continue
		}
		f.busy++
		t := part.turn
		if t == nil {
			t = part.next(now)
		}
		end := part.start + float64(t.Bytes)
		if part.turn != nil && first != nil && t.Urgent != first.Urgent {
			if t.Urgent {
				first, least = t, end
			}
			continue
		}
		if end < least {
			first, least = t, end
		}
	}
	return first
}

// join adds a turn.
func (p *Pacer[K]) join(t *turn[K]) {
	f := &p.all
	t.path[0] = f
	for i, name := range []string{t.Cluster, t.Namespace, fmt.Sprint(t.key, " ", t.Object)} {
		part := f.parts[name]
		if part == nil {
			part = &flow[K]{}
			if i == 0 {
				part.bucket = p.cfg.Cluster.bucket()
			}
			if f.parts == nil {
				f.parts = map[string]*flow[K]{}
			}
			f.parts[name] = part
		}
		if part.waiting == 0 {
			part.start = max(f.now, part.paid)
		}
		part.waiting++
		f, t.path[i+1] = part, part
	}
	f.turn = t
}

// leave removes a turn that waits.
func (t *turn[K]) leave() {
	for _, part := range t.path[1:] {
		part.waiting--
	}
	t.path[len(t.path)-1].turn = nil
}

// pay charges bytes to a turn's cluster, namespace and object.
func (p *Pacer[K]) pay(now time.Time, t *turn[K], bytes int) {
	for i, f := range t.path {
		for left := bytes; f.bucket != nil && left > 0; left -= f.bucket.Burst() {
			f.bucket.ReserveN(now, min(left, f.bucket.Burst()))
		}
		if i > 0 {
			parent := t.path[i-1]
			parent.now += float64(bytes) / float64(max(1, parent.busy))
			f.paid = f.start + float64(bytes)
			f.start = f.paid
		}
	}
}
