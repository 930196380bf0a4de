package kube

import (
	"fmt"
	"sync"

	"k8s.io/client-go/tools/cache"
)

// store implements cache.ReflectorStore. It has items by namespace/name. Those of client-go have
// no quota, in which accepted objects have precedence, keep no pointer of an object that is
// equal to its last state, and pass changes on one by one. The reflector calls it from one
// goroutine; reads are safe for concurrent use.
type store[T any] struct {
	equal   func(a, b T) bool // nil: never
	changed func(firstSync bool)
	// rejectedChanged is called when the number of rejected objects has changed, and replaced
	// after each Replace.
	rejectedChanged func(rejected int)
	replaced        func()

	mu      sync.RWMutex
	objects map[string]stored[T]
	quota   quota
	freed   bool // quota was released since the last list
	synced  bool
	// changes has the objects that changed since the last Feed.Changes, as they were then;
	// nil without a feed.
	changes map[string]T
}

// stored is an object, its size, and what it has of the quota.
type stored[T any] struct {
	value T
	size  int64
	has   amounts
}

func newStore[T any](equal func(a, b T) bool, q quota, changed func(firstSync bool)) *store[T] {
	return &store[T]{equal: equal, quota: q, changed: changed, rejectedChanged: func(int) {}, replaced: func() {}, objects: map[string]stored[T]{}}
}

// Add implements cache.ReflectorStore.
func (s *store[T]) Add(obj any) error { return s.Update(obj) }

// Update implements cache.ReflectorStore.
func (s *store[T]) Update(obj any) error {
	return s.change([]any{obj}, func(items []*item[T]) bool { return s.put(items[0].key(), items[0]) })
}

// Delete implements cache.ReflectorStore.
func (s *store[T]) Delete(obj any) error {
	return s.change([]any{obj}, func(items []*item[T]) bool { return s.put(items[0].key(), &item[T]{}) })
}

// Replace implements cache.ReflectorStore.
func (s *store[T]) Replace(list []any, _ string) error {
	first := false
	err := s.change(list, func(items []*item[T]) bool {
		first = !s.synced
		s.synced = true
		return s.replace(items) || first
	})
	if err == nil {
		s.replaced()
	}
	return err
}

// Resync implements cache.ReflectorStore. Watches don't use it.
func (s *store[T]) Resync() error { return nil }

// change calls f with the items of objs, and mu held, and notifies of what has changed.
func (s *store[T]) change(objs []any, f func([]*item[T]) (changed bool)) error {
	items := make([]*item[T], len(objs))
	for i, obj := range objs {
		var ok bool
		if items[i], ok = obj.(*item[T]); !ok {
			return fmt.Errorf("store %T: not an item", obj)
		}
	}
	s.mu.Lock()
	synced, before := s.synced, len(s.quota.rejected)
	changed := f(items)
	first, now := s.synced && !synced, len(s.quota.rejected)
	s.mu.Unlock()
	if before != now {
		s.rejectedChanged(now)
	}
	if changed {
		s.changed(first)
	}
	return nil
}

// put stores or drops an object. Callers hold mu.
func (s *store[T]) put(key string, i *item[T]) (changed bool) {
	old, held := s.objects[key]
	if held && i.kept && !i.rejected && s.same(old.value, i.value) {
		return false
	}
	if changed = s.add(key, i) || held; changed {
		s.note(key, old.value)
	}
	return changed
}

// add replaces the object with the same key, or drops both. Callers hold mu.
func (s *store[T]) add(key string, i *item[T]) (added bool) {
	old, held := s.objects[key]
	delete(s.objects, key)
	s.quota.used.add(namespaceOf(key), old.has, -1)
	var has amounts
	if i.kept && !i.rejected {
		has, added = s.quota.take(key, old.has, i.size)
	}
	if added {
		s.objects[key] = stored[T]{i.value, i.size, has}
	}
	if added || !i.kept {
		s.quota.forget(key)
	} else {
		s.quota.reject(key)
	}
	// Replacing an object by one of the same size releases no quota.
	s.freed = s.freed || held && (!added || i.size < old.size)
	return added
}

// replace makes these all objects. Callers hold mu.
func (s *store[T]) replace(items []*item[T]) (changed bool) {
	listed := make(map[string]*item[T], len(items))
	for _, i := range items {
		listed[i.key()] = i // a list may have an object twice
	}
	clear(s.quota.rejected)
	for key := range s.objects {
		if listed[key] == nil {
			changed = s.put(key, &item[T]{}) || changed
		}
	}
	// Held objects have precedence within the quota: those that don't grow, then those that do, then
	// new ones.
	for turn := range 3 {
		for _, i := range items {
			key, due := i.key(), 2
			if old, held := s.objects[key]; held && i.size > old.size {
				due = 1
			} else if held {
				due = 0
			}
			if due == turn && listed[key] == i {
				changed = s.put(key, i) || changed
			}
		}
	}
	s.freed = false
	return changed
}

// same reports whether two states of an object are equal. The stored one stays then, so
// that readers can compare pointers.
func (s *store[T]) same(a, b T) bool { return s.equal != nil && s.equal(a, b) }

// note records an object as it was before its first change since the last Feed.Changes,
// and drops the record if the object is back in that state, so that objects which come and
// go take no memory. It is called after the change. Callers hold mu.
func (s *store[T]) note(key string, before T) {
	if s.changes == nil {
		return
	}
	if first, noted := s.changes[key]; noted {
		before = first
	}
	// The values of a feed are pointers.
	if any(before) == any(s.objects[key].value) {
		delete(s.changes, key)
		return
	}
	s.changes[key] = before
}

func (s *store[T]) snapshot() ([]T, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	all := make([]T, 0, len(s.objects))
	for _, o := range s.objects {
		all = append(all, o.value)
	}
	return all, s.synced
}

func (s *store[T]) len() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.objects)
}

func (s *store[T]) has(key string) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	_, held := s.objects[key]
	return held
}

func (s *store[T]) isSynced() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.synced
}

// missing reports whether quota was freed after objects were rejected, so that a new list may
// accept them.
func (s *store[T]) missing() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.freed && len(s.quota.rejected) > 0
}

// rejected returns the number of rejected objects.
func (s *store[T]) rejected() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.quota.rejected)
}

var _ cache.ReflectorStore = (*store[int])(nil)
