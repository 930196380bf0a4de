package routes

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"
)

// FilterTable is the name of our nftables table, of the family inet. As is the convention
// with nftables, the name marks ownership: a table of this name is overwritten, and no
// other table is touched.
const FilterTable = "semaphore-wireguard"

// ErrNoFilter means that the kernel can't filter packets by their source, because it lacks
// nf_tables or a part of it.
var ErrNoFilter = errors.New("the kernel lacks nf_tables, or its part nft_fib_inet")

// Origin is where packets of one remote cluster arrive.
type Origin struct {
	// Device is the name of the link. It need not exist.
	Device string
	// Subnets contain the source addresses of these packets.
	Subnets []netip.Prefix
}

// Dropped counts the packets that a filter has dropped since it was installed, by the
// device through which they should have arrived.
type Dropped map[string]uint64

// claim is a subnet and the device through which its packets arrive.
type claim struct {
	subnet netip.Prefix
	device string
}

// claims returns the claims of the origins, sorted. Overlapping subnets, which a valid
// configuration doesn't have, are left out.
func claims(origins []Origin) []claim {
	var all []claim
	for _, o := range origins {
		for _, s := range o.Subnets {
			all = append(all, claim{subnet: s.Masked(), device: o.Device})
		}
	}
	slices.SortFunc(all, func(a, b claim) int {
		return cmp.Or(
			a.subnet.Addr().Compare(b.subnet.Addr()),
			cmp.Compare(a.subnet.Bits(), b.subnet.Bits()),
			cmp.Compare(a.device, b.device),
		)
	})
	var disjoint []claim
	for _, c := range all {
		if n := len(disjoint); n == 0 || !disjoint[n-1].subnet.Overlaps(c.subnet) {
			disjoint = append(disjoint, c)
		}
	}
	return disjoint
}
