package routes

import "net/netip"

// Mapping is a subnet of this cluster's pods and the virtual subnet by which other clusters know
// it, see [Ruleset]. Both are masked, and of one family and length.
type Mapping struct{ Real, Virtual netip.Prefix }

// parts are the parts of a ruleset that not all kernels can do.
type parts struct {
	// sources needs nft_fib_inet where nodes are inside pod subnets.
	sources bool
	// rewrite changes addresses, which nft_payload does since Linux 4.10.
	rewrite bool
	// hairpin needs NF_NAT_RANGE_NETMAP in chains of the family inet: Linux 5.8.
	hairpin bool
}

// attempts returns the parts to try, those first that are the most.
func (r *Ruleset) attempts() []parts {
	all := []parts{{true, true, true}}
	if len(r.Map) > 0 {
		all = append(all, parts{sources: true, rewrite: true})
	}
	if len(r.Origins)+len(r.Shared) > 0 {
		all = append(all, parts{rewrite: true, hairpin: true})
	}
	if len(r.Map) > 0 {
		all = append(all, parts{rewrite: true}, parts{sources: true}, parts{})
	}
	return all
}
