package policy

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// Object is a GlobalNetworkSet as it must be. A set of more addresses than
// fit has several.
type Object struct {
	Name string
	// Identity is what the object's labels say.
	Identity Identity
	// Addrs are sorted and without duplicates. They stand for the prefixes of
	// full length.
	Addrs []netip.Addr
}

// Observed is a GlobalNetworkSet as it is in the local cluster.
type Observed struct {
	// Object has only its name where Owned is false.
	Object
	// Owned says that the labels mark it as one of ours. No other object is
	// ever changed.
	Owned bool
	// Exact says that writing Object again would change nothing.
	Exact bool
	// Metadata is Calico's annotation of that name where it holds labels.
	Metadata string
	// UID and ResourceVersion are those of Kubernetes.
	UID, ResourceVersion string
}

// of reports whether the object is ours, and about pods of the cluster.
func (o *Observed) of(cluster string) bool { return o.Owned && o.Identity.Cluster == cluster }

// Plan says which objects must hold the sets of a remote cluster, sorted by
// name. Have are all objects there are, by name, those of others included.
//
// A set keeps the objects that it has. A new one gets its natural name, or one
// with a hash when an object that isn't of this set has that name. Two sets are
// never merged, and no foreign object is overwritten. The error names sets that
// found no name at all.
func Plan(cluster string, sets map[Identity][]netip.Addr, have map[string]Observed, size int) ([]Object, error) {
	p := planner{have: have, size: cmp.Or(size, DefaultShardSize), taken: map[string]bool{}}
	owned := map[Identity][]string{}
	for name := range have {
		if o := have[name]; o.of(cluster) {
			owned[o.Identity] = append(owned[o.Identity], name)
		}
	}
	ids := slices.SortedFunc(maps.Keys(sets), Identity.compare)
	// Names that are in use come first, so that no new set takes one.
	current := make(map[Identity]map[int]string, len(ids))
	for _, id := range ids {
		current[id] = p.keep(id, owned[id], ceilDiv(len(sets[id]), p.size))
	}
	objects := make([]Object, 0, len(ids))
	var nameless []Identity
	for _, id := range ids {
		for i, addrs := range p.split(sets[id], current[id]) {
			if len(addrs) == 0 {
				continue
			}
			name, named := current[id][i+1]
			if !named {
				if name, named = p.name(cluster, id, i+1); !named {
					nameless = append(nameless, id)
					continue
				}
			}
			objects = append(objects, Object{Name: name, Identity: id, Addrs: addrs})
		}
	}
	slices.SortFunc(objects, func(a, b Object) int { return cmp.Compare(a.Name, b.Name) })
	if len(nameless) > 0 {
		return objects, fmt.Errorf("all names are taken for %d sets, such as %v", len(nameless), nameless[0])
	}
	return objects, nil
}

type planner struct {
	have  map[string]Observed
	size  int
	taken map[string]bool
}

// keep finds out which shard each object of a set is. An object under a name
// that the set would never give it is none.
func (p *planner) keep(id Identity, names []string, needed int) map[int]string {
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	shards := map[int]string{}
	for _, name := range names {
		shard := id.shardOf(name, max(needed, len(names))+1)
		if shard == 0 {
			continue
		}
		// Of two objects for one shard that with the natural name stays.
		if other, doubled := shards[shard]; doubled && other == id.Natural(shard) {
			continue
		}
		shards[shard] = name
	}
	for _, name := range shards {
		p.taken[name] = true
	}
	return shards
}

func (p *planner) split(addrs []netip.Addr, names map[int]string) [][]netip.Addr {
	last := 0
	for shard := range names {
		last = max(last, shard)
	}
	current := make([][]netip.Addr, last)
	for shard, name := range names {
		current[shard-1] = p.have[name].Addrs
	}
	return shard(addrs, current, p.size)
}

// name finds a name for a new object. One of ours that belongs to no set may be
// taken over: somebody has changed its labels.
func (p *planner) name(cluster string, id Identity, shard int) (string, bool) {
	for try := range maxCandidates {
		name := id.candidate(shard, try)
		existing, exists := p.have[name]
		if p.taken[name] || exists && !existing.of(cluster) {
			continue
		}
		p.taken[name] = true
		return name, true
	}
	return "", false
}
