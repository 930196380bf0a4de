package mirror

import (
	"strconv"
	"time"
)

// trust is how long a write of ours counts more than what a watch says that
// may not have heard of it yet. Watches lag by milliseconds; this is for the
// case in which they never show it, because somebody undid it at once.
const trust = 10 * time.Second

// record is an object of the mirror namespace, as a holdings needs it.
type record interface {
	comparable
	key() *identity
	group() string // name of the local service that it is of
}

func (o *ownService) key() *identity   { return &o.identity }
func (o *ownService) group() string    { return o.name }
func (o *ownSlice) key() *identity     { return &o.identity }
func (o *ownSlice) group() string      { return o.service }
func (o *ownEndpoints) key() *identity { return &o.identity }
func (o *ownEndpoints) group() string  { return o.name }

// shelf holds the objects of one kind: what the watch shows, and on top of it
// what we wrote and the watch hasn't shown yet.
type shelf[T any, P interface {
	*T
	record
}] struct {
	seen    *tracker[string, T]
	groups  map[string]map[string]P // by service, then name; with pending ones
	pending map[string]pending[P]
}

type pending[P any] struct {
	object  P // nil: deleted
	version string
	uid     string // of what was deleted
	since   time.Time
}

func newShelf[T any, P interface {
	*T
	record
}]() *shelf[T, P] {
	return &shelf[T, P]{
		seen:    newTracker(func(o *T) string { return P(o).key().name }),
		groups:  map[string]map[string]P{},
		pending: map[string]pending[P]{},
	}
}

// update takes in what the watch shows, and calls changed with the services
// that it concerns.
func (s *shelf[T, P]) update(all []*T, now time.Time, changed func(group string, before, after P)) {
	s.seen.update(all, func(before, after *T) {
		name := P(either(before, after)).key().name
		held := P(before)
		if p, ok := s.pending[name]; ok {
			held = p.object
		}
		s.settle(name, now)
		s.regroup(held, s.get(name), changed)
	})
	for name, p := range s.pending {
		if now.Sub(p.since) > trust {
			held := s.get(name)
			delete(s.pending, name)
			s.regroup(held, s.get(name), changed)
		}
	}
}

// settle forgets a write of ours that the watch has caught up with.
func (s *shelf[T, P]) settle(name string, now time.Time) {
	p, waiting := s.pending[name]
	if !waiting {
		return
	}
	shown := P(s.seen.seen[name])
	switch {
	case now.Sub(p.since) > trust:
	case p.object == nil:
		if shown != nil && string(shown.key().uid) == p.uid {
			return
		}
	case shown == nil || !notBefore(shown.key().version, p.version):
		return
	}
	delete(s.pending, name)
}

// notBefore compares resource versions, which are decimal numbers that grow
// (Kubernetes API concepts, since 1.35; etcd's revisions always were).
func notBefore(a, b string) bool {
	na, errA := strconv.ParseUint(a, 10, 64)
	nb, errB := strconv.ParseUint(b, 10, 64)
	if errA != nil || errB != nil {
		return a == b
	}
	return na >= nb
}

// get returns an object as it should be by now; nil: there is none.
func (s *shelf[T, P]) get(name string) P {
	if p, ok := s.pending[name]; ok {
		return p.object
	}
	return P(s.seen.seen[name])
}

func (s *shelf[T, P]) regroup(before, after P, changed func(group string, before, after P)) {
	if before == after {
		return
	}
	if before != nil {
		g := before.group()
		delete(s.groups[g], before.key().name)
		if len(s.groups[g]) == 0 {
			delete(s.groups, g)
		}
	}
	if after != nil {
		g := after.group()
		if s.groups[g] == nil {
			s.groups[g] = map[string]P{}
		}
		s.groups[g][after.key().name] = after
	}
	if changed == nil {
		return
	}
	if before != nil {
		changed(before.group(), before, after)
	}
	if after != nil && (before == nil || before.group() != after.group()) {
		changed(after.group(), before, after)
	}
}

// wrote notes the outcome of a write.
func (s *shelf[T, P]) wrote(object P, now time.Time) {
	name := object.key().name
	held := s.get(name)
	s.pending[name] = pending[P]{object: object, version: object.key().version, since: now}
	s.settle(name, now)
	s.regroup(held, s.get(name), nil)
}

// deleted notes that an object was deleted.
func (s *shelf[T, P]) deleted(object P, now time.Time) {
	name := object.key().name
	held := s.get(name)
	s.pending[name] = pending[P]{uid: string(object.key().uid), since: now}
	s.settle(name, now)
	s.regroup(held, s.get(name), nil)
}

// holdings are the objects of the mirror namespace.
type holdings struct {
	services  *shelf[ownService, *ownService]
	slices    *shelf[ownSlice, *ownSlice]
	endpoints *shelf[ownEndpoints, *ownEndpoints]
	// globalNames are the names of global services by their origin.
	globalNames map[Key]map[string]struct{}
}

func newHoldings() *holdings {
	return &holdings{
		services:    newShelf[ownService](),
		slices:      newShelf[ownSlice](),
		endpoints:   newShelf[ownEndpoints](),
		globalNames: map[Key]map[string]struct{}{},
	}
}

// update takes in what the watches show. It returns the names of the services
// that it concerns, and the origins of global ones among them.
func (h *holdings) update(services []*ownService, slices []*ownSlice, endpoints []*ownEndpoints, now time.Time) (names map[string]struct{}, globals map[Key]struct{}) {
	names, globals = map[string]struct{}{}, map[Key]struct{}{}
	h.services.update(services, now, func(group string, before, after *ownService) {
		names[group] = struct{}{}
		if before != nil && before.global {
			h.forget(before)
			globals[before.id.Key] = struct{}{}
		}
		if after != nil && after.global {
			h.remember(after)
			globals[after.id.Key] = struct{}{}
		}
	})
	h.slices.update(slices, now, func(group string, _, _ *ownSlice) { names[group] = struct{}{} })
	h.endpoints.update(endpoints, now, func(group string, _, _ *ownEndpoints) { names[group] = struct{}{} })
	delete(names, "")
	return names, globals
}

// serviceWritten and serviceDeleted note what was done to a Service.
func (h *holdings) serviceWritten(o *ownService, now time.Time) {
	h.services.wrote(o, now)
	if o.global {
		h.remember(o)
	}
}

func (h *holdings) serviceDeleted(o *ownService, now time.Time) {
	h.services.deleted(o, now)
	if o.global {
		h.forget(o)
	}
}

func (h *holdings) remember(o *ownService) {
	if o.id.Name == "" {
		return
	}
	if h.globalNames[o.id.Key] == nil {
		h.globalNames[o.id.Key] = map[string]struct{}{}
	}
	h.globalNames[o.id.Key][o.name] = struct{}{}
}

func (h *holdings) forget(o *ownService) {
	delete(h.globalNames[o.id.Key], o.name)
	if len(h.globalNames[o.id.Key]) == 0 {
		delete(h.globalNames, o.id.Key)
	}
}

// global returns the local service of a global one; nil: there is none. Of
// several, which can be while a name changes, it is the first by name.
func (h *holdings) global(k Key) *ownService {
	var first *ownService
	for name := range h.globalNames[k] {
		if o := h.services.get(name); o != nil && o.ours && (first == nil || o.name < first.name) {
			first = o
		}
	}
	return first
}

// globals returns the origins of all global services.
func (h *holdings) globals() []Key {
	keys := make([]Key, 0, len(h.globalNames))
	for k := range h.globalNames {
		keys = append(keys, k)
	}
	return keys
}
