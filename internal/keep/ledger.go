package keep

import (
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
)

// DefaultExpiry is the time after which an own write that the watch doesn't show is
// dropped. Watches lag by milliseconds; the expiry is for writes that were reverted at
// once, or lost by a server that was restored from a backup.
const DefaultExpiry = 10 * time.Second

// Meta identifies a version of an object. Name is unique within a ledger: it includes the
// namespace if there are several.
type Meta struct{ Name, UID, ResourceVersion string }

// LedgerConfig describes a Ledger. Expiry and Notify may be zero.
type LedgerConfig[T any] struct {
	// Meta returns the Meta of an object, which is never nil.
	Meta func(*T) Meta
	// Expiry is the maximum time that a write overlays the watch; 0: DefaultExpiry.
	Expiry time.Duration
	// Notify is called, without a lock, after a write, for the caller to call Changes. It
	// must not block.
	Notify func()
}

// Ledger has all objects of one kind: those of a watch, overlaid with recent own writes. It
// prevents repeated writes, and decisions on a state that is known to be outdated. It is
// safe for concurrent use.
//
// A write overlays the watch until the watch has passed its resource version: versions of
// one kind grow with each write of any object (Kubernetes API concepts), and a watch shows
// them in that order. A write that the watch has passed before the response arrived has no
// effect, even if the object has been changed or deleted since.
type Ledger[T any] struct {
	cfg LedgerConfig[T]

	mu       sync.Mutex
	synced   bool
	shown    map[string]*T
	latest   string            // the highest resource version that the watch has shown
	own      map[string]own[T] // own writes that overlay the watch
	reported map[string]*T     // touched objects, as last returned by Changes
	made     []kube.Change[T]  // by own writes since the last Changes
}

// own is the result of an own write.
type own[T any] struct {
	object *T   // nil: deleted
	meta   Meta // of the object, or of its last state before deletion
	until  time.Time
}

// NewLedger returns an empty ledger that isn't synced.
func NewLedger[T any](cfg LedgerConfig[T]) *Ledger[T] {
	if cfg.Expiry <= 0 {
		cfg.Expiry = DefaultExpiry
	}
	if cfg.Notify == nil {
		cfg.Notify = func() {}
	}
	return &Ledger[T]{cfg: cfg, shown: map[string]*T{}, own: map[string]own[T]{}, reported: map[string]*T{}}
}

// Observe adds changes of the watch: all objects that were created, changed or deleted
// since the last call, once each and in any order. Before is ignored; keys are Meta.Name.
// Synced means that the watch has shown all objects at least once.
func (l *Ledger[T]) Observe(changes []kube.Change[T], synced bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.synced = synced
	for i := range changes {
		c := &changes[i]
		l.touch(c.Key)
		if c.After == nil {
			delete(l.shown, c.Key)
			continue
		}
		l.shown[c.Key] = c.After
		if version := l.cfg.Meta(c.After).ResourceVersion; l.latest == "" || older(l.latest, version) {
			l.latest = version
		}
	}
	now := time.Now()
	for name, w := range l.own {
		if l.superseded(name, &w, now) {
			l.drop(name)
		}
	}
}

// Wrote records the state of an object in the response to an own write.
func (l *Ledger[T]) Wrote(object *T) {
	meta := l.cfg.Meta(object)
	l.note(own[T]{object: object, meta: meta})
}

// Deleted records that an object, whose last known state is was, has been deleted or is
// being deleted.
func (l *Ledger[T]) Deleted(was *T) {
	l.note(own[T]{meta: l.cfg.Meta(was)})
}

func (l *Ledger[T]) note(w own[T]) {
	now := time.Now()
	w.until = now.Add(l.cfg.Expiry)
	name := w.meta.Name
	l.mu.Lock()
	if before, known := l.own[name]; !known || !older(w.meta.ResourceVersion, before.meta.ResourceVersion) {
		l.drop(name)
		l.record(name, w.object)
		if !l.superseded(name, &w, now) {
			l.own[name] = w
		}
	}
	l.mu.Unlock()
	l.cfg.Notify()
}

