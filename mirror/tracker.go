package mirror

// tracker finds which objects of a watch changed since it last looked. It
// compares pointers: an object that was updated is another one.
type tracker[K comparable, T any] struct {
	key  func(*T) K
	seen map[K]*T
}

func newTracker[K comparable, T any](key func(*T) K) *tracker[K, T] {
	return &tracker[K, T]{key: key, seen: map[K]*T{}}
}

// update calls changed for each object that came, went or is another one than
// before: before and now, one of which may be nil.
func (t *tracker[K, T]) update(all []*T, changed func(before, now *T)) {
	for _, now := range all {
		k := t.key(now)
		if before := t.seen[k]; before != now {
			t.seen[k] = now
			changed(before, now)
		}
	}
	if len(t.seen) == len(all) {
		return
	}
	there := make(map[K]struct{}, len(all))
	for _, now := range all {
		there[t.key(now)] = struct{}{}
	}
	for k, before := range t.seen {
		if _, ok := there[k]; !ok {
			delete(t.seen, k)
			changed(before, nil)
		}
	}
}
