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

// equal reports whether two objects are equal, or both nil.
func (o *Object) equal(p *Object) bool {
	if o == nil || p == nil {
		return o == p
	}
	return o.Identity == p.Identity && slices.Equal(o.Addrs, p.Addrs)
}

// Observed is a GlobalNetworkSet in the local cluster.
type Observed struct {
	// Object has only a name unless Owned is true.
	Object
	// Owned: the labels mark it as ours. Other objects are never changed.
	Owned bool
	// Exact: writing Object again would change nothing.
	Exact bool
	// Ranges: it has nets that aren't single addresses, which we never write.
	Ranges bool
	// Deleting: it is being deleted, and waits for finalizers.
	Deleting bool
	// Metadata is Calico's metadata annotation, if that has labels.
	Metadata string
	// Tracked is kube.Tracked. Untracked: there are no managed fields at all.
	Tracked, Untracked bool
	// UID and ResourceVersion are those of Kubernetes.
	UID, ResourceVersion string
}

func (o *Observed) matches(want *Object) bool {
	return o.Exact && o.Object.equal(want)
}

// removes reports whether an object has what must be removed for want: addresses, or labels
// that let in its addresses as another set.
func (o *Observed) removes(want *Object) bool {
	return o.Ranges || o.Identity != want.Identity || len(missing(o.Addrs, want.Addrs)) > 0
}

// Change is one object to write. Without Have it is created, without Want deleted.
type Change struct {
	Name string
	Have *Observed
	Want *Object
}

// removes reports whether a change takes something away.
func (c *Change) removes() bool {
	return c.Want == nil || c.Have != nil && c.Have.removes(c.Want)
}

// less returns what is left of an existing object without what is to be removed.
func (c *Change) less() *Object {
	o := Object{Name: c.Name, Identity: c.Want.Identity}
	for _, addr := range c.Want.Addrs {
		if contains(c.Have.Addrs, addr) {
			o.Addrs = append(o.Addrs, addr)
		}
	}
	return &o
}

// Diff returns the changes from the existing to the desired objects of a set, in the order in
// which they are to be made: what takes something away comes first.
//
//	| an address of an existing object is        | it                                       |
//	| ------------------------------------------ | ---------------------------------------- |
//	| in no desired object                       | goes                                     |
//	| in another one, which doesn't have it yet  | stays, so that it is always in the set   |
//	| in another one, which has it               | goes                                     |
//
// again reports whether an address stays in an object that it leaves: after the changes have
// been made, Diff has further ones.
func Diff(have map[string]*Observed, want []Object) (changes []Change, again bool) {
	coming := map[netip.Addr]struct{}{}
	wanted := make(map[string]*Object, len(want))
	for i := range want {
		w := &want[i]
		wanted[w.Name] = w
		var has []netip.Addr
		if o := have[w.Name]; o != nil {
			has = o.Addrs
		}
		eachMissing(w.Addrs, has, func(addr netip.Addr) { coming[addr] = struct{}{} })
		if have[w.Name] == nil {
			changes = append(changes, Change{Name: w.Name, Want: w})
		}
	}
	for name, o := range have {
		w := wanted[name]
		if leaving := leaving(o, w, coming); len(leaving) > 0 {
			again = true
			w = retain(Object{Name: name, Identity: want[0].Identity}, w, leaving)
		}
		if w == nil && o.Deleting { // It is in force until its finalizers are removed.
			w = &Object{Name: name, Identity: o.Identity}
		}
		if w == nil || !o.matches(w) {
			changes = append(changes, Change{Name: name, Have: o, Want: w})
		}
	}
	slices.SortFunc(changes, func(a, b Change) int {
		return cmp.Or(b2i(b.removes())-b2i(a.removes()), cmp.Compare(a.Name, b.Name))
	})
	return changes, again
}

// leaving returns the addresses of an object that are coming to another one; want is nil if the
// object is to be deleted.
func leaving(o *Observed, want *Object, coming map[netip.Addr]struct{}) (all []netip.Addr) {
	if len(coming) == 0 {
		return nil
	}
	var stay []netip.Addr
	if want != nil {
		stay = want.Addrs
	}
	eachMissing(o.Addrs, stay, func(addr netip.Addr) {
		if _, comes := coming[addr]; comes {
			all = append(all, addr)
		}
	})
	return all
}

// retain returns an object, as desired if it is, with further addresses.
func retain(o Object, want *Object, further []netip.Addr) *Object {
	if want != nil {
		o = *want
	}
	o.Addrs = slices.Concat(o.Addrs, further)
	slices.SortFunc(o.Addrs, netip.Addr.Compare)
	return &o
}

// missing returns the addresses in a that aren't in b; both are sorted.
func missing(a, b []netip.Addr) (all []netip.Addr) {
	eachMissing(a, b, func(addr netip.Addr) { all = append(all, addr) })
	return all
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

func contains(addrs []netip.Addr, addr netip.Addr) bool {
	_, found := slices.BinarySearchFunc(addrs, addr, netip.Addr.Compare)
	return found
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}
