package cluster

import (
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
)

// store is what client-go's reflector writes into. It holds trimmed objects by
// namespace/name and nothing else: no queue, no second copy. The reflector
// calls it from one goroutine; readers may be others.
type store[T any] struct {
	keep    func(runtime.Object) (T, bool)
	equal   func(a, b T) bool // nil: never
	changed func(firstSync bool)

	mu      sync.RWMutex
	objects map[string]T
	synced  bool
}

func newStore[T any](keep func(runtime.Object) (T, bool), equal func(a, b T) bool, changed func(firstSync bool)) *store[T] {
	return &store[T]{keep: keep, equal: equal, changed: changed, objects: map[string]T{}}
}

// trimmed is an object on its way into the store. The reflector collects
// these, rather than whole objects, while it streams the initial list.
type trimmed[T any] struct {
	meta  metav1.ObjectMeta // name and namespace only
	value T
	kept  bool
}

// GetObjectMeta makes trimmed something that client-go finds the key of.
func (t *trimmed[T]) GetObjectMeta() metav1.Object { return &t.meta }

// Transformer implements cache.TransformingStore.
func (s *store[T]) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) { return s.trim(obj) }
}

func (s *store[T]) trim(obj any) (*trimmed[T], error) {
	if t, ok := obj.(*trimmed[T]); ok {
		return t, nil
	}
	object, ok := obj.(runtime.Object)
	if !ok {
		return nil, fmt.Errorf("keep %T: not an API object", obj)
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil, fmt.Errorf("keep %T: %w", obj, err)
	}
	t := &trimmed[T]{meta: metav1.ObjectMeta{Namespace: accessor.GetNamespace(), Name: accessor.GetName()}}
	t.value, t.kept = s.keep(object)
	return t, nil
}

func (t *trimmed[T]) key() string {
	if t.meta.Namespace == "" {
		return t.meta.Name
	}
	return t.meta.Namespace + "/" + t.meta.Name
}

// Add implements cache.ReflectorStore.
func (s *store[T]) Add(obj any) error { return s.Update(obj) }

// Update implements cache.ReflectorStore.
func (s *store[T]) Update(obj any) error {
	t, err := s.trim(obj)
	if err != nil {
		return err
	}
	s.mu.Lock()
	changed := s.put(t)
	s.mu.Unlock()
	if changed {
		s.changed(false)
	}
	return nil
}

// put stores or drops an object; the caller holds the lock.
func (s *store[T]) put(t *trimmed[T]) (changed bool) {
	key := t.key()
	before, existed := s.objects[key]
	if !t.kept {
		delete(s.objects, key)
		return existed
	}
	s.objects[key] = t.value
	return !existed || s.equal == nil || !s.equal(before, t.value)
}

// Delete implements cache.ReflectorStore. The object may also be client-go's
// placeholder for one whose last state was missed.
func (s *store[T]) Delete(obj any) error {
	key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj)
	if err != nil {
		return fmt.Errorf("delete %T: %w", obj, err)
	}
	s.mu.Lock()
	_, existed := s.objects[key]
	delete(s.objects, key)
	s.mu.Unlock()
	if existed {
		s.changed(false)
	}
	return nil
}

// Replace implements cache.ReflectorStore: the list is all there is.
func (s *store[T]) Replace(list []any, _ string) error {
	all := make([]*trimmed[T], 0, len(list))
	for _, obj := range list {
		t, err := s.trim(obj)
		if err != nil {
			return err
		}
		all = append(all, t)
	}
	s.mu.Lock()
	before := s.objects
	s.objects = make(map[string]T, len(all))
	changed := false
	for _, t := range all {
		if !t.kept {
			continue
		}
		old, existed := before[t.key()]
		s.objects[t.key()] = t.value
		changed = changed || !existed || s.equal == nil || !s.equal(old, t.value)
	}
	// All that stayed are found among the new ones, so a removal shows in
	// the number.
	changed = changed || len(before) != len(s.objects)
	first := !s.synced
	s.synced = true
	s.mu.Unlock()
	if first || changed {
		s.changed(first)
	}
	return nil
}

// Resync implements cache.ReflectorStore; Watch.Run does that.
func (s *store[T]) Resync() error { return nil }

func (s *store[T]) snapshot() ([]T, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	all := make([]T, 0, len(s.objects))
	for _, value := range s.objects {
		all = append(all, value)
	}
	return all, s.synced
}

func (s *store[T]) isSynced() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.synced
}
