package routes

import (
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
)

// OccupiedByHost returns the addresses of this host and of its default gateways, as
// the kernel knows them now. What is on devices of ours doesn't count, nor what is on
// bridges and dummies that lead to no gateway: the former hold addresses of local
// containers, which the node doesn't depend on unless they are its pods, and the
// latter those of services, some of which any user may choose (externalIPs).
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
	names := map[int]string{} // by index; empty: doesn't count
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
				continue // it has just gone
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

// defaultGateways returns the gateways that packets to anywhere go to, and the indexes
// of the links that they leave by. A family without any has none.
func defaultGateways() (gateways []netip.Addr, links []int) {
	for _, to := range Nowhere() {
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
