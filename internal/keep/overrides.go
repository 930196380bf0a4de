package keep

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
)

// Bounds of the wait before an overridden write is repeated.
const (
	firstWait   = 250 * time.Millisecond
	longestWait = 5 * time.Minute
	// longestUrgent is that of an urgent write.
	longestUrgent = 10 * time.Second
	// Lasting is the time for which a write must last so that the object no longer counts as
	// overridden by another client.
	Lasting = time.Minute
	// Calm is the time after which changes by others are forgotten, and after which a write is
	// tried again that the API server has changed: the end of an admission policy shows in no
	// object.
	Calm = 2 * longestWait
	// soon is the minimum time for which a write must last so that its repetition doesn't
	// wait longer than the last one.
	soon = 30 * time.Second
	// maxLasting and maxOverridden are the maximum numbers of remembered objects that were not
	// overridden, and that were: others create and delete them at their rate. Beyond that the
	// first written ones are forgotten.
	maxLasting    = 10_000
	maxOverridden = 50_000
	// mostSeen is the number of different states that others may leave within Calm without
	// a wait, such as a person who edits an object.
	mostSeen = 16
)

// Write is a write of one object.
type Write struct {
	// Object identifies the object in logs, such as "service x".
	Object string
	// Have is a fingerprint of the observed fields that we set, Want of the desired ones. 0:
	// the object doesn't exist, or must not.
	Have, Want uint64
	// Urgent: the object has something that must be removed, such as an address.
	Urgent bool
	// By is the field manager of the last foreign change of the object; empty: unknown.
	By string
}

// overridden is what Wrote and Review know of one object. It is retained for Calm after the
// last write; if the object was deleted and never overridden, for soon.
//
//	| observed state            | desired as last written            | another one |
//	| ------------------------- | ---------------------------------- | ----------- |
//	| as in the last response   | not again before Calm              | write       |
//	| another, not seen before  | write, after n steps wait          | write       |
//	| another, seen before      | wait, as after n+1 steps           | write       |
//
// The nth step is a wait of firstWait * 2^(n-1) since the last write. A change to a state that
// was seen before is a step if the write lasted for less than soon, or twice its wait. So the
// client that reverts each write at once is followed with growing waits, and the one that does
// so once an hour is repaired at once, as are different edits.
type overridden struct {
	want, got uint64        // of the last write, and its response
	at        time.Time     // of the last write
	lasted    time.Duration // until a change by others was observed; 0: none was
	settled   time.Time     // since when the object is as desired; zero: it isn't
	times     int           // changes by others within Calm of each other
	steps     int           // see above
	seen      []uint64      // states after changes by others
	last      time.Time     // of them
	fields    []string
	by        string
	since     time.Time
	kind      string // for the log; empty: not logged as overridden

	in      *list.List // of Overrides
	element *list.Element
}

func (r *overridden) returned() bool { return r.got != r.want }

// lasts reports whether all writes have lasted so far.
func (r *overridden) lasts() bool { return !r.returned() && r.times == 0 }

// open reports whether the object counts as overridden: a single change by another client
// is repaired and isn't a problem, and one that was repaired for Lasting is over.
func (r *overridden) open(now time.Time) bool {
	return r.returned() || r.times > 1 && (r.settled.IsZero() || now.Sub(r.settled) < Lasting)
}

func (r *overridden) wait(have uint64, urgent bool) time.Duration {
	steps := r.steps
	if slices.Contains(r.seen, have) {
		steps++
	}
	if steps == 0 {
		return 0
	}
	most, wait := longestWait, firstWait
	if urgent {
		most = longestUrgent
	}
	for range steps - 1 {
		if wait *= 2; wait >= most {
			return most
		}
	}
	return wait
}

// next returns when a write may be made.
func (r *overridden) next(w *Write) time.Time {
	switch {
	case r.want != w.Want:
		return time.Time{}
	case r.returned() && w.Have == r.got:
		return r.at.Add(Calm)
	default:
		return r.at.Add(r.wait(w.Have, w.Urgent))
	}
}

// Overrides remembers what became of writes, so that a write that others override isn't
// repeated without end: neither if the API server stores something else, nor if another
// client changes the object each time. Writes of a changed desired state never wait. It is
// safe for concurrent use. K is the key of a Writer; a key may have several objects.
type Overrides[K comparable] struct {
	kinds kinds

	mu    sync.Mutex
	keys  map[K]map[string]*overridden // by object
	swept time.Time
	// lasting and overridden have the same objects in the order of their last write.
	lasting, overridden list.List
}

// place is the place of an object in keys.
type place[K comparable] struct {
	key    K
	object string
}

// NewOverrides returns Overrides without writes.
func NewOverrides[K comparable](logger *slog.Logger) *Overrides[K] {
	return &Overrides[K]{
		kinds: newKinds(logger, slog.LevelWarn, "write overridden", "writes no longer overridden"),
		keys:  map[K]map[string]*overridden{},
	}
}

