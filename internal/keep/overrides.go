package keep

import (
	"context"
	"encoding/json"
	"hash/fnv"
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
	LongestWait = 10 * time.Minute
	// Lasting is the time for which a write must last after it might have been repeated, so that the
	// object no longer counts as overridden.
	Lasting = time.Minute
	// manyWrites is the number of remembered writes beyond which those that weren't overridden are
	// forgotten, maxWrites that beyond which all are: others create and delete objects at their
	// rate.
	manyWrites = 10_000
	maxWrites  = 50_000
)

// written is the last write of an object. If it is necessary again, because
//
//	| the response differed from it            | it is repeated after LongestWait             |
//	| another client has undone it             | at once                                      |
//	| that has happened n times in a row       | firstWait * 2^(n-1) after it, or LongestWait |
type written struct {
	want   uint64
	stored bool // the response was as written
	at     time.Time
	undone int       // number of earlier writes in a row that were undone
	since  time.Time // of the first one of these
}

// next returns from when on it may be repeated.
func (w *written) next() time.Time {
	switch {
	case !w.stored:
		return w.at.Add(LongestWait)
	case w.undone == 0:
		return w.at
	default:
		return w.at.Add(min(firstWait<<min(w.undone-1, 16), LongestWait))
	}
}

// recent reports whether a write that is necessary again is one that was undone.
func (w *written) recent(now time.Time) bool { return now.Sub(w.next()) < Lasting }

// open reports whether the object counts as overridden. A single change by another client is
// repaired and isn't a problem.
func (w *written) open(now time.Time) bool { return (!w.stored || w.undone > 1) && w.recent(now) }

// Overrides remembers the last write of each object, so that one that an admission policy or
// another client undoes isn't repeated without end. Writes of a changed desired state never wait.
// It is safe for concurrent use. K is the key of a Writer. A key may have several objects, which are
// identified by what they are called in logs, such as "service x".
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

// Fingerprint returns that of what is written, which can't be invalid JSON.
func Fingerprint(want any) uint64 {
	text, _ := json.Marshal(want)
	sum := fnv.New64a()
	_, _ = sum.Write(text)
	return sum.Sum64()
}

// Wait returns how long a write must wait; 0: it may be made now. Want is a fingerprint of what is
// written.
func (o *Overrides[K]) Wait(now time.Time, key K, object string, want uint64) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sweep(now)
	last := o.last[key][object]
	if last == nil || last.want != want {
		return 0
	}
	return max(0, last.next().Sub(now))
}

// Wrote records a successful write, as Wait describes it. Stored is whether the response was as
// written.
func (o *Overrides[K]) Wrote(ctx context.Context, now time.Time, key K, object string, want uint64, stored bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	next := &written{want: want, stored: stored, at: now, since: now}
	last := o.last[key][object]
	if last != nil && last.recent(now) && last.stored == stored {
		next.undone, next.since = last.undone, last.since
		if last.want == want {
			next.undone++
		}
	}
	if next.open(now) && (last == nil || !last.open(now)) {
		o.rare.Do(func() {
			override := next.override(object)
			o.log.WarnContext(ctx, "write overridden", "key", key, "why", override.String())
		})
	}
	if o.last[key] == nil {
		o.last[key] = map[string]*written{}
	}
	if last == nil {
		o.count++
	}
	o.last[key][object] = next
}

// sweep forgets writes that no longer count: each minute, and when there are too many. Callers
// hold mu.
func (o *Overrides[K]) sweep(now time.Time) {
	if o.count < o.many && now.Sub(o.swept) < time.Minute {
		return
	}
	o.swept = now
	o.forget(func(w *written) bool { return !w.recent(now) })
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
	return statuspage.Override{Object: object, Since: w.since, Next: w.next()}
}
