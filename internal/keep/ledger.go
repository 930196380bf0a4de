package keep

import (
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
)

// DefaultExpiry is how long a write counts against a watch that doesn't show it.
// Watches lag by milliseconds; this is for writes that somebody undid at once, or
// that a server restored from a backup has lost.
const DefaultExpiry = 10 * time.Second

// Meta is what a Ledger must know of an object. Name is unique among the objects
// of a ledger: with the namespace, where they are of several.
type Meta struct{ Name, UID, ResourceVersion string }

// LedgerConfig describes a Ledger. Expiry and Notify may be zero.
type LedgerConfig[T any] struct {
	// Meta returns what it must know of an object, which isn't nil.
	Meta func(*T) Meta
	// Expiry is how long a write counts at most; 0: DefaultExpiry.
	Expiry time.Duration
	// Notify is called, without a lock, when Changes may have something new after a
	// write. It must not block.
	Notify func()
}

// Ledger knows all objects of one kind: what a watch shows of them, and over that
// our own writes of late. It keeps writes from being made twice, and decisions
// from being based on what is known to be over. It is safe for concurrent use.
//
// A write counts until the watch has come as far. Resource versions say so: those
// of one kind grow with each write of any object (Kubernetes API concepts), and a
// watch shows them in that order. So a write whose outcome the watch has shown
// before the answer arrived doesn't count at all, even if the object has been
// changed or deleted since.
type Ledger[T any] struct {
	cfg LedgerConfig[T]

	mu     sync.Mutex
	synced bool
	shown  map[string]*T
	latest string            // the highest resource version that the watch has shown
	own    map[string]own[T] // writes that count
	told   map[string]*T     // what Changes last said of names that it has to look at
	made   []kube.Change[T]  // what writes did that Changes has not said
}

// own is the outcome of a write of ours.
type own[T any] struct {
	object *T   // nil: deleted
	meta   Meta // of the object, or of what it was when it was deleted
	until  time.Time
}

// NewLedger returns a ledger that knows nothing and isn't synced.
func NewLedger[T any](cfg LedgerConfig[T]) *Ledger[T] {
	if cfg.Expiry <= 0 {
		cfg.Expiry = DefaultExpiry
	}
	if cfg.Notify == nil {
		cfg.Notify = func() {}
	}
	return &Ledger[T]{cfg: cfg, shown: map[string]*T{}, own: map[string]own[T]{}, told: map[string]*T{}}
}

// Observe takes in what the watch shows by now: all objects that came, changed or
// went since the last call, once each and in any order; Before isn't looked at. Keys are
// those of Meta.
// Synced says that it has shown all objects at least once.
func (l *Ledger[T]) Observe(changes []kube.Change[T], synced bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.synced = synced
	highest, back := "", false
	for i := range changes {
		c := &changes[i]
		l.touch(c.Key)
		if c.After == nil {
			delete(l.shown, c.Key)
			continue
		}
		version := l.cfg.Meta(c.After).ResourceVersion
		if before := l.shown[c.Key]; before != nil && older(version, l.cfg.Meta(before).ResourceVersion) {
			back = true
		}
		l.shown[c.Key] = c.After
		if highest == "" || older(highest, version) {
			highest = version
		}
	}
	switch {
	case highest == "":
	case back || older(highest, l.latest):
		// The server has been restored from a backup: its versions begin at an
		// earlier one again, and what was written since is lost.
		l.latest = highest
		for name := range l.own {
			l.drop(name)
		}
	default:
		l.latest = highest
	}
	now := time.Now()
	for name, w := range l.own {
		if l.superseded(name, &w, now) {
			l.drop(name)
		}
	}
}

// Wrote notes that an object is in this state, by an answer to a request.
func (l *Ledger[T]) Wrote(object *T) {
	meta := l.cfg.Meta(object)
	l.note(own[T]{object: object, meta: meta})
}

// Deleted notes that an object which was in this state has been deleted, or is
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

// superseded reports whether the watch has come as far as a write; mu is held.
func (l *Ledger[T]) superseded(name string, w *own[T], now time.Time) bool {
	if !now.Before(w.until) {
		return true
	}
	if w.object != nil {
		return notOlder(l.latest, w.meta.ResourceVersion)
	}
	// Nobody said in which version it was deleted.
	shown := l.shown[name]
	if shown == nil {
		return notOlder(l.latest, w.meta.ResourceVersion)
	}
	meta := l.cfg.Meta(shown)
	return meta.UID != w.meta.UID || older(w.meta.ResourceVersion, meta.ResourceVersion)
}

// Changes returns what isn't as it was when it was last called, by name. Before is
// what it said then. What a write of ours did is a change of its own, also where that is
// over already: whoever wrote an object that is another one's by now, or gone, learns it.
func (l *Ledger[T]) Changes() []kube.Change[T] {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expire()
	changes := l.made
	for name, before := range l.told {
		after := l.get(name)
		if !l.same(before, after) {
			changes = append(changes, kube.Change[T]{Key: name, Before: before, After: after})
		}
	}
	l.told, l.made = map[string]*T{}, nil // to empty a map takes as long as it ever was large
	slices.SortStableFunc(changes, func(a, b kube.Change[T]) int { return strings.Compare(a.Key, b.Key) })
	return changes
}

// Due returns when Changes is to be called although nothing happens: when a write
// expires. The zero time is never.
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

// Get returns an object as it is by all that is known; nil: it isn't there.
func (l *Ledger[T]) Get(name string) *T {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w, written := l.own[name]; written && !time.Now().Before(w.until) {
		l.drop(name)
	}
	return l.get(name)
}

// All returns all objects as they are by all that is known, in no order.
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

// Synced reports whether the watch has shown all objects at least once. Until then
// an object that isn't there may be.
func (l *Ledger[T]) Synced() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.synced
}

// get, same, touch, record, drop and expire are called with mu held.
func (l *Ledger[T]) get(name string) *T {
	if w, written := l.own[name]; written {
		return w.object
	}
	return l.shown[name]
}

// touch remembers what was said of an object, before that changes.
func (l *Ledger[T]) touch(name string) {
	if _, touched := l.told[name]; !touched {
		l.told[name] = l.get(name)
	}
}

// record notes what a write made of an object that was touched.
func (l *Ledger[T]) record(name string, object *T) {
	if before := l.told[name]; !l.same(before, object) {
		l.made = append(l.made, kube.Change[T]{Key: name, Before: before, After: object})
		l.told[name] = object
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

// older reports whether a version is known to be older than another one. Versions
// are decimal numbers; anything else can't be compared.
func older(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}

func notOlder(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order >= 0
}
