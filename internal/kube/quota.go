package kube

import (
	"fmt"
	"hash/maphash"
	"maps"
	"reflect"
)

// quota bounds the number and size of the objects of one kind in a store. New objects are accepted
// in the order of arrival, up to seven eighths of the bytes. The last eighth is for held objects
// that grow when these are full. A namespace has half of each at most, so that a tenant doesn't take
// all of them: not the number, not the bytes, and not the room in which objects of others grow.
//
// Objects beyond the quota are rejected, and counted by a hash of their keys, so that a flood of
// long names takes no memory.
type quota struct {
	objects int   // 0: unlimited
	bytes   int64 // 0: unlimited

	used     tally // objects, bytes of seven eighths, bytes of the last
	rejected map[uint64]struct{}
	seed     maphash.Seed
}

func newQuota(kind string, b Bounds) quota {
	return quota{objects: b.objects(kind), bytes: b.kept(), rejected: map[uint64]struct{}{}, seed: maphash.MakeSeed()}
}

// growthShare: held objects that grow have 1/growthShare of the bytes.
const growthShare = 8

// take returns what an object takes, unless that exceeds the quota. had is what its earlier state took,
// which has been released; zero for a new object.
func (r *quota) take(key string, had amounts, size int64) (takes amounts, ok bool) {
	if r.objects <= 0 {
		return takes, true
	}
	most := amounts{int64(r.objects), r.bytes - r.bytes/growthShare, r.bytes / growthShare}
	if takes = (amounts{1, size, 0}); r.used.take(namespaceOf(key), takes, most) {
		return takes, true
	}
	fits := min(had[1], size)
	takes = amounts{1, fits, size - fits}
	return takes, had != amounts{} && r.used.take(namespaceOf(key), takes, most)
}

func (r *quota) reject(key string) {
	if len(r.rejected) <= r.objects {
		r.rejected[r.hash(key)] = struct{}{}
	}
}

// forget removes an object from the rejected ones.
func (r *quota) forget(key string) { delete(r.rejected, r.hash(key)) }

func (r *quota) hash(key string) uint64 { return maphash.String(r.seed, key) }

// amounts are numbers of objects or bytes. What each of them is, the owner of a tally says.
type amounts [3]int64

// tally counts what objects have, all and those of each namespace.
type tally struct {
	all        amounts
	namespaces map[string]amounts
}

// take adds amounts unless all objects then exceed most, or those of the namespace half of it. What
// isn't namespaced has no such share.
func (t *tally) take(namespace string, more, most amounts) bool {
	for i, m := range most {
		if t.all[i]+more[i] > m || namespace != "" && t.namespaces[namespace][i]+more[i] > (m+1)/2 {
			return false
		}
	}
	t.add(namespace, more, 1)
	return true
}

// add adds amounts n times.
func (t *tally) add(namespace string, more amounts, n int64) {
	if more == (amounts{}) {
		return
	}
	of := t.namespaces[namespace]
	for i := range more {
		t.all[i] += n * more[i]
		of[i] += n * more[i]
	}
	if t.namespaces == nil {
		t.namespaces = map[string]amounts{}
	}
	if t.namespaces[namespace] = of; of == (amounts{}) {
		delete(t.namespaces, namespace)
	}
}

// transit counts the objects of a list while it is read, before it replaces the store's. It allows
// twice the quota, of which the quota is for objects that aren't in the store, and a namespace half of
// either.
type transit struct {
	objects int   // all
	kept    tally // objects that aren't in the store, their bytes, bytes of all
}

// clone returns a copy, for a page that may be read again.
func (t transit) clone() transit {
	t.kept.namespaces = maps.Clone(t.kept.namespaces)
	return t
}

// transitShare is how much of the quota a list may have while it is read.
const transitShare = 2

// admit reports whether to keep an object; size is 0 if it isn't to be kept, held whether the store
// has an earlier state of it. The error ends the list.
func (t *transit) admit(r *quota, key string, held bool, size int64) (bool, error) {
	if r.objects <= 0 {
		return true, nil
	}
	if t.objects++; t.objects > transitShare*r.objects {
		return false, fmt.Errorf("list of more than %d objects, twice the maximum", transitShare*r.objects)
	}
	if size == 0 {
		return true, nil
	}
	more := amounts{1, size, size}
	if held {
		more = amounts{0, 0, size}
	}
	return t.kept.take(namespaceOf(key), more, amounts{int64(r.objects), r.bytes, transitShare * r.bytes}), nil
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
