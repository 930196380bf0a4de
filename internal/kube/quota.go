package kube

import (
	"fmt"
	"hash/maphash"
	"reflect"
)

// quota bounds the number and size of the objects of one kind in a store. Objects are
// accepted in the order of arrival; those beyond the quota are rejected, and counted by a
// hash of their keys, so that a flood of long names takes no memory.
type quota struct {
	objects int   // 0: unlimited
	bytes   int64 // 0: unlimited

	used     int64 // bytes
	rejected map[uint64]struct{}
	seed     maphash.Seed
}

func newQuota(kind string, b Bounds) quota {
	return quota{objects: b.objects(kind), bytes: b.kept(), rejected: map[uint64]struct{}{}, seed: maphash.MakeSeed()}
}

// take takes the size of an object in a store with held others, unless that exceeds the quota.
func (r *quota) take(held int, size int64) bool {
	if r.objects > 0 && held >= r.objects || r.bytes > 0 && r.used+size > r.bytes {
		return false
	}
	r.used += size
	return true
}

func (r *quota) reject(key string) {
	if len(r.rejected) <= r.objects {
		r.rejected[r.hash(key)] = struct{}{}
	}
}

// forget removes an object from the rejected ones.
func (r *quota) forget(key string) { delete(r.rejected, r.hash(key)) }

func (r *quota) hash(key string) uint64 { return maphash.String(r.seed, key) }

// empty resets the quota for a new list.
func (r *quota) empty() {
	r.used = 0
	clear(r.rejected)
}

// transit counts the objects of a list while it is read, before it replaces the store's. It
// allows twice the quota.
type transit struct {
	objects int // all
	fresh   int // not in the store
	bytes   int64
}

// transitShare is how much of the quota a list may have while it is read.
const transitShare = 2

// admit reports whether to keep an object; size is 0 if it isn't to be kept, held whether the store
// has an earlier state of it. The error ends the list.
func (t *transit) admit(r *quota, held bool, size int64) (bool, error) {
	if r.objects <= 0 {
		return true, nil
	}
	if t.objects++; t.objects > transitShare*r.objects {
		return false, fmt.Errorf("list of more than %d objects, twice the maximum", transitShare*r.objects)
	}
	most := r.bytes
	switch {
	case size == 0:
		return true, nil
	case held:
		most *= transitShare
	default:
		t.fresh++
	}
	if t.fresh > r.objects && !held || t.bytes+size > most {
		return false, nil
	}
	t.bytes += size
	return true, nil
}

// Sizes in memory that reflection doesn't return.
const (
	objectOverhead = 128 // of an entry of the store
	sizeOfEntry    = 16  // of an entry of a map, beside key and value
)

// sizeOf returns the approximate memory of a kept object in bytes.
func sizeOf(key string, value any) int64 {
	return objectOverhead + 2*int64(len(key)) + deepSize(reflect.ValueOf(value), 0)
}

// deepSize follows pointers, up to a depth that values derived from API objects don't
// reach.
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
		// Their pointers are to shared values such as time zones.
		if pkg := v.Type().PkgPath(); pkg == "time" || pkg == "net/netip" {
			return 0
		}
		for i := range v.NumField() {
			size += beside(v.Field(i), depth+1)
		}
	}
	return size
}
