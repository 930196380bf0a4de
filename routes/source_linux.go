package routes

import (
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// unusableFlags mark addresses that can't be a source: not verified as unique, or
// deprecated (RFC 4862, section 5.5.4).
const unusableFlags = unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED | unix.IFA_F_DEPRECATED

// Source returns the preferred source addresses by which processes of this host reach
// remote pods: per family one address of this host inside the node's own pod subnets,
// because only those are routed back by the remote's nodes. It is the address of the
// network plugin's bridge or tunnel device: cni0 of Flannel and the reference plugins,
// tunl0 or vxlan.calico of Calico.
//
// Of several, the lowest address on the link with the lowest index is chosen, which is
// stable. The result is empty when the host has no such address.
func Source(nodePodCIDRs []netip.Prefix) ([]netip.Addr, error) {
	local, err := localAddresses()
	if err != nil {
		return nil, err
	}
	return choose(local, nodePodCIDRs), nil
}

// Local reports whether addr is an address of this host that can be a source. The kernel
// refuses routes with any other preferred source, so a configured one is checked first.
func Local(addr netip.Addr) (bool, error) {
	local, err := localAddresses()
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(local, func(l localAddress) bool { return l.usable && !l.ours && l.addr == addr }), nil
}

// localAddresses returns the addresses of this host. Those on our devices are marked: they
// are copies of the network plugin's, and must not replace it when that is removed.
func localAddresses() ([]localAddress, error) {
	addrs, err := dumpAddresses()
	if err != nil {
		return nil, err
	}
	devices, err := devicesOfOurs()
	if err != nil {
		return nil, err
	}
	local := make([]localAddress, 0, len(addrs))
	for _, a := range addrs {
		if a.IPNet == nil {
			continue
		}
		addr, ok := netip.AddrFromSlice(a.IP)
		if !ok {
			continue
		}
		local = append(local, localAddress{
			addr: addr, index: a.LinkIndex, usable: a.Flags&unusableFlags == 0,
			ours: devices[a.LinkIndex],
		})
	}
	return local, nil
}