// superseded reports whether the watch has passed a write, or the write has expired.
// Callers hold mu.
func (l *Ledger[T]) superseded(name string, w *own[T], now time.Time) bool {
	if !now.Before(w.until) {
		return true
	}
	if w.object != nil {
		return notOlder(l.latest, w.meta.ResourceVersion)
	}
	// The response to a deletion doesn't have its resource version.
	shown := l.shown[name]
	if shown == nil {
		return notOlder(l.latest, w.meta.ResourceVersion)
	}
	meta := l.cfg.Meta(shown)
	return meta.UID != w.meta.UID || older(w.meta.ResourceVersion, meta.ResourceVersion)
}

// Changes returns the differences from the last call, by name. Each own write is a change of
// its own, also if it was reverted meanwhile, so that the writer learns that its object was
// changed or deleted.
func (l *Ledger[T]) Changes() []kube.Change[T] {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expire()
	changes := l.made
	for name, before := range l.reported {
		after := l.get(name)
		if !l.same(before, after) {
			changes = append(changes, kube.Change[T]{Key: name, Before: before, After: after})
		}
	}
	l.reported, l.made = map[string]*T{}, nil // clearing a map takes time in proportion to its largest size
	slices.SortStableFunc(changes, func(a, b kube.Change[T]) int { return strings.Compare(a.Key, b.Key) })
	return changes
}

// Due returns when the next write expires, after which Changes must be called without an
// event. The zero time is never.
func (l *Ledger[T]) Due() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	var due time.Time
	for _, w := range l.own {
		if due.IsZero() || w.until.Before(due) {
			due = w.until
		}
	}
	return due
}

// Get returns the observed object, nil if it doesn't exist.
func (l *Ledger[T]) Get(name string) *T {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w, written := l.own[name]; written && !time.Now().Before(w.until) {
		l.drop(name)
	}
	return l.get(name)
}

// All returns all observed objects, in no order.
func (l *Ledger[T]) All() []*T {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expire()
	all := make([]*T, 0, len(l.shown)+len(l.own))
	for name, object := range l.shown {
		if _, written := l.own[name]; !written {
			all = append(all, object)
		}
	}
	for _, w := range l.own {
		if w.object != nil {
			all = append(all, w.object)
		}
	}
	return all
}

// Synced reports whether the watch has shown all objects at least once. Before that, a
// missing object may exist.
func (l *Ledger[T]) Synced() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.synced
}

// Callers of get, same, touch, record, drop and expire hold mu.
func (l *Ledger[T]) get(name string) *T {
	if w, written := l.own[name]; written {
		return w.object
	}
	return l.shown[name]
}

// touch saves an object before a change, as Changes last returned it.
func (l *Ledger[T]) touch(name string) {
	if _, touched := l.reported[name]; !touched {
		l.reported[name] = l.get(name)
	}
}

// record adds the change of a touched object by an own write.
func (l *Ledger[T]) record(name string, object *T) {
	if before := l.reported[name]; !l.same(before, object) {
		l.made = append(l.made, kube.Change[T]{Key: name, Before: before, After: object})
		l.reported[name] = object
	}
}

func (l *Ledger[T]) same(a, b *T) bool {
	return a == b || a != nil && b != nil && l.cfg.Meta(a) == l.cfg.Meta(b)
}

func (l *Ledger[T]) drop(name string) {
	l.touch(name)
	delete(l.own, name)
}

func (l *Ledger[T]) expire() {
	now := time.Now()
	for name, w := range l.own {
		if !now.Before(w.until) {
			l.drop(name)
		}
	}
}

// older reports whether a is an older version than b. Only decimal numbers can be compared.
func older(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}

func notOlder(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order >= 0
}
