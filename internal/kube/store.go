package kube

import (
	"fmt"
	"sync"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
)

// store implements cache.ReflectorStore. It has trimmed objects by namespace/name. Those of
// client-go have no quota, in which accepted objects have precedence, keep no pointer of an
// object that is equal to its last state, and pass changes on one by one. The reflector calls it from one goroutine; reads are safe for
// concurrent use.
type store[T any] struct {
	keep    func(runtime.Object) (T, bool)
	equal   func(a, b T) bool // nil: never
	changed func(firstSync bool)
	// rejectedChanged is called when the number of rejected objects has changed.
	rejectedChanged func(rejected int)
	// impossible is called for each object of a remote that is dropped because its name is
	// invalid.
	impossible func()

	listing transit // used by the reflector's goroutine only

	// replaced is called after each Replace.
	replaced func()

	mu      sync.RWMutex
	objects map[string]T
	quota   quota
	freed   bool // quota was released since the last list
	synced  bool
	// changes has the objects that changed since the last Feed.Changes, as they were then;
	// nil without a feed.
	changes    map[string]T
	generation uint64 // of the reflector that writes
	replacedIn uint64 // generation of the last Replace
}

func newStore[T any](keep func(runtime.Object) (T, bool), equal func(a, b T) bool, changed func(firstSync bool)) *store[T] {
	return &store[T]{
		keep: keep, equal: equal, changed: changed, rejectedChanged: func(int) {}, impossible: func() {}, replaced: func() {},
		objects: map[string]T{}, quota: newQuota("", Bounds{}),
	}
}

// trimmed is an object on its way into the store. The reflector collects trimmed rather
// than whole objects while it streams the initial list.
type trimmed[T any] struct {
	meta  metav1.ObjectMeta // name and namespace only
	value T
	kept  bool
	// rejected is set if the quota is exceeded.
	rejected bool
}

// GetObjectMeta implements metav1.ObjectMetaAccessor, for client-go's key function.
func (t *trimmed[T]) GetObjectMeta() metav1.Object { return &t.meta }

// GetObjectKind implements runtime.Object.
func (t *trimmed[T]) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object. Values are immutable.
func (t *trimmed[T]) DeepCopyObject() runtime.Object {
	c := *t
	return &c
}

// trimmedList is a list with items as collected by the store.
type trimmedList struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []runtime.Object
}

// DeepCopyObject implements runtime.Object. Items are immutable.
func (l *trimmedList) DeepCopyObject() runtime.Object {
	c := *l
	c.Items = append([]runtime.Object(nil), l.Items...)
	return &c
}

// Transformer implements cache.TransformingStore: the reflector calls the function for
// each object of a streamed list.
func (s *store[T]) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) { return s.collect(obj) }
}

// begin is called before each page of a list.
func (s *store[T]) begin(further bool) {
	if !further {
		s.listing = transit{}
	}
}

// most returns the maximum number of objects; 0: unlimited.
func (s *store[T]) most() int { return s.quota.objects }

// collect trims an object of a list, and rejects it beyond the quota.
func (s *store[T]) collect(obj any) (*trimmed[T], error) {
	t, err := s.trim(obj)
	if err != nil {
		return nil, err
	}
	var size int64
	held := false
	if t.kept {
		key := t.key()
		size = sizeOf(key, t.value)
		s.mu.RLock()
		_, held = s.objects[key]
		s.mu.RUnlock()
	}
	admitted, err := s.listing.admit(&s.quota, held, size)
	if err != nil {
		return nil, err
	}
	if !admitted {
		var none T
		t.value, t.kept, t.rejected = none, false, true
	}
	return t, nil
}

// collectItem is collect for an object of a plain list. It is wanted if it is kept or
// rejected.
func (s *store[T]) collectItem(obj runtime.Object) (item runtime.Object, wanted bool, err error) {
	t, err := s.collect(obj)
	if err != nil {
		return nil, false, err
	}
	return t, t.kept || t.rejected, nil
}

// maxName is the maximum length of an object's name (a DNS subdomain, RFC 1123).
const maxName = 253

