package policy

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// DefaultShardSize is the default number of nets per object. Calico's aggregated API server
// accepts about twice as many, custom resources many more.
const DefaultShardSize = 4000

// manyShards is the minimum number of shards whose names are recognized. It doesn't depend on
// the size of the set, because objects would be assigned to other shards when some of them
// are deleted.
const manyShards = 100

// View is what the desired objects of a set are computed from.
type View struct {
	ID Identity
	// Addrs are those of its pods, sorted and without duplicates.
	Addrs []netip.Addr
	// Stale: existing objects become empty.
	Stale bool
	// Have are the objects of the set, by name.
	Have map[string]*Observed
	// Taken reports whether another set or a foreign object has a name.
	Taken func(name string) bool
	// Size is the maximum number of nets per object; 0: DefaultShardSize.
	Size int
}

// Desired returns the desired objects of a set.
//
// A set retains its objects. A new one gets its natural name, or one with a hash if another
// object has that name. Sets are never merged, and foreign objects never overwritten. It
// returns an error if all names for an object are taken.
func Desired(v *View) (objects []Object, err error) {
	if v.Stale {
		for _, name := range slices.Sorted(maps.Keys(v.Have)) {
			objects = append(objects, Object{Name: name, Identity: v.ID})
		}
		return objects, nil
	}
	if len(v.Addrs) == 0 {
		return nil, nil
	}
	size := cmp.Or(v.Size, DefaultShardSize)
	names := v.names(ceilDiv(len(v.Addrs), size))
	for i, part := range shard(v.Addrs, v.current(names), size) {
		if len(part) == 0 {
			continue
		}
		name, exists := names[i+1]
		if !exists {
			if name = v.name(i + 1); name == "" {
				err = fmt.Errorf("all names are taken for the set %v", v.ID)
				continue
			}
		}
		objects = append(objects, Object{Name: name, Identity: v.ID, Addrs: part})
	}
	return objects, err
}

// names returns the names of the set's objects by shard. It ignores objects with a name that
// the set never uses.
func (v *View) names(needed int) map[int]string {
	shards := map[int]string{}
	for _, name := range slices.Sorted(maps.Keys(v.Have)) {
		shard := v.ID.shardOf(name, max(2*needed, manyShards))
		if shard == 0 {
			continue
		}
		// Of two objects for one shard, the one with the natural name stays.
		if other, doubled := shards[shard]; doubled && other == v.ID.Natural(shard) {
			continue
		}
		shards[shard] = name
	}
	return shards
}

// current returns the addresses of the objects by shard.
func (v *View) current(names map[int]string) [][]netip.Addr {
	last := 0
	for shard := range names {
		last = max(last, shard)
	}
	current := make([][]netip.Addr, last)
	for shard, name := range names {
		current[shard-1] = v.Have[name].Addrs
	}
	return current
}

// name returns the name of a new object; empty: all are taken.
func (v *View) name(shard int) string {
	for try := range maxCandidates {
		if name := v.ID.candidate(shard, try); !v.Taken(name) {
			return name
		}
	}
	return ""
}

// shard splits the sorted addresses of a set among objects of at most size addresses.
// current are the addresses of existing objects: an address stays in the object that has it,
// so that a set that grows or shrinks by one address changes one object. The addresses of
// the last objects move to the others when these have a margin.
//
// The result has no duplicates, and each part is sorted. Parts may be empty.
func shard(want []netip.Addr, current [][]netip.Addr, size int) [][]netip.Addr {
	if len(want) <= size && len(current) <= 1 {
		return [][]netip.Addr{want}
	}
	needed := ceilDiv(len(want), size)
	margin := max(size*3/4, 1)
	count := max(needed, min(len(current), ceilDiv(len(want), margin)))

	where := make(map[netip.Addr]int, len(want))
	room := make([]int, count)
	for i := range room {
		room[i] = size
	}
	for i, addrs := range current[:min(len(current), count)] {
		for _, addr := range addrs {
			where[addr] = i
		}
	}
	parts := make([][]netip.Addr, count)
	for _, addr := range want {
		if i, there := where[addr]; there && room[i] > 0 {
			room[i]--
		} else {
			delete(where, addr)
		}
	}
	next := 0
	for _, addr := range want {
		i, there := where[addr]
		if !there {
			for room[next] == 0 {
				next++
			}
			i = next
			room[i]--
		}
		parts[i] = append(parts[i], addr)
	}
	return parts
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }
