package policy

import (
	"cmp"
	"net/netip"
	"slices"
)

// Object is the desired state of a GlobalNetworkSet. A large set has several objects.
type Object struct {
	Name string
	// Identity is that of the object's labels.
	Identity Identity
	// Addrs are sorted and without duplicates. Nets have them with their full length.
	Addrs []netip.Addr
}

// Observed is a GlobalNetworkSet in the local cluster.
type Observed struct {
	// Object has only a name unless Owned is true.
	Object
	// Owned: the labels mark it as ours. Other objects are never changed.
	Owned bool
	// Exact: writing Object again would change nothing.
	Exact bool
	// Ranges are nets that aren't single addresses, which we never write, sorted.
	Ranges []string
	// Deleting: it is being deleted, and waits for finalizers.
	Deleting bool
	// Metadata is Calico's metadata annotation, if that has labels.
	Metadata string
	// Tracked is kube.Tracked. Untracked: there are no managed fields at all. By is
	// kube.LastManager.
	Tracked, Untracked bool
	By                 string
	// Sum is a fingerprint of what we write: labels and nets.
	Sum uint64
	// UID and ResourceVersion are those of Kubernetes.
	UID, ResourceVersion string
}

// of reports whether the object is ours, and of that cluster.
func (o *Observed) of(cluster string) bool { return o.Owned && o.Identity.Cluster == cluster }

func (o *Observed) matches(want *Object) bool {
	return o.Exact && o.Identity == want.Identity && slices.Equal(o.Addrs, want.Addrs)
}

// removes reports whether an object has what must be removed for want: addresses, or labels
// that let in its addresses as another set.
func (o *Observed) removes(want *Object) bool {
	return len(o.Ranges) > 0 || o.Identity != want.Identity || len(missing(o.Addrs, want.Addrs)) > 0
}

// missing returns the addresses in a that aren't in b; both are sorted.
func missing(a, b []netip.Addr) (all []netip.Addr) {
	eachMissing(a, b, func(addr netip.Addr) { all = append(all, addr) })
	return all
}

// Change is one object to write. Without Have it is created, without Want deleted.
type Change struct {
	Name string
	Have *Observed
	Want *Object
}

// Diff returns the changes from the observed to the desired objects of a set, sorted by name.
// All of have are ours.
func Diff(have map[string]*Observed, want []Object) []Change {
	var changes []Change
	wanted := make(map[string]bool, len(want))
	for i := range want {
		w := &want[i]
		wanted[w.Name] = true
		if existing := have[w.Name]; existing == nil || !existing.matches(w) {
			changes = append(changes, Change{Name: w.Name, Have: existing, Want: w})
		}
	}
	for name, existing := range have {
		if !wanted[name] && !existing.Deleting {
			changes = append(changes, Change{Name: name, Have: existing})
		}
	}
	slices.SortFunc(changes, func(a, b Change) int { return cmp.Compare(a.Name, b.Name) })
	return changes
}

// Ease returns the objects to write in the next round from have to want: want, but an address
// that moves between objects stays in the old one until the new one has it, so that it is
// always in the set. stay reports whether there is such an address. After the result has been
// written Ease returns want.
func Ease(have map[string]*Observed, want []Object) (eased []Object, stay bool) {
	gained := map[netip.Addr]bool{}
	wanted := make(map[string]int, len(want))
	for i := range want {
		wanted[want[i].Name] = i
		var there []netip.Addr
		if o := have[want[i].Name]; o != nil {
			there = o.Addrs
		}
		eachMissing(want[i].Addrs, there, func(addr netip.Addr) { gained[addr] = true })
	}
	if len(gained) == 0 || len(have) == 0 {
		return want, false
	}
	eased = slices.Clone(want)
	for name, existing := range have {
		i, stays := wanted[name]
		var keeps, more []netip.Addr
		if stays {
			keeps = want[i].Addrs
		}
		eachMissing(existing.Addrs, keeps, func(addr netip.Addr) {
			if gained[addr] {
				more = append(more, addr)
			}
		})
		if len(more) == 0 {
			continue
		}
		stay = true
		all := slices.Concat(keeps, more)
		slices.SortFunc(all, netip.Addr.Compare)
		if stays {
			eased[i].Addrs = all
		} else {
			eased = append(eased, Object{Name: name, Identity: existing.Identity, Addrs: all})
		}
	}
	return eased, stay
}

// eachMissing calls missing for the addresses in a that aren't in b; both are sorted.
func eachMissing(a, b []netip.Addr, missing func(netip.Addr)) {
	for _, addr := range a {
		for len(b) > 0 && b[0].Less(addr) {
			b = b[1:]
		}
		if len(b) > 0 && b[0] == addr {
			b = b[1:]
			continue
		}
		missing(addr)
	}
}
