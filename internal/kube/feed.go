package kube

import (
	"context"
	"sync"
	"time"
)

// Change is what happened to one object since changes were last handed out.
type Change[T any] struct {
	// Key is namespace/name, or the name of an object without a namespace.
	Key string
	// Before is the object as it was last handed out, After as it is now; nil:
	// there was or is none. They are shared and must not be changed. An object
	// that stays the same keeps its pointer.
	Before, After *T
}

// Feed is a watch that can be renewed, and that hands out what has changed: work
// per event doesn't grow with what is there. It knows when what it has is stale.
// Beside Changes, which has one consumer, it is a Watch. It is for who removes things on
// its word, which another replica may have made a moment ago: it never lists from a cache
// of the API server.
//
//	            all is read                 no contact for StaleAfter
//	unsynced ----------------> synced <------------------------------> stale
//	                                  all is read anew since
//
// A feed that never had contact is stale StaleAfter after it was made.
type Feed[T any] struct {
	*Watch[*T]
	started time.Time

	mu     sync.Mutex
	awaits uint64 // the turn that must have read everything; 0: not stale
	told   bool   // Notify was called for being stale
}

// NewFeed returns a feed that is not synced until Run has read all objects.
// Notify is called after Changes, Synced or Stale may return something else.
func NewFeed[T any](cfg WatchConfig[*T]) *Feed[T] {
	f := &Feed[T]{Watch: NewWatch(cfg), started: time.Now()}
	f.current = true
	f.store.changes = map[string]*T{}
	f.store.replaced = f.look
	return f
}

// Run lists and watches until ctx ends, which is not an error: it returns nil, and
// never before. It must not be called twice.
func (f *Feed[T]) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	looking := make(chan struct{})
	go func() {
		defer close(looking)
		f.keepLooking(ctx)
	}()
	err := f.Watch.Run(ctx)
	cancel()
	<-looking
	return err
}

// keepLooking notifies in time when the feed becomes stale.
func (f *Feed[T]) keepLooking(ctx context.Context) {
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
			f.look()
		}
	}
}

// look notifies when the feed has become stale, or is so no more.
func (f *Feed[T]) look() {
	stale := f.staleAt(time.Now())
	f.mu.Lock()
	changed := stale != f.told
	f.told = stale
	f.mu.Unlock()
	if changed {
		f.cfg.Notify()
	}
}

// Stale reports whether there was no contact for ServerConfig.StaleAfter. That ends
// when all objects have been read anew, which begins by itself: any other answer says
// nothing about what happened meanwhile.
func (f *Feed[T]) Stale() bool { return f.staleAt(time.Now()) }

func (f *Feed[T]) staleAt(now time.Time) bool {
	limit := f.cfg.Server.StaleAfter()
	if limit <= 0 {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.awaits > 0 {
		if f.store.lastRead() < f.awaits {
			return true
		}
		f.awaits = 0
	}
	last := f.LastContact()
	if last.Before(f.started) {
		last = f.started
	}
	if now.Sub(last) <= limit {
		return false
	}
	f.awaits = f.renew()
	return true
}

// Renew has everything read anew, as when another API than before serves the kind.
// Until that is done, what is known stays; then Changes has the differences.
func (f *Feed[T]) Renew() { f.renew() }

// Changes returns what has changed since it was last called, in no order: everything
// the first time. Nothing is known, and false returned, until all objects have been
// read since start. What is stale is handed out, too.
func (f *Feed[T]) Changes() (changes []Change[T], synced bool) {
	s := f.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.synced || len(s.changes) == 0 {
		return nil, s.synced
	}
	changes = make([]Change[T], 0, len(s.changes))
	for key, before := range s.changes {
		changes = append(changes, Change[T]{Key: key, Before: before, After: s.objects[key]})
	}
	// To empty a map takes as long as it ever was large.
	s.changes = map[string]*T{}
	return changes, true
}
