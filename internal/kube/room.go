package kube

import (
	"fmt"
	"hash/maphash"
	"reflect"
)

// room says how many objects of one kind a store takes, and how many bytes of
// them. What is there first keeps its place; what finds none is rejected, and
// counted by a hash of its key, so that a flood of names takes no memory either.
type room struct {
	objects int   // 0: any number
	bytes   int64 // 0: any number

	used     int64 // bytes
	rejected map[uint64]struct{}
	seed     maphash.Seed
}

func newRoom(kind string, b Bounds) room {
	return room{objects: b.objects(kind), bytes: b.kept(), rejected: map[uint64]struct{}{}, seed: maphash.MakeSeed()}
}

// add takes an object of a size, when the store holds so many others, or
// rejects it.
func (r *room) add(key string, held int, size int64) bool {
	if r.objects > 0 && held >= r.objects || r.bytes > 0 && r.used+size > r.bytes {
		r.reject(key)
		return false
	}
	r.used += size
	delete(r.rejected, r.hash(key))
	return true
}

// remove gives back what an object took.
func (r *room) remove(size int64) { r.used -= size }

func (r *room) reject(key string) {
	if len(r.rejected) <= r.objects {
		r.rejected[r.hash(key)] = struct{}{}
	}
}

// forget is for an object that isn't to be kept any more.
func (r *room) forget(key string) { delete(r.rejected, r.hash(key)) }

func (r *room) hash(key string) uint64 { return maphash.String(r.seed, key) }

// empty starts a list of everything.
func (r *room) empty() {
	r.used = 0
	clear(r.rejected)
}

// transit counts the objects of a list that is being read, which has not
// replaced the store's yet. No more of them are collected than twice of what
// there is room for.
type transit struct {
	objects int // all, kept or not
	fresh   int // that the store doesn't hold
	bytes   int64
}

// admit reports whether to collect an object. The error ends the list.
func (t *transit) admit(r *room, held bool, size int64) (bool, error) {
	if r.objects <= 0 {
		return true, nil
	}
	const share = 2
	if t.objects++; t.objects > share*r.objects {
		return false, fmt.Errorf("more than %d objects, which is twice as many as are kept", share*r.objects)
	}
	if size == 0 {
		return true, nil // it isn't kept
	}
	most := r.bytes
	if held {
		most *= share
	} else {
		t.fresh++
	}
	if t.fresh > r.objects && !held || t.bytes+size > most {
		return false, nil
	}
	t.bytes += size
	return true, nil
}

// Sizes in memory that reflection doesn't tell.
const (
	objectOverhead = 128 // of an entry of the store
	sizeOfEntry    = 16  // of an entry of a map, beside key and value
)

// sizeOf returns about how many bytes what is kept of an object takes.
func sizeOf(key string, value any) int64 {
	return objectOverhead + 2*int64(len(key)) + deepSize(reflect.ValueOf(value), 0)
}

// deepSize follows pointers to what only v holds. It ends at a depth that nothing
// reaches which is made of an API object.
func deepSize(v reflect.Value, depth int) int64 {
	const deepest = 16
	if !v.IsValid() || depth > deepest {
		return 0
	}
	return int64(v.Type().Size()) + beside(v, depth)
}

// beside is the size of what v points to.
func beside(v reflect.Value, depth int) (size int64) {
	switch v.Kind() {
	case reflect.String:
		size = int64(v.Len())
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			size = deepSize(v.Elem(), depth+1)
		}
	case reflect.Slice:
		size = int64(v.Cap()-v.Len()) * int64(v.Type().Elem().Size())
		for i := range v.Len() {
			size += deepSize(v.Index(i), depth+1)
		}
	case reflect.Array:
		for i := range v.Len() {
			size += beside(v.Index(i), depth+1)
		}
	case reflect.Map:
		for i := v.MapRange(); i.Next(); {
			size += sizeOfEntry + deepSize(i.Key(), depth+1) + deepSize(i.Value(), depth+1)
		}
	case reflect.Struct:
		// Time zones and the like, which all share.
		if pkg := v.Type().PkgPath(); pkg == "time" || pkg == "net/netip" {
			return 0
		}
		for i := range v.NumField() {
			size += beside(v.Field(i), depth+1)
		}
	}
	return size
}
