package policy

import (
	"cmp"
	"net/netip"
	"slices"
)

// Change is one object to write. Without Have it is to be created, without Want
// to be deleted.
type Change struct {
	Name string
	Have *Observed
	Want *Object
}

// Diff returns the changes that make what a cluster's sets must be of what they
// are, sorted by name; have may hold other objects, which stay out of it. After
// they have been made there is no difference.
func Diff(cluster string, have map[string]Observed, want []Object) []Change {
	var changes []Change
	wanted := make(map[string]bool, len(want))
	for i := range want {
		w := &want[i]
		wanted[w.Name] = true
		existing, exists := have[w.Name]
		switch {
		case !exists:
			changes = append(changes, Change{Name: w.Name, Want: w})
		case existing.of(cluster) && !existing.matches(w):
			changes = append(changes, Change{Name: w.Name, Have: &existing, Want: w})
		}
	}
	for name := range have {
		if existing := have[name]; existing.of(cluster) && !wanted[name] {
			changes = append(changes, Change{Name: name, Have: &existing})
		}
	}
	slices.SortFunc(changes, func(a, b Change) int { return cmp.Compare(a.Name, b.Name) })
	return changes
}

func (o *Observed) matches(want *Object) bool {
	return o.Exact && o.Identity == want.Identity && slices.Equal(o.Addrs, want.Addrs)
}

// Held is an address that stays in an object although it belongs there no
// longer, until the object that it moves to has it.
type Held struct {
	Object string
	Addr   netip.Addr
}

// Ease returns what to write now on the way from have to want: the same as want,
// but an address that leaves one object while another one doesn't hold it yet
// stays for the time being, so that it is somewhere at any time. When all that
// is new in the result has been written Ease returns want. Expired ones aren't
// held.
func Ease(cluster string, have map[string]Observed, want []Object, expired func(Held) bool) ([]Object, []Held) {
	gained := map[netip.Addr]bool{}
	wanted := make(map[string]int, len(want))
	for i := range want {
		wanted[want[i].Name] = i
		eachMissing(want[i].Addrs, have[want[i].Name].Addrs, func(addr netip.Addr) { gained[addr] = true })
	}
	if len(gained) == 0 {
		return want, nil
	}
	var held []Held
	eased := slices.Clone(want)
	for name := range have {
		existing := have[name]
		if !existing.of(cluster) {
			continue
		}
		i, stays := wanted[name]
		var keeps []netip.Addr
		if stays {
			keeps = want[i].Addrs
		}
		var more []netip.Addr
		eachMissing(existing.Addrs, keeps, func(addr netip.Addr) {
			h := Held{Object: name, Addr: addr}
			if gained[addr] && !expired(h) {
				more = append(more, addr)
				held = append(held, h)
			}
		})
		if len(more) == 0 {
			continue
		}
		all := slices.Concat(keeps, more)
		slices.SortFunc(all, netip.Addr.Compare)
		if stays {
			eased[i].Addrs = all
		} else {
			eased = append(eased, Object{Name: name, Identity: existing.Identity, Addrs: all})
		}
	}
	return eased, held
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
