package policy

import "sync"

// owned has the names of our objects by set. An object is its set's from when it was first
// observed until it is gone: labels that another client changes don't make it another set's, they
// are repaired. It is safe for concurrent use.
type owned struct {
	mu       sync.Mutex
	set      map[string]Identity              // by name
	names    map[Identity]map[string]struct{} // by set
	clusters map[string]int                   // numbers of objects by cluster
}

func newOwned() *owned {
	return &owned{set: map[string]Identity{}, names: map[Identity]map[string]struct{}{}, clusters: map[string]int{}}
}

// observe updates the set of an object; nil: there is none of that name. It returns the set that
// the object belongs to, or belonged to; false: it is foreign.
func (x *owned) observe(name string, o *Observed) (Identity, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	id, known := x.set[name]
	switch {
	case o == nil || !o.Owned:
		x.remove(name)
		return id, known
	case !known:
		x.add(name, o.Identity)
		return o.Identity, true
	default:
		return id, true
	}
}

// give makes an object that is written for a set one of the set's.
func (x *owned) give(name string, id Identity) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.remove(name)
	x.add(name, id)
}

// withdraw undoes a give whose write has failed: the object, nil if there is none of that name, is
// of the set in its labels.
func (x *owned) withdraw(name string, o *Observed) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.remove(name)
	if o != nil && o.Owned {
		x.add(name, o.Identity)
	}
}

func (x *owned) add(name string, id Identity) {
	x.set[name] = id
	put(x.names, id, name)
	x.clusters[id.Cluster]++
}

func (x *owned) remove(name string) {
	id, known := x.set[name]
	if !known {
		return
	}
	delete(x.set, name)
	drop(x.names, id, name)
	if x.clusters[id.Cluster]--; x.clusters[id.Cluster] == 0 {
		delete(x.clusters, id.Cluster)
	}
}

// of returns the set of an object; false: it is not known as one of ours.
func (x *owned) of(name string) (Identity, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	id, known := x.set[name]
	return id, known
}

// objects returns the names of a set's objects, in no order.
func (x *owned) objects(id Identity) []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	names := make([]string, 0, len(x.names[id]))
	for name := range x.names[id] {
		names = append(names, name)
	}
	return names
}

// all returns the sets of all objects, by name, of clusters that are selected.
func (x *owned) all(cluster func(string) bool) map[string]Identity {
	x.mu.Lock()
	defer x.mu.Unlock()
	all := map[string]Identity{}
	for name, id := range x.set {
		if cluster(id.Cluster) {
			all[name] = id
		}
	}
	return all
}

// number returns the number of a cluster's objects.
func (x *owned) number(cluster string) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.clusters[cluster]
}
