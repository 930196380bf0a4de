// Package feeds shares a controller's time between the feeds of clusters: changes in parts, and
// feeds that begin when there is something to read.
package feeds

import (
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/run"
)

// Tap returns the changes of a feed in parts, so that a feed with many changes doesn't delay
// those of others.
//
//	Stale()      ________/-------------\_________
//	listed again                       |
//	returned                           |........|
//	Outdated     ________/----------------------\_
type Tap[T any] struct {
	feed[T]
	left []kube.Change[T]
	// Complete is whether all changes of the first list have been returned, and Outdated
	// whether the returned objects are stale.
	Complete, Outdated bool
	renewed            bool // left is from a new list
}

// feed is a kube.Feed.
type feed[T any] interface {
	run.Task
	Health
	Len() int
	Changes() ([]kube.Change[T], bool)
}

// Part is the maximum number of changes per part.
const Part = 256

// NewTap returns a tap of a feed of its own.
func NewTap[T any](cfg kube.WatchConfig[*T]) *Tap[T] { return &Tap[T]{feed: kube.NewFeed(cfg)} }

// Take calls each for the next part, and reports whether there are further ones.
func (t *Tap[T]) Take(each func(c *kube.Change[T])) (more bool) {
	// In this order: if it isn't stale, the list is complete before Changes is called.
	stale, first, fetched := t.Stale(), false, len(t.left) == 0
	if fetched {
		t.left, first = t.Changes()
		first = first && !t.Complete
	}
	t.renewed = !stale && (t.renewed || fetched)
	n := min(len(t.left), Part)
	if first {
		n = len(t.left) // nothing is computed before it is synced
	}
	for i := range t.left[:n] {
		each(&t.left[i])
	}
	t.left = t.left[n:]
	t.Complete = t.Complete || first
	more = len(t.left) > 0
	t.Outdated = stale || t.Outdated && (more || !t.renewed)
	return more
}

// Health is the status of a feed.
type Health interface {
	Synced() bool
	Stale() bool
	LastContact() time.Time
	Err() error
	OverQuota() error
}
