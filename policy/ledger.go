package policy

import (
	"maps"
	"sync"
	"time"
)

// recentFor is how long a write counts against a watch that hasn't shown it.
// Watches lag by milliseconds; after this time what they show is the truth.
const recentFor = 5 * time.Second

// ledger knows the network sets of the local cluster: what the watch shows, and
// over that what was written a moment ago and the watch doesn't show yet. It
// keeps writes from being made twice.
type ledger struct {
	// snapshot returns what the watch shows, and whether that is complete.
	snapshot func() ([]Observed, bool)
	now      func() time.Time

	mu     sync.Mutex
	recent map[string]recentWrite // by object name
	writes uint64                 // how many there have been
	// latest version that the watch has shown of each object that a request
	// is under way for; empty: none since it began.
	flight map[string]string
	// seen are writes that the watch is about to show.
	seen map[string]string
}

// recentWrite is the outcome of one write.
type recentWrite struct {
	set     Observed
	deleted bool // then only name and UID of set are known
	shown   bool // the watch has caught up with it
	at      time.Time
	number  uint64 // 1 for the first of all writes
}

// view is what the ledger knew at one moment.
type view struct {
	sets   map[string]Observed // by name
	synced bool                // sets are complete
	writes uint64              // how many are in it
}

func newLedger(snapshot func() ([]Observed, bool)) *ledger {
	return &ledger{snapshot: snapshot, now: time.Now, recent: map[string]recentWrite{}, flight: map[string]string{}, seen: map[string]string{}}
}

// begin notes that a request for an object begins. The watch may show its
// outcome before the answer is there. The function that it returns ends that.
func (l *ledger) begin(name string) (end func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flight[name] = ""
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.flight, name)
	}
}

// wrote notes that an object was seen in this state, outside of the watch.
func (l *ledger) wrote(set Observed) {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := l.flight[set.Name]
	shown := last != "" && compareVersions(last, set.ResourceVersion) >= 0
	l.note(recentWrite{set: set, shown: shown})
}

// deleted notes that an object is gone.
func (l *ledger) deleted(name, uid string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.note(recentWrite{set: Observed{Object: Object{Name: name}, UID: uid}, deleted: true})
}

// note is called with mu held.
func (l *ledger) note(w recentWrite) {
	l.writes++
	w.at, w.number = l.now(), l.writes
	l.recent[w.set.Name] = w
}

// shown is told of each state of an object of ours that the watch has got, before
// the watch shows it.
func (l *ledger) shown(set *Observed) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, flying := l.flight[set.Name]; flying {
		l.flight[set.Name] = set.ResourceVersion
	}
	if _, known := l.recent[set.Name]; known {
		l.seen[set.Name] = set.ResourceVersion
	}
}

// settled is called when the watch shows what shown was told. From then on, an
// object that isn't there has been deleted.
func (l *ledger) settled() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, version := range l.seen {
		write, known := l.recent[name]
		if known && !write.deleted && compareVersions(version, write.set.ResourceVersion) >= 0 {
			write.shown = true
			l.recent[name] = write
		}
	}
	clear(l.seen)
}

// view returns all network sets as they are now.
func (l *ledger) view() view {
	// What is recent is looked at first: the watch may catch up meanwhile.
	l.expire()
	l.mu.Lock()
	recent, writes := maps.Clone(l.recent), l.writes
	l.mu.Unlock()
	now := l.now()
	shown, synced := l.snapshot()
	sets := make(map[string]Observed, len(shown))
	for i := range shown {
		sets[shown[i].Name] = shown[i]
	}
	for name, write := range recent {
		set, exists := sets[name]
		switch {
		case write.supersededBy(set, exists, now):
		case write.deleted:
			delete(sets, name)
		default:
			sets[name] = write.set
		}
	}
	return view{sets: sets, synced: synced, writes: writes}
}

// latest returns an object that was have in a view that had so many writes, nil
// for one that didn't exist, with what was written since.
func (l *ledger) latest(name string, have *Observed, writes uint64) *Observed {
	l.mu.Lock()
	defer l.mu.Unlock()
	write, known := l.recent[name]
	switch {
	case !known || write.number <= writes:
		return have
	case write.deleted:
		return nil
	default:
		return &write.set
	}
}

// expire forgets writes that count no longer.
func (l *ledger) expire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	maps.DeleteFunc(l.recent, func(_ string, w recentWrite) bool { return now.Sub(w.at) > recentFor })
}

// supersededBy reports whether what is shown of an object is no older than the
// write.
func (w *recentWrite) supersededBy(shown Observed, exists bool, now time.Time) bool {
	switch {
	case now.Sub(w.at) > recentFor:
		return true
	case !exists:
		// Gone, or not there yet.
		return w.shown
	case w.deleted:
		return shown.UID != w.set.UID
	default:
		return compareVersions(shown.ResourceVersion, w.set.ResourceVersion) >= 0
	}
}
