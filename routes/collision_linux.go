package routes

import (
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
)

// OccupiedByHost returns the current addresses of this host and of its default gateways,
// except those on our devices, and on bridges and dummies that lead to no gateway: bridges
// have addresses of local containers, which the node doesn't depend on unless they are
// its pods, and dummies those of services, some of which any user may choose
// (externalIPs).
func OccupiedByHost() ([]Occupied, error) {
	addrs, err := dumpAddresses()
	if err != nil {
		return nil, err
	}
	ours, err := devicesOfOurs()
	if err != nil {
		return nil, err
	}
	gateways, uplinks := defaultGateways()
	names := map[int]string{} // by index; empty: ignored
	for index := range ours {
		names[index] = ""
	}
	var occupied []Occupied
	for _, a := range addrs {
		if a.IPNet == nil {
			continue
		}
		addr, ok := netip.AddrFromSlice(a.IP)
		if addr = addr.Unmap(); !ok || !addr.IsGlobalUnicast() {
			continue
		}
		name, known := names[a.LinkIndex]
		if !known {
			l, err := netlink.LinkByIndex(a.LinkIndex)
			if err != nil {
				continue // just removed
			}
			if inner := l.Type() == "bridge" || l.Type() == "dummy"; !inner || slices.Contains(uplinks, a.LinkIndex) {
				name = l.Attrs().Name
			}
			names[a.LinkIndex] = name
		}
		if name != "" {
			occupied = append(occupied, Occupied{netip.PrefixFrom(addr, addr.BitLen()), "an address of this node (" + name + ")"})
		}
	}
	for _, g := range gateways {
		occupied = append(occupied, Occupied{netip.PrefixFrom(g, g.BitLen()), "the default gateway of this node"})
	}
	return occupied, nil
}

// defaultGateways returns the default gateways of both families and the indexes of their
// links.
func defaultGateways() (gateways []netip.Addr, links []int) {
	for _, to := range DocumentationAddrs() {
		found, err := netlink.RouteGet(to.AsSlice())
		if err != nil {
			continue
		}
		for i := range found {
			links = append(links, found[i].LinkIndex)
			if g, ok := netip.AddrFromSlice(found[i].Gw); ok && g.Unmap().IsGlobalUnicast() {
				gateways = append(gateways, g.Unmap())
			}
		}
	}
	return gateways, links
}
