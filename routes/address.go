package routes

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// Target is a device of ours and what is reached through it.
type Target struct {
	Device  int            // index of its link, 0: there is none
	Subnets []netip.Prefix // of the remote's pods
}

// Address is an address of this host on a device of ours, with all its bits as
// prefix: nothing is reached through it.
type Address struct {
	Device int // index of the link
	Addr   netip.Addr
}

// String describes the address in the words of ip-address(8).
func (a Address) String() string {
	return fmt.Sprintf("%s dev %d", netip.PrefixFrom(a.Addr, a.Addr.BitLen()), a.Device)
}

func compareAddresses(a, b Address) int {
	return cmp.Or(cmp.Compare(a.Device, b.Device), a.Addr.Compare(b.Addr))
}

// DesiredAddresses returns the addresses that devices of ours need besides routes
// with a preferred source: the same one, on each device with subnets of its family.
//
// The preferred source of a route is for sockets only. kube-proxy masquerades what
// this host sends to a service, and the kernel then takes an address of the link
// that the packet leaves by (inet_select_addr and ipv6_dev_get_saddr); of a link
// without one it takes any of the host's, mostly the one of the uplink, which the
// other side drops because no node has it in its allowed IPs.
//
// The address is one that this host has already, so nothing about which addresses
// are this host's changes, and no link with addresses of its own prefers it.
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

// diffAddresses returns what leads from have to want.
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
