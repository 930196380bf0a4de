package keep

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
)

// Bounds of the wait before an overridden write is repeated.
const (
	firstWait   = 250 * time.Millisecond
	longestWait = 5 * time.Minute
	// longestUrgent is that of an urgent write, and of one that creates an object again.
	longestUrgent = 10 * time.Second
	// Lasting is the time for which a write must last so that the object no longer counts as
	// overridden by another client.
	Lasting = time.Minute
	// Calm is the wait before a write is tried again that the API server has changed: the end of
	// an admission policy shows in no object.
	Calm = 2 * longestWait
	// manyWrites is the number of remembered writes beyond which those that weren't overridden are
	// forgotten, maxWrites that beyond which all are: others create and delete objects at their
	// rate.
	manyWrites = 10_000
	maxWrites  = 50_000
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

// written is the last write of an object. While the object differs again from what is desired, and
// that is still what was written,
//
//	| the object is                         | it is written again                              |
//	| ------------------------------------- | ------------------------------------------------ |
//	| as in the response                    | after Calm                                       |
//	| changed by others, for the nth time   | at once, then firstWait * 2^(n-2) after the last |
//	| changed by others, after it lasted    | at once                                          |
type written struct {
	want, got uint64
	at        time.Time
	settled   time.Time // since when the object is as desired; zero: it isn't
	undone    int       // number of earlier writes in a row that were undone
	since     time.Time // of the first one of these
	by        string    // who has undone the last one; empty: unknown
}

func (w *written) returned() bool { return w.got != w.want }

func (w *written) wait(urgent bool) time.Duration {
	if w.undone == 0 {
		return 0
	}
	longest := longestWait
	if urgent {
		longest = longestUrgent
	}
	return min(firstWait<<min(w.undone-1, 16), longest)
}

// next returns when a write may be made.
func (w *written) next(of *Write) time.Time {
	switch {
	case w.want != of.Want:
		return time.Time{}
	case w.returned() && of.Have == w.got:
		return w.at.Add(Calm)
	default:
		return w.at.Add(w.wait(of.Urgent || of.Have == 0))
	}
}

// open reports whether the object counts as overridden. A single change by another client is
// repaired and isn't a problem.
func (w *written) open(now time.Time) bool {
	return w.returned() || w.undone > 1 && (w.settled.IsZero() || now.Sub(w.settled) < Lasting)
}

// recent reports whether a change of the object counts as one of those that undid earlier writes.
func (w *written) recent(now time.Time) bool { return now.Sub(w.at) < 2*w.wait(false)+Lasting }

// Overrides remembers the last write of each object, so that one that an admission policy or
// another client undoes isn't repeated without end. Writes of a changed desired state never wait.
// It is safe for concurrent use. K is the key of a Writer; a key may have several objects.
type Overrides[K comparable] struct {
	log  *slog.Logger
	rare rate.Sometimes // lines of the log

	mu    sync.Mutex
	last  map[K]map[string]*written // by object
	count int                       // of objects
	many  int                       // at which they are swept
	swept time.Time
}

// NewOverrides returns Overrides without writes.
func NewOverrides[K comparable](logger *slog.Logger) *Overrides[K] {
	return &Overrides[K]{log: logger, rare: rate.Sometimes{First: 3, Interval: time.Minute}, last: map[K]map[string]*written{}, many: manyWrites}
}

// Review returns how long each of the writes must wait; 0: it may be made now. They are all
// writes that a key needs: other objects of the key are as desired.
func (o *Overrides[K]) Review(key K, now time.Time, writes []Write) []time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sweep(now)
	objects := o.last[key]
	for object, last := range objects {
		if slices.ContainsFunc(writes, func(w Write) bool { return w.Object == object }) {
			continue
		}
		if last.got = last.want; last.settled.IsZero() {
			last.settled = now
		}
	}
	waits := make([]time.Duration, len(writes))
	for i := range writes {
		if last := objects[writes[i].Object]; last != nil {
			if writes[i].Have != last.got {
				last.settled = time.Time{}
			}
			waits[i] = max(0, last.next(&writes[i]).Sub(now))
		}
	}
	return waits
}

// Wrote records a successful write. Got is a fingerprint of the object in the response; 0: it
// is deleted.
func (o *Overrides[K]) Wrote(ctx context.Context, key K, now time.Time, w *Write, got uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	next := &written{want: w.Want, got: got, at: now, settled: now, since: now}
	last := o.last[key][w.Object]
	if last != nil && last.recent(now) {
		next.undone, next.since, next.by = last.undone, last.since, last.by
		if last.want == w.Want {
			next.undone++
		}
		next.by = cmp.Or(w.By, next.by)
	}
	if last != nil && last.returned() && next.returned() {
		next.since = last.since
	}
	if next.open(now) && (last == nil || !last.open(now)) {
		o.rare.Do(func() {
			override := next.override(w.Object)
			o.log.WarnContext(ctx, "write overridden", "key", key, "why", override.String())
		})
	}
	if o.last[key] == nil {
		o.last[key] = map[string]*written{}
	}
	if o.last[key][w.Object] == nil {
		o.count++
	}
	o.last[key][w.Object] = next
}

// sweep forgets writes that no longer count: each minute, and when there are too many. Callers
// hold mu.
func (o *Overrides[K]) sweep(now time.Time) {
	if o.count < o.many && now.Sub(o.swept) < time.Minute {
		return
	}
	o.swept = now
	o.forget(func(w *written) bool { return !w.recent(now) && (!w.returned() || now.Sub(w.at) >= 2*Calm) })
	if o.count >= manyWrites {
		o.forget(func(w *written) bool { return !w.open(now) })
	}
	if o.count >= maxWrites {
		o.forget(func(*written) bool { return true })
	}
	o.many = max(manyWrites, 2*o.count)
}

func (o *Overrides[K]) forget(these func(*written) bool) {
	for key, objects := range o.last {
		for object, w := range objects {
			if these(w) {
				delete(objects, object)
				o.count--
			}
		}
		if len(objects) == 0 {
			delete(o.last, key)
		}
	}
}

// Open returns the overridden objects of all keys.
func (o *Overrides[K]) Open(now time.Time) map[K][]statuspage.Override {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := map[K][]statuspage.Override{}
	for key := range o.last {
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
	for object, w := range o.last[key] {
		if w.open(now) {
			open = append(open, w.override(object))
		}
	}
	slices.SortFunc(open, func(a, b statuspage.Override) int { return strings.Compare(a.Object, b.Object) })
	return open
}

func (w *written) override(object string) statuspage.Override {
	v := statuspage.Override{Object: object, Since: w.since}
	if w.returned() {
		v.Returned, v.Next = true, w.at.Add(Calm)
	} else {
		v.By, v.Next = w.by, w.at.Add(w.wait(false))
	}
	return v
}