// Review returns how long each of the writes must wait; 0: it may be made now. They are all
// writes that a key needs: other objects of the key are as desired.
func (o *Overrides[K]) Review(ctx context.Context, key K, now time.Time, writes []Write) []time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sweep(ctx, now)
	objects := o.keys[key]
	for object, r := range objects {
		if slices.ContainsFunc(writes, func(w Write) bool { return w.Object == object }) {
			continue
		}
		if r.returned() {
			o.end(ctx, key, object, r)
		} else if r.settled.IsZero() {
			r.settled = now
		}
	}
	waits := make([]time.Duration, len(writes))
	for i := range writes {
		if r := objects[writes[i].Object]; r != nil {
			if !r.settled.IsZero() && writes[i].Have != r.got {
				r.settled, r.lasted = time.Time{}, now.Sub(r.at)
			}
			waits[i] = max(0, r.next(&writes[i]).Sub(now))
		}
	}
	return waits
}

// Wrote records a successful write. Got is a fingerprint of the object in the response; 0: it
// is deleted. Fields are those of the response that differ from the request.
func (o *Overrides[K]) Wrote(ctx context.Context, key K, now time.Time, w *Write, got uint64, fields ...string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	r := o.keys[key][w.Object]
	if r == nil {
		r = &overridden{got: w.Have, since: now}
		if o.keys[key] == nil {
			o.keys[key] = map[string]*overridden{}
		}
		o.keys[key][w.Object] = r
	}
	if now.Sub(r.last) >= Calm {
		r.times, r.steps, r.seen = 0, 0, nil
	}
	if !r.open(now) {
		r.since = now
	}
	if w.Have != r.got {
		switch known := slices.Contains(r.seen, w.Have); {
		case !known && len(r.seen) < mostSeen:
			r.seen = append(r.seen, w.Have)
		case r.lasted <= max(soon, 2*r.wait(w.Have, false)):
			r.steps++
		}
		r.times++
		r.last, r.by = now, w.By
	}
	r.want, r.got, r.at, r.fields, r.settled, r.lasted = w.Want, got, now, fields, now, 0
	o.note(ctx, w.Object, r, now)
	o.bound(ctx, place[K]{key, w.Object}, r)
}

// bound puts a written object at the end of its list, and forgets the first ones beyond its
// bound. Callers hold mu.
func (o *Overrides[K]) bound(ctx context.Context, of place[K], r *overridden) {
	if r.in != nil {
		r.in.Remove(r.element)
	}
	most := maxOverridden
	if r.in = &o.overridden; r.lasts() {
		r.in, most = &o.lasting, maxLasting
	}
	r.element = r.in.PushBack(of)
	for r.in.Len() > most {
		first, _ := r.in.Front().Value.(place[K])
		o.end(ctx, first.key, first.object, o.keys[first.key][first.object])
	}
}

// note logs the first object that is overridden in one way, and the end for the last one.
func (o *Overrides[K]) note(ctx context.Context, object string, r *overridden, now time.Time) {
	kind := ""
	switch {
	case r.returned():
		kind = "the API server stores another " + cmp.Or(strings.Join(r.fields, ", "), "object")
	case r.open(now):
		kind = cmp.Or(r.by, "another client") + " changes it after each write"
	}
	o.kinds.move(ctx, r.kind, kind, errors.New(kind), "object", object)
	r.kind = kind
}

// end forgets an object. Callers hold mu.
func (o *Overrides[K]) end(ctx context.Context, key K, object string, r *overridden) {
	r.in.Remove(r.element)
	delete(o.keys[key], object)
	if len(o.keys[key]) == 0 {
		delete(o.keys, key)
	}
	o.note(ctx, object, &overridden{kind: r.kind}, time.Time{})
}

// sweep forgets objects without a write for Calm. Those whose next attempt is due are
// retained for another one. Callers hold mu.
func (o *Overrides[K]) sweep(ctx context.Context, now time.Time) {
	if now.Sub(o.swept) < time.Minute {
		return
	}
	o.swept = now
	for key, objects := range o.keys {
		for object, r := range objects {
			age := now.Sub(r.at)
			if age >= 2*Calm || age >= Calm && !r.returned() || age >= soon && r.want == 0 && r.lasts() {
				o.end(ctx, key, object, r)
			} else if r.kind != "" && !r.open(now) {
				o.note(ctx, object, r, now)
			}
		}
	}
}

// Open returns the overridden objects of all keys.
func (o *Overrides[K]) Open(now time.Time) map[K][]statuspage.Override {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := map[K][]statuspage.Override{}
	for key := range o.keys {
		if open := o.of(key, now); len(open) > 0 {
			all[key] = open
		}
	}
	return all
}

// Of returns the overridden objects of a key.
func (o *Overrides[K]) Of(key K, now time.Time) []statuspage.Override {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.of(key, now)
}

func (o *Overrides[K]) of(key K, now time.Time) []statuspage.Override {
	var open []statuspage.Override
	for object, r := range o.keys[key] {
		if !r.open(now) {
			continue
		}
		v := statuspage.Override{Object: object, Returned: r.returned(), Fields: r.fields, Since: r.since}
		if v.Next = r.at.Add(Calm); !v.Returned {
			v.By, v.Next = r.by, r.at.Add(r.wait(r.seen[len(r.seen)-1], false))
		}
		open = append(open, v)
	}
	slices.SortFunc(open, func(a, b statuspage.Override) int { return strings.Compare(a.Object, b.Object) })
	return open
}