// possible reports whether a name or namespace may be valid. In protobuf it may have
// arbitrary bytes.
func possible(name string) bool { return len(name) <= maxName && utf8.ValidString(name) }

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
	name, namespace := accessor.GetName(), accessor.GetNamespace()
	if s.quota.objects > 0 && (name == "" || !possible(name) || !possible(namespace)) {
		s.impossible()
		return &trimmed[T]{}, nil
	}
	t := &trimmed[T]{meta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
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
	before := len(s.quota.rejected)
	changed := s.put(t)
	now := len(s.quota.rejected)
	s.mu.Unlock()
	if before != now {
		s.rejectedChanged(now)
	}
	if changed {
		s.changed(false)
	}
	return nil
}

// put stores or drops an object. Callers hold mu.
func (s *store[T]) put(t *trimmed[T]) (changed bool) {
	key := t.key()
	old, held := s.objects[key]
	if held && t.kept && s.same(old, t.value) {
		return false
	}
	if changed = s.add(t) || held; changed {
		s.note(key, old)
	}
	return changed
}

// add replaces the object with the same key, or drops both. Callers hold mu.
func (s *store[T]) add(t *trimmed[T]) (stored bool) {
	key, freed := t.key(), s.freed
	before, existed := s.remove(key)
	switch {
	case t.rejected:
		s.quota.reject(key)
		return false
	case !t.kept:
		s.quota.forget(key)
		return false
	case !s.quota.add(key, len(s.objects), sizeOf(key, t.value)):
		return false
	}
	s.objects[key] = t.value
	// Replacing an object by one of the same size releases no quota.
	s.freed = freed || existed && sizeOf(key, t.value) < sizeOf(key, before)
	return true
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
	if any(before) == any(s.objects[key]) {
		delete(s.changes, key)
		return
	}
	s.changes[key] = before
}

// remove drops an object. Callers hold mu.
func (s *store[T]) remove(key string) (before T, existed bool) {
	if before, existed = s.objects[key]; existed {
		s.freed = true
		delete(s.objects, key)
		s.quota.remove(sizeOf(key, before))
	}
	return before, existed
}

// Delete implements cache.ReflectorStore. The object may be a cache.DeletedFinalStateUnknown.
func (s *store[T]) Delete(obj any) error {
	key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj)
	if err != nil {
		return fmt.Errorf("delete %T: %w", obj, err)
	}
	s.mu.Lock()
	before := len(s.quota.rejected)
	value, existed := s.remove(key)
	if existed {
		s.note(key, value)
	}
	s.quota.forget(key)
	now := len(s.quota.rejected)
	s.mu.Unlock()
	if before != now {
		s.rejectedChanged(now)
	}
	if existed {
		s.changed(false)
	}
	return nil
}

// Replace implements cache.ReflectorStore.
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
	rejected := len(s.quota.rejected)
	before := s.objects
	s.objects = make(map[string]T, min(len(all), max(s.quota.objects, len(before))))
	s.quota.empty()
	s.freed = false
	changed := false
	add := func(known bool) {
		for _, t := range all {
			key := t.key()
			old, existed := before[key]
			if existed != known {
				continue
			}
			same := existed && t.kept && s.same(old, t.value)
			if same {
				t.value = old
			}
			s.add(t)
			if _, held := s.objects[key]; held && !same {
				changed = true
			}
		}
	}
	// Known objects first: they have precedence within the quota.
	add(true)
	add(false)
	for key := range s.objects { // after all are added: a list may have an object twice
		s.note(key, before[key])
	}
	for key, old := range before {
		if _, held := s.objects[key]; !held {
			s.note(key, old)
			changed = true
		}
	}
	first := !s.synced
	s.synced, s.replacedIn = true, s.generation
	now := len(s.quota.rejected)
	s.mu.Unlock()
	s.begin(false)
	if rejected != now {
		s.rejectedChanged(now)
	}
	if first || changed {
		s.changed(first)
	}
	s.replaced()
	return nil
}

// Resync implements cache.ReflectorStore. Watches don't use it.
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

func (s *store[T]) len() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.objects)
}

// begins sets the generation of the reflector that writes from now on, and lastReplaced
// returns that of the last complete list.
func (s *store[T]) begins(generation uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.generation = generation
}

func (s *store[T]) lastReplaced() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.replacedIn
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
