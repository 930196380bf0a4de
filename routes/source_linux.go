package routes

import (
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// unusableFlags mark addresses that aren't fit as a source: not yet or never
// confirmed as unique, or being phased out (RFC 4862, section 5.5.4).
const unusableFlags = unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED | unix.IFA_F_DEPRECATED

// Source finds the preferred source addresses that let processes of this host
// talk to remote pods: per family one address of this host inside the node's
// own pod subnets, because only those are routed back by the remote's nodes. It
// is the address of the bridge or tunnel device that the network plugin made:
// cni0 of Flannel and the reference plugins, tunl0 or vxlan.calico of Calico.
//
// Where several fit, the one on the link with the lowest index and there the
// lowest address is taken, so the choice doesn't change from pass to pass. The
// result is empty when the host has no such address.
func Source(nodePodCIDRs []netip.Prefix) ([]netip.Addr, error) {
	local, err := localAddresses()
	if err != nil {
		return nil, err
	}
	return choose(local, nodePodCIDRs), nil
}

// Local reports whether addr is an address of this host that is fit as a
// source. The kernel refuses routes with any other preferred source, so a
// configured one is checked before it is asked for.
func Local(addr netip.Addr) (bool, error) {
	local, err := localAddresses()
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(local, func(l localAddress) bool { return l.usable && !l.ours && l.addr == addr }), nil
}

// localAddresses returns the addresses of this host. Those on devices of ours are
// marked: they follow what the network plugin has, and mustn't be found in its place
// when that is gone.
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
