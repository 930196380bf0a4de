package routes

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"
)

// FilterTable is the name of the nftables table of ours, of the family inet. As
// is the custom with nftables the name says whose it is: a table of this name is
// made what it must be, and no other table is touched.
const FilterTable = "semaphore-wireguard"

// ErrNoFilter says that the kernel can't filter packets by their source, because
// it has no nf_tables or lacks a part of it.
var ErrNoFilter = errors.New("the kernel lacks nf_tables, or its part nft_fib_inet")

// Origin says where the packets of one remote cluster come in.
type Origin struct {
	// Device is the name of the link. It need not exist.
	Device string
	// Subnets hold the source addresses of these packets.
	Subnets []netip.Prefix
}

// Dropped counts the packets that a filter has dropped since it was installed,
// by the device that they should have come through.
type Dropped map[string]uint64

// claim is one subnet and the device that its packets come through.
type claim struct {
	subnet netip.Prefix
	device string
}

// claims returns what the origins claim, sorted. A subnet inside an earlier one
// is left out: no two of a configuration overlap.
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
