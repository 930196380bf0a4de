package policy

import (
	"cmp"
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
	// Deleting says that it will be gone when a finalizer has done its work.
	Deleting bool
	// Metadata is Calico's annotation of that name where it holds labels.
	Metadata string
	// Tracked says that the API server keeps who set which field, and that only we did.
	Tracked bool
	// UID and ResourceVersion are those of Kubernetes.
	UID, ResourceVersion string
}

// of reports whether the object is ours, and about pods of the cluster.
func (o *Observed) of(cluster string) bool { return o.Owned && o.Identity.Cluster == cluster }

func (o *Observed) matches(want *Object) bool {
	return o.Exact && o.Identity == want.Identity && slices.Equal(o.Addrs, want.Addrs)
}

// Change is one object to write. Without Have it is to be created, without Want
// to be deleted.
type Change struct {
	Name string
	Have *Observed
	Want *Object
}

// Diff returns the changes that make of the objects of a set what they must be,
// sorted by name. All of have are ours. After they have been made there is no
// difference.
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

// Ease returns what to write now on the way from have to want, the objects of one
// set: the same as want, but an address that leaves one object while another one
// doesn't hold it yet stays for the time being, so that it is somewhere at any time.
// It reports whether one does. When all that is new in the result has been written
// Ease returns want.
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

// eachMissing calls missing with what is in a but not in b, both sorted.
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
