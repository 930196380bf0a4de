package kube

import (
	"context"
	"sync"
	"time"
)

// Change is the difference of one object between two calls of Feed.Changes.
type Change[T any] struct {
	// Key is namespace/name, or the name of a cluster-scoped object.
	Key string
	// Before is the object as it was last returned, After as it is now; nil if it didn't
	// or doesn't exist. They are shared and must not be modified. An unchanged object
	// keeps its pointer.
	Before, After *T
}

// Feed is a Watch that also returns changes, for one consumer, so that the work per event
// doesn't grow with the number of objects, and that knows when its objects are stale. Its
// lists are quorum reads, so that a deletion is never based on a stale watch cache.
//
//	            listed             no contact for StaleAfter
//	unsynced ------------> synced <--------------------------> stale
//	                                listed again since
//
// A feed that never had contact is stale StaleAfter after its creation.
type Feed[T any] struct {
	*Watch[*T]
	started time.Time

	mu       sync.Mutex
	stale    bool // until the next list
	notified bool // Notify was called for being stale
}

// NewFeed returns a feed that is not synced until Run has listed all objects. Notify is
// called when the result of Changes, Synced or Stale may have changed.
func NewFeed[T any](cfg WatchConfig[*T]) *Feed[T] {
	f := &Feed[T]{Watch: NewWatch(cfg), started: time.Now()}
	f.quorum = true
	f.store.changes = map[string]*T{}
	f.store.replaced = f.listed
	return f
}

// listed is called after each list.
func (f *Feed[T]) listed() {
	f.mu.Lock()
	f.stale = false
	f.mu.Unlock()
	f.checkStale()
}

// Run lists and watches until ctx ends, then returns nil. It must not be called twice.
func (f *Feed[T]) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	looking := make(chan struct{})
	go func() {
		defer close(looking)
		f.pollStaleness(ctx)
	}()
	err := f.Watch.Run(ctx)
	cancel()
	<-looking
	return err
}

// pollStaleness calls checkStale twenty times per StaleAfter.
func (f *Feed[T]) pollStaleness(ctx context.Context) {
	after := f.cfg.Server.StaleAfter()
	if after <= 0 {
		return
	}
	const share = 20
	ticker := time.NewTicker(after / share)
	defer ticker.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-ticker.C:
			f.checkStale()
		}
	}
}

// checkStale notifies when the result of Stale has changed.
func (f *Feed[T]) checkStale() {
	stale := f.staleAt(time.Now())
	f.mu.Lock()
	changed := stale != f.notified
	f.notified = stale
	f.mu.Unlock()
	if changed {
		f.cfg.Notify()
	}
}

// Stale reports whether there was no contact for ServerConfig.StaleAfter. A stale feed
// lists again by itself, and is stale until that succeeds: other responses don't show what
// changed meanwhile.
func (f *Feed[T]) Stale() bool { return f.staleAt(time.Now()) }

func (f *Feed[T]) staleAt(now time.Time) bool {
	limit := f.cfg.Server.StaleAfter()
	if limit <= 0 {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	last := f.LastContact()
	if last.Before(f.started) {
		last = f.started
	}
	if !f.stale && now.Sub(last) > limit {
		f.stale = true
		f.Renew()
	}
	return f.stale
}

// Changes returns the changes since the last call, in no order; the first time, all
// objects. It returns none, and false, until all objects have been listed since start.
// Stale objects are included.
func (f *Feed[T]) Changes() (changes []Change[T], synced bool) {
	s := f.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.synced || len(s.changes) == 0 {
		return nil, s.synced
	}
	changes = make([]Change[T], 0, len(s.changes))
	for key, before := range s.changes {
		changes = append(changes, Change[T]{Key: key, Before: before, After: s.objects[key].value})
	}
	// A new map, because clearing one takes time in proportion to its largest size.
	s.changes = map[string]*T{}
	return changes, true
}
