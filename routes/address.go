package routes

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// Target is one of our devices and the subnets reached through it.
type Target struct {
	Device  int            // index of its link, 0: none
	Subnets []netip.Prefix // of the remote's pods
}

// Address is an address of this host on one of our devices, a single-address prefix: no
// connected route comes with it.
type Address struct {
	Device int // index of the link
	Addr   netip.Addr
}

// String formats the address like ip-address(8).
func (a Address) String() string {
	return fmt.Sprintf("%s dev %d", netip.PrefixFrom(a.Addr, a.Addr.BitLen()), a.Device)
}

func compareAddresses(a, b Address) int {
	return cmp.Or(cmp.Compare(a.Device, b.Device), a.Addr.Compare(b.Addr))
}

// DesiredAddresses returns the addresses that our devices need besides routes with a
// preferred source: the same source, on each device with subnets of its family.
//
// The preferred source of a route is for sockets only. kube-proxy masquerades packets of
// this host to a service, for which the kernel chooses an address of the outgoing link
// (inet_select_addr and ipv6_dev_get_saddr). For a link without one it chooses any of the
// host's, usually the uplink's, which the other side drops because no node has it in its
// allowed IPs.
//
// This host has the address already, so the set of its addresses doesn't change, and no
// link with addresses of its own prefers it.
func DesiredAddresses(targets []Target, src []netip.Addr) []Address {
	var want []Address
	for _, t := range targets {
		for _, addr := range src {
			here := func(p netip.Prefix) bool { return p.Addr().Is4() == addr.Is4() }
			if t.Device > 0 && slices.ContainsFunc(t.Subnets, here) {
				want = append(want, Address{Device: t.Device, Addr: addr})
			}
		}
	}
	slices.SortFunc(want, compareAddresses)
	return slices.Compact(want)
}

// diffAddresses returns the changes from have to want.
func diffAddresses(have, want []Address) (add, remove []Address) {
	for _, a := range want {
		if !slices.Contains(have, a) {
			add = append(add, a)
		}
	}
	for _, a := range have {
		if !slices.Contains(want, a) {
			remove = append(remove, a)
		}
	}
	return add, remove
}
