package peers

import (
	"net/netip"
	"slices"
)

// Shared returns those of a remote's pod subnets that contain published endpoints of its
// nodes, accepted or not.
func Shared(subnets []netip.Prefix, nodes []*Node) []netip.Prefix {
	endpoints := make([]netip.Addr, 0, len(nodes))
	for _, n := range nodes {
		if n = n.parse(0); n.endpointErr == nil && n.endpoint.IsValid() {
			endpoints = append(endpoints, n.endpoint.Addr())
		}
	}
	return Around(subnets, endpoints)
}

// Around returns the subnets that contain addresses.
func Around(subnets []netip.Prefix, addrs []netip.Addr) []netip.Prefix {
	around := []netip.Prefix{}
	for _, s := range subnets {
		if slices.ContainsFunc(addrs, s.Contains) {
			around = append(around, s)
		}
	}
	return around
}
