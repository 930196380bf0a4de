package kube

import (
	"fmt"
	"sync"
	"unicode/utf8"

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
	// crowded is called when the number of rejected objects has changed.
	crowded func(rejected int)
	// impossible is called for each object of a remote with a name that none can
	// have, which is left out.
	impossible func()

	listing transit // of the reflector's goroutine

	// replaced is called after each Replace.
	replaced func()

	mu      sync.RWMutex
	objects map[string]T
	room    room
	freed   bool // since the last list there is more room
	synced  bool
	// changes has the keys of what changed since a feed last took them, and what
	// there was before, zero where there was nothing; nil: nobody takes them.
	changes map[string]T
	turn    uint64 // of the reflector that writes
	read    uint64 // the turn of the last Replace
}

func newStore[T any](keep func(runtime.Object) (T, bool), equal func(a, b T) bool, changed func(firstSync bool)) *store[T] {
	return &store[T]{
		keep: keep, equal: equal, changed: changed, crowded: func(int) {}, impossible: func() {}, replaced: func() {},
		objects: map[string]T{}, room: newRoom("", Bounds{}),
	}
}

// trimmed is an object on its way into the store. The reflector collects
// these, rather than whole objects, while it streams the initial list.
type trimmed[T any] struct {
	meta  metav1.ObjectMeta // name and namespace only
	value T
	kept  bool
	// rejected is set for one to be kept that there is no room for.
	rejected bool
}

// GetObjectMeta makes trimmed something that client-go finds the key of.
func (t *trimmed[T]) GetObjectMeta() metav1.Object { return &t.meta }

// Transformer implements cache.TransformingStore: the reflector calls what it
// returns for each object of a streamed list.
func (s *store[T]) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) { return s.collect(obj) }
}

// begin is called before a list is read, and before each further part of one. It
// returns what takes back what was counted since: a request whose answer was cut
// off is made again.
func (s *store[T]) begin(further bool) (again func()) {
	if !further {
		s.listing = transit{}
	}
	before := s.listing
	return func() { s.listing = before }
}

// collect trims an object of a list that will replace what there is.
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
	admitted, err := s.listing.admit(&s.room, held, size)
	if err != nil {
		return nil, err
	}
	if !admitted {
		var none T
		t.value, t.kept, t.rejected = none, false, true
	}
	return t, nil
}

// take is collect for an object of a plain list, of which only those that are
// kept or rejected matter.
func (s *store[T]) take(obj runtime.Object) (item runtime.Object, wanted bool, err error) {
	t, err := s.collect(obj)
	if err != nil {
		return nil, false, err
	}
	return t, t.kept || t.rejected, nil
}

// maxName is the most bytes of the name of an object in Kubernetes (a DNS
// subdomain, RFC 1123).
const maxName = 253

// possible reports whether an object can have a name, or be in a namespace of it.
// What a server says in protobuf may hold any bytes.
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
	if s.room.objects > 0 && (name == "" || !possible(name) || !possible(namespace)) {
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
	before := len(s.room.rejected)
	changed := s.put(t)
	now := len(s.room.rejected)
	s.mu.Unlock()
	if before != now {
		s.crowded(now)
	}
	if changed {
		s.changed(false)
	}
	return nil
}

// put stores or drops an object; the caller holds the lock.
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

// add stores an object in the place of the one with its key, or drops both; the
// caller holds the lock.
func (s *store[T]) add(t *trimmed[T]) (stored bool) {
	key, freed := t.key(), s.freed
	before, existed := s.remove(key)
	switch {
	case t.rejected:
		s.room.reject(key)
		return false
	case !t.kept:
		s.room.forget(key)
		return false
	case !s.room.add(key, len(s.objects), sizeOf(key, t.value)):
		return false
	}
	s.objects[key] = t.value
	// The room that it had may be the room that it has.
	s.freed = freed || existed && sizeOf(key, t.value) < sizeOf(key, before)
	return true
}

// same reports that two states of an object don't differ. The one that is held
// stays then: whoever was given it may compare pointers.
func (s *store[T]) same(a, b T) bool { return s.equal != nil && s.equal(a, b) }

// note keeps what there was of an object before the first change since changes were
// taken, and forgets it when that is what there is again: what comes and goes while
// nobody takes changes holds no memory. It is called after the change; the caller holds
// the lock.
func (s *store[T]) note(key string, before T) {
	if s.changes == nil {
		return
	}
	if first, noted := s.changes[key]; noted {
		before = first
	}
	// A feed's are pointers.
	if any(before) == any(s.objects[key]) {
		delete(s.changes, key)
		return
	}
	s.changes[key] = before
}

// remove drops an object; the caller holds the lock.
func (s *store[T]) remove(key string) (before T, existed bool) {
	if before, existed = s.objects[key]; existed {
		s.freed = true
		delete(s.objects, key)
		s.room.remove(sizeOf(key, before))
	}
	return before, existed
}

// Delete implements cache.ReflectorStore. The object may also be client-go's
// placeholder for one whose last state was missed.
func (s *store[T]) Delete(obj any) error {
	key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj)
	if err != nil {
		return fmt.Errorf("delete %T: %w", obj, err)
	}
	s.mu.Lock()
	before := len(s.room.rejected)
	value, existed := s.remove(key)
	if existed {
		s.note(key, value)
	}
	s.room.forget(key)
	now := len(s.room.rejected)
	s.mu.Unlock()
	if before != now {
		s.crowded(now)
	}
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
	rejected := len(s.room.rejected)
	before := s.objects
	s.objects = make(map[string]T, min(len(all), max(s.room.objects, len(before))))
	s.room.empty()
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
	// Where there isn't room for all, those that were there keep their places.
	add(true)
	add(false)
	for key := range s.objects { // afterwards: a list may have an object twice
		s.note(key, before[key])
	}
	for key, old := range before {
		if _, held := s.objects[key]; !held {
			s.note(key, old)
			changed = true
		}
	}
	first := !s.synced
	s.synced, s.read = true, s.turn
	now := len(s.room.rejected)
	s.mu.Unlock()
	s.begin(false)
	if rejected != now {
		s.crowded(now)
	}
	if first || changed {
		s.changed(first)
	}
	s.replaced()
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

func (s *store[T]) len() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.objects)
}

// begins notes the turn of the reflector that writes from now on, and lastRead
// returns that of the one which last read everything.
func (s *store[T]) begins(turn uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn = turn
}

func (s *store[T]) lastRead() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.read
}

func (s *store[T]) isSynced() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.synced
}

// missing reports whether there may be room by now for objects that were rejected.
func (s *store[T]) missing() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.freed && len(s.room.rejected) > 0
}

// rejected returns how many objects there is no room for.
func (s *store[T]) rejected() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.room.rejected)
}
