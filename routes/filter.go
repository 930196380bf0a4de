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

// ErrNoFilter means that the kernel can't filter packets, because it lacks nf_tables or a
// part of it. Only nodes inside pod subnets need nft_fib_inet. See [RequireFilter].
var ErrNoFilter = errors.New("the kernel lacks nf_tables, or its part nft_fib_inet")

// Origin is where packets of one remote cluster arrive.
type Origin struct {
	// Device is the name of the link. It need not exist.
	Device string
	// Subnets contain the source addresses of these packets.
	Subnets []netip.Prefix
}

// Exit is where packets to one remote cluster leave.
type Exit struct {
	// Device is the name of the link, which need not exist; empty: they don't leave.
	Device string
	// Subnets contain the destination addresses of these packets.
	Subnets []netip.Prefix
}

// Ruleset is what a [Filter] enforces: where packets with the source address of a remote
// pod arrive, and where packets to one leave.
type Ruleset struct {
	Origins []Origin
	Exits   []Exit
	// Mark is the firewall mark of encrypted packets; 0: none are exempt. With all of its bits
	// they leave by any link but the device, also to an address in a remote pod subnet.
	// Forwarded packets never do.
	Mark uint32
	// Shared are the subnets in which nodes of the remotes have addresses, too, by their
	// devices. From these addresses packets to the ports of this host arrive by any link. They
	// get the mark, so that a strict reverse path filter finds the routes of marked packets.
	// On links with such nodes IPv6 neighbour discovery works.
	Shared []Origin
	// Ports are the UDP ports of the devices that are used, by name, and Status the TCP port of this
	// program's status, or 0: neither is open to what arrives through these devices, as other packets
	// that aren't for pods or this host, see docs/decisions/0050.
	Ports  map[string]int
	Status int
	// Gone are the devices that are to be removed. Nothing that arrives through them passes.
	Gone []string
	// Map has the subnets of this cluster's pods with virtual ones: packets to these that arrive
	// through a device of the exits get the address of a pod, and packets of pods that leave
	// through one a virtual address. Packets to a virtual address are dropped where they leave.
	Map []Mapping
}

// State is what a [Filter] enforces, and has dropped since it was installed.
type State struct {
	// Arrival and Exit report whether packets are dropped as the origins and the exits of
	// the ruleset demand.
	Arrival, Exit bool
	// Translation reports whether addresses are translated by the map of the ruleset, and Hairpin
	// whether pods of this cluster reach each other by virtual addresses. Untranslated are the
	// packets dropped because they were not translated.
	Translation, Hairpin bool
	Untranslated         uint64
	// Forged and Stopped are the packets dropped for the origins and for the exits.
	Forged, Stopped Dropped
}

// Dropped counts packets by the device of an [Origin] or [Exit].
type Dropped map[string]uint64

// claim is a subnet and the device through which its packets arrive or leave.
type claim struct {
	subnet netip.Prefix
	device string
}

// shares reports whether nodes of the claim's remote have addresses in its subnet.
func (r *Ruleset) shares(c claim) bool {
	return r.Mark != 0 && slices.Contains(claims(r.Shared), c)
}

// claims returns the claims of origins or exits, sorted. Overlapping subnets, which a valid
// configuration doesn't have, are left out.
func claims[T Origin | Exit](ends []T) []claim {
	var all []claim
	for _, e := range ends {
		end := Origin(e)
		for _, s := range end.Subnets {
			all = append(all, claim{subnet: s.Masked(), device: end.Device})
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
