package routes

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// NewUnderlay returns an empty underlay, of packets with the firewall mark (0: none), in the
// network namespace of the threads that call [Underlay.Paths].
func NewUnderlay(mark uint32) *Underlay {
	look := func(to netip.Addr, mtus map[int]int) (cachedPath, error) { return lookUp(to, mark, mtus) }
	return &Underlay{lookUp: look, now: time.Now}
}

// lookUp reads the route to an address, and its links. Path MTUs that the kernel learned
// from ICMP are ignored, since they can be forged.
func lookUp(to netip.Addr, mark uint32, mtus map[int]int) (cachedPath, error) {
	found, err := netlink.RouteGetWithOptions(to.AsSlice(), &netlink.RouteGetOptions{Mark: mark, FIBMatch: true})
	switch {
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.EACCES),
		errors.Is(err, unix.EINVAL), errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EOPNOTSUPP):
		return cachedPath{}, nil // none, or none of that address family
	case err != nil:
		return cachedPath{}, fmt.Errorf("look up the route to %s: %w", to, err)
	}
	w := cachedPath{path: tunnel.UnderlayPath{To: to}, links: make(map[int]int)}
	for i := range found {
		route := &found[i]
		if route.Type != unix.RTN_UNICAST {
			continue
		}
		if err := w.add(mtus, route.LinkIndex, route.Gw != nil || route.Via != nil); err != nil {
			return cachedPath{}, err
		}
		for _, hop := range route.MultiPath {
			if err := w.add(mtus, hop.LinkIndex, hop.Gw != nil || hop.Via != nil); err != nil {
				return cachedPath{}, err
			}
		}
		if route.MTU > 0 && w.path.MTU > 0 {
			w.path.MTU, w.path.Stated = min(w.path.MTU, route.MTU), true
		}
	}
	return w, nil
}

// add adds a link of the path.
func (w *cachedPath) add(mtus map[int]int, index int, routed bool) error {
	if index == 0 {
		return nil
	}
	mtu, known := mtus[index]
	if !known {
		link, err := netlink.LinkByIndex(index)
		if _, missing := errors.AsType[netlink.LinkNotFoundError](err); missing {
			return nil // just removed
		}
		if err != nil {
			return fmt.Errorf("read the link with index %d: %w", index, err)
		}
		mtu = link.Attrs().MTU
		mtus[index] = mtu
	}
	if w.path.MTU == 0 || mtu < w.path.MTU {
		w.path.MTU = mtu
	}
	w.path.Routed = w.path.Routed || routed
	w.links[index] = mtu
	return nil
}

// concernsLink and concernsRoute report whether an event may have changed a path; true if in doubt.
func (u *Underlay) concernsLink(msg syscall.NetlinkMessage) bool {
	if len(msg.Data) < unix.SizeofIfInfomsg {
		return true
	}
	header := nl.DeserializeIfInfomsg(msg.Data)
	if msg.Header.Type == unix.RTM_DELLINK || header.Flags&unix.IFF_UP == 0 {
		// The kernel removes its IPv4 routes without an event.
		return u.linkChanged(int(header.Index), 0)
	}
	attrs, err := nl.ParseRouteAttr(msg.Data[unix.SizeofIfInfomsg:])
	if err != nil {
		return true
	}
	for _, attr := range attrs {
		if attr.Attr.Type == unix.IFLA_MTU && len(attr.Value) >= 4 {
			return u.linkChanged(int(header.Index), int(binary.NativeEndian.Uint32(attr.Value)))
		}
	}
	return false
}

func (u *Underlay) concernsRoute(data []byte) bool {
	if len(data) < unix.SizeofRtMsg {
		return true
	}
	header := nl.DeserializeRtMsg(data)
	// Ours count: endpoints may be inside the pod subnets.
	if header.Type == unix.RTN_LOCAL || header.Flags&unix.RTM_F_CLONED != 0 {
		return false
	}
	to := netip.IPv4Unspecified()
	if header.Family == unix.AF_INET6 {
		to = netip.IPv6Unspecified()
	}
	attrs, err := nl.ParseRouteAttr(data[unix.SizeofRtMsg:])
	if err != nil {
		return true
	}
	for _, attr := range attrs {
		if attr.Attr.Type == unix.RTA_DST {
			to, _ = netip.AddrFromSlice(attr.Value)
		}
	}
	return u.routeChanged(netip.PrefixFrom(to, int(header.Dst_len)))
}
