package routes

import (
	"net/netip"
	"slices"
)

// Mapping is a subnet of this cluster's pods and the virtual subnet by which other clusters know
// it, see [Ruleset]. Both are masked, and of one family and length.
type Mapping struct{ Real, Virtual netip.Prefix }

// parts are the parts of a ruleset that not all kernels can do.
type parts struct {
	// sources drops forged sources.
	sources bool
	// shared also does so for pod subnets with nodes inside, which needs nft_fib_inet.
	shared bool
	// rewrite changes addresses, which nft_payload does since Linux 4.10.
	rewrite bool
	// hairpin needs NF_NAT_RANGE_NETMAP in chains of the family inet: Linux 5.8.
	hairpin bool
}

// attempts returns the parts to try, those first that are the most.
func (r *Ruleset) attempts() []parts {
	all := []parts{
		{true, true, true, true}, {true, true, true, false}, {true, false, true, true}, {true, false, true, false},
		{rewrite: true, hairpin: true}, {rewrite: true}, {sources: true, shared: true}, {sources: true}, {},
	}
	shared := len(r.sharedRules()) > 0
	return slices.DeleteFunc(all, func(p parts) bool {
		return len(r.Map) == 0 && (!p.rewrite || !p.hairpin) || p.sources && !p.shared && !shared
	})
}
