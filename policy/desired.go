package policy

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// DefaultShardSize is how many nets one object holds. Calico's aggregated API
// server takes about twice as many, the custom resources many more.
const DefaultShardSize = 4000

// manyShards is how many objects of a set are told apart by their names at least: the
// same for a set of any size, or else objects would be taken for others when some of
// them are gone.
const manyShards = 100

// View is what is known of one set of a remote at one moment.
type View struct {
	ID Identity
	// Addrs are those of its pods, Held those that may stay because they are on
	// their way to another set; both sorted and without duplicates.
	Addrs, Held []netip.Addr
	// Stale says that nothing of that counts: what there is becomes empty.
	Stale bool
	// Have are the objects of the set, by name.
	Have map[string]*Observed
	// Names are those of objects that aren't there yet, by shard.
	Names map[int]string
	// Taken reports whether somebody else has a name.
	Taken func(name string) bool
	// Size is how many nets an object holds; 0: DefaultShardSize.
	Size int
}

// Desired returns which objects must hold a set, the first shard first. It has the
// names that new ones get in v.Names.
//
// A set keeps the objects that it has. A new one gets its natural name, or one with
// a hash when an object that isn't of this set has that name. Two sets are never
// merged, and no foreign object is overwritten. The error says that there is no name
// for an object.
func Desired(v *View) ([]Object, error) {
	var objects []Object
	if v.Stale {
		for _, name := range slices.Sorted(maps.Keys(v.Have)) {
			objects = append(objects, Object{Name: name, Identity: v.ID})
		}
		return objects, nil
	}
	addrs := v.Addrs
	for _, o := range v.Have {
		// Where it isn't any more it needn't be held.
		for _, addr := range v.Held {
			if _, there := slices.BinarySearchFunc(o.Addrs, addr, netip.Addr.Compare); there {
				if at, in := slices.BinarySearchFunc(addrs, addr, netip.Addr.Compare); !in {
					addrs = slices.Insert(slices.Clone(addrs), at, addr)
				}
			}
		}
	}
	if len(addrs) == 0 {
		clear(v.Names)
		return nil, nil
	}
	size := cmp.Or(v.Size, DefaultShardSize)
	names := v.keep(ceilDiv(len(addrs), size))
	var err error
	given := map[int]string{}
	for i, part := range shard(addrs, v.current(names), size) {
		if len(part) == 0 {
			continue
		}
		name, there := names[i+1]
		if !there {
			if name = v.name(i + 1); name == "" {
				err = fmt.Errorf("all names are taken for the set %v", v.ID)
				continue
			}
			given[i+1] = name
		}
		objects = append(objects, Object{Name: name, Identity: v.ID, Addrs: part})
	}
	clear(v.Names)
	maps.Copy(v.Names, given)
	return objects, err
}

// keep finds out which shard each object of the set is. An object under a name that
// the set would never give it is none.
func (v *View) keep(needed int) map[int]string {
	shards := map[int]string{}
	for _, name := range slices.Sorted(maps.Keys(v.Have)) {
		shard := v.ID.shardOf(name, max(2*needed, manyShards))
		if shard == 0 {
			continue
		}
		// Of two objects for one shard that with the natural name stays.
		if other, doubled := shards[shard]; doubled && other == v.ID.Natural(shard) {
			continue
		}
		shards[shard] = name
	}
	return shards
}

// current returns what the objects hold, by shard.
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

// name returns a name for a new object; empty: there is none. The one that it got
// before stays, as long as nobody else takes it.
func (v *View) name(shard int) string {
	if name, given := v.Names[shard]; given && !v.Taken(name) {
		return name
	}
	for try := range maxCandidates {
		if name := v.ID.candidate(shard, try); !v.Taken(name) {
			return name
		}
	}
	return ""
}

// shard splits the addresses of a set, which are sorted, among objects of at
// most size addresses each. Where the objects exist current says what they
// hold, and an address stays in the one that has it: a set that grows or
// shrinks by one address changes one object. Only when the last objects are no
// longer needed by a margin do their addresses move to the others.
//
// The result has no address twice, and each part is sorted. Parts may be empty.
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
