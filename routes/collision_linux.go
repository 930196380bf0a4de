package routes

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// servicesLink is where kube-proxy's IPVS mode puts the addresses of all services,
// also those that users may choose (externalIPs).
const servicesLink = "kube-ipvs0"

// nowhere are addresses that nobody has (RFC 5737, RFC 3849): what is sent there goes
// to the default gateway.
var nowhere = [...]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}

// OccupiedByHost returns the addresses of this host and of its default gateways, as
// the kernel knows them now. What is on devices of ours doesn't count.
func OccupiedByHost(ctx context.Context) ([]Occupied, error) {
	addrs, err := dumpAddresses()
	if err != nil {
		return nil, err
	}
	devices, err := tunnel.List(ctx)
	if err != nil {
		return nil, err
	}
	names := map[int]string{}
	var occupied []Occupied
	for _, a := range addrs {
		if a.IPNet == nil || slices.ContainsFunc(devices, func(l tunnel.Link) bool { return l.Index == a.LinkIndex }) {
			continue
		}
		addr, _ := netip.AddrFromSlice(a.IP)
		if addr = addr.Unmap(); !addr.IsGlobalUnicast() {
			continue
		}
		if _, known := names[a.LinkIndex]; !known {
			l, err := netlink.LinkByIndex(a.LinkIndex)
			if err != nil {
				continue // it has just gone
			}
			names[a.LinkIndex] = l.Attrs().Name
		}
		if name := names[a.LinkIndex]; name != servicesLink {
			occupied = append(occupied, Occupied{netip.PrefixFrom(addr, addr.BitLen()), "an address of this node (" + name + ")"})
		}
	}
	for _, to := range nowhere {
		found, err := netlink.RouteGet(to.AsSlice())
		if errors.Is(err, unix.EPERM) {
			return nil, fmt.Errorf("read the default gateway: %w", err)
		}
		if err != nil {
			continue // there is none
		}
		for i := range found {
			if gateway, ok := netip.AddrFromSlice(found[i].Gw); ok && gateway.Unmap().IsGlobalUnicast() {
				gateway = gateway.Unmap()
				occupied = append(occupied, Occupied{netip.PrefixFrom(gateway, gateway.BitLen()), "the default gateway of this node"})
			}
		}
	}
	return occupied, nil
}
