package routes

import (
	"cmp"
	"net/netip"
	"slices"
)

// localAddress is an address of this host.
type localAddress struct {
	addr  netip.Addr
	index int // of its link
	// usable is false for addresses that the kernel refuses or avoids as a source.
	usable bool
	ours   bool // on one of our devices
}

// choose returns, per family, the lowest usable address inside one of the prefixes on the
// link with the lowest index, IPv4 first.
func choose(local []localAddress, within []netip.Prefix) []netip.Addr {
	var fit []localAddress
	for _, l := range local {
		if l.usable && !l.ours && slices.ContainsFunc(within, func(p netip.Prefix) bool { return p.Contains(l.addr) }) {
			fit = append(fit, l)
		}
	}
	slices.SortFunc(fit, func(a, b localAddress) int {
		return cmp.Or(
			cmp.Compare(a.addr.BitLen(), b.addr.BitLen()),
			cmp.Compare(a.index, b.index),
			a.addr.Compare(b.addr),
		)
	})
	var chosen []netip.Addr
	for _, l := range fit {
		if len(chosen) == 0 || chosen[len(chosen)-1].BitLen() != l.addr.BitLen() {
			chosen = append(chosen, l.addr)
		}
	}
	return chosen
}
