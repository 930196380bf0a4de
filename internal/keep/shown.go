package keep

import (
	"sync"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
)

// Recheck is the time after a write at which its key is added again. Each write is followed by an
// event, unless another client has undone it before a watch showed either, or it was lost by a
// server that was restored from a backup.
const Recheck = 10 * time.Second

// Shown has all objects of a watch, as of the changes that were last read from it. It is safe for
// concurrent use.
type Shown[T any] struct {
	mu      sync.RWMutex
	objects map[string]*T
}

// NewShown returns a Shown without objects.
func NewShown[T any]() *Shown[T] { return &Shown[T]{objects: map[string]*T{}} }

// Observe adds changes of the watch.
func (s *Shown[T]) Observe(changes []kube.Change[T]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range changes {
		if c := &changes[i]; c.After != nil {
			s.objects[c.Key] = c.After
		} else {
			delete(s.objects, c.Key)
		}
	}
}

// Get returns an object, nil if it doesn't exist.
func (s *Shown[T]) Get(key string) *T {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.objects[key]
}

// All returns all objects, in no order.
func (s *Shown[T]) All() []*T {
	s.mu.RLock()
	defer s.mu.RUnlock()
	all := make([]*T, 0, len(s.objects))
	for _, o := range s.objects {
		all = append(all, o)
	}
	return all
}
