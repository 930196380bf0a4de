package policy

import (
	"context"
	"sync"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
)

// source is a watch that can be begun anew, without losing what it knows, or
// losing it on purpose.
type source[T any] struct {
	name  string
	start func(notify func()) *kube.Watch[T]
	// changed is called, like a watch's Notify, when Snapshot may return
	// something else.
	changed func()
	restart chan struct{} // one slot

	mu      sync.Mutex
	current *kube.Watch[T] // what Snapshot returns
	next    *kube.Watch[T] // its successor, until it is synced; nil: none
	contact time.Time      // the last one of watches that are gone
}

func newSource[T any](name string, changed func(), start func(notify func()) *kube.Watch[T]) *source[T] {
	s := &source[T]{name: name, start: start, changed: changed, restart: make(chan struct{}, 1)}
	s.current = s.begin()
	return s
}

func (s *source[T]) begin() *kube.Watch[T] { return s.start(s.notified) }

// String names the source as a task.
func (s *source[T]) String() string { return s.name }

// Renew lists everything anew. Until that is done, what is known stays.
func (s *source[T]) Renew() {
	s.mu.Lock()
	if s.next == nil {
		s.next = s.begin()
	}
	s.mu.Unlock()
	s.signal()
}

// Reset forgets everything and lists anew: nothing counts as known until then.
func (s *source[T]) Reset() {
	s.mu.Lock()
	s.retire()
	s.current, s.next = s.begin(), nil
	s.mu.Unlock()
	s.signal()
	s.changed()
}

func (s *source[T]) signal() {
	select {
	case s.restart <- struct{}{}:
	default:
	}
}

// notified promotes the successor when it is ready, and passes the news on.
func (s *source[T]) notified() {
	s.mu.Lock()
	if s.next != nil && s.next.Synced() {
		s.retire()
		s.current, s.next = s.next, nil
		s.signal()
	}
	s.mu.Unlock()
	s.changed()
}

// retire remembers of the current watch what outlives it; the caller holds mu.
func (s *source[T]) retire() {
	if last := s.current.LastContact(); last.After(s.contact) {
		s.contact = last
	}
}

// Run keeps the current watch and its successor running until ctx ends.
func (s *source[T]) Run(ctx context.Context) error {
	running := map[*kube.Watch[T]]func(){}
	defer func() {
		for _, stop := range running {
			stop()
		}
	}()
	for ctx.Err() == nil {
		s.mu.Lock()
		wanted := []*kube.Watch[T]{s.current}
		if s.next != nil {
			wanted = append(wanted, s.next)
		}
		s.mu.Unlock()
		for _, w := range wanted {
			if running[w] == nil {
				running[w] = start(ctx, w)
			}
		}
		for w, stop := range running {
			if w != wanted[0] && w != wanted[len(wanted)-1] {
				stop()
				delete(running, w)
			}
		}
		select {
		case <-ctx.Done():
		case <-s.restart:
		}
	}
	return nil
}

// start begins a watch and returns what ends it and waits for that.
func start[T any](ctx context.Context, w *kube.Watch[T]) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Its only error is to run twice.
		_ = w.Run(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

// Snapshot returns everything, and whether it is complete.
func (s *source[T]) Snapshot() ([]T, bool) { return s.watch().Snapshot() }

// Synced reports whether Snapshot is complete.
func (s *source[T]) Synced() bool { return s.watch().Synced() }

// LastContact returns when the API server last answered; zero: never.
func (s *source[T]) LastContact() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.contact
	for _, w := range []*kube.Watch[T]{s.current, s.next} {
		if w != nil && w.LastContact().After(last) {
			last = w.LastContact()
		}
	}
	return last
}

// Err returns why the last request failed; nil when it didn't.
func (s *source[T]) Err() error { return s.watch().Err() }

// Crowded returns what is rejected because there is no room for it; nil: nothing.
func (s *source[T]) Crowded() error { return s.watch().Crowded() }

func (s *source[T]) watch() *kube.Watch[T] {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}
