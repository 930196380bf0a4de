package routes

import (
	"bytes"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// watcher classifies the kernel's events.
type watcher struct {
	MonitorConfig
	indices map[int32]bool // of links that had the name of a device of ours
}

func (w *watcher) concerns(msg syscall.NetlinkMessage) Concern {
	switch msg.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		return w.ofLink(msg.Data)
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		return w.ofAddress(msg.Data)
	case unix.RTM_NEWRULE, unix.RTM_DELRULE:
		return ofRule(msg.Data)
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		return ofRoute(msg.Data)
	default:
		return 0
	}
}

// attribute returns the value of an attribute after a header of the given size; nil: none.
// ok is false when the message is invalid.
func attribute(data []byte, header int, kind uint16) (value []byte, ok bool) {
	if len(data) < header {
		return nil, false
	}
	attrs, err := nl.ParseRouteAttr(data[header:])
	if err != nil {
		return nil, false
	}
	for _, attr := range attrs {
		if attr.Attr.Type == kind {
			return attr.Value, true
		}
	}
	return nil, true
}

// ofLink recognizes our links by name, and by index after a renaming.
func (w *watcher) ofLink(data []byte) Concern {
	name, ok := attribute(data, unix.SizeofIfInfomsg, unix.IFLA_IFNAME)
	if !ok || name == nil {
		return ConcernLinks | ConcernRoutes
	}
	index := nl.DeserializeIfInfomsg(data).Index
	if slices.Contains(w.Devices, string(bytes.TrimRight(name, "\x00"))) {
		w.indices[index] = true
	}
	if w.indices[index] {
		return ConcernLinks | ConcernRoutes
	}
	return 0
}

func (w *watcher) ofAddress(data []byte) Concern {
	local, ok := attribute(data, unix.SizeofIfAddrmsg, unix.IFA_LOCAL)
	if ok && local == nil { // as of IPv6 without a peer address
		local, ok = attribute(data, unix.SizeofIfAddrmsg, unix.IFA_ADDRESS)
	}
	addr, valid := netip.AddrFromSlice(local)
	if !ok || !valid || w.Source == nil || w.Source(addr) {
		return ConcernAddresses | ConcernRoutes
	}
	return ConcernAddresses
}

// ofRule recognizes our rules by their protocol. Kernels before 4.17 don't send it: then
// any rule may be ours.
func ofRule(data []byte) Concern {
	mark, ok := attribute(data, unix.SizeofRtMsg, nl.FRA_PROTOCOL)
	if !ok || len(mark) != 1 || mark[0] == Protocol {
		return ConcernRoutes
	}
	return 0
}

// ofRoute recognizes our routes by their protocol, and those in our own table.
func ofRoute(data []byte) Concern {
	if len(data) < unix.SizeofRtMsg {
		return ConcernRoutes
	}
	header := nl.DeserializeRtMsg(data)
	if header.Protocol == Protocol {
		return ConcernRoutes
	}
	// Numbers above 255 are in an attribute.
	if table, ok := attribute(data, unix.SizeofRtMsg, unix.RTA_TABLE); !ok || len(table) == 4 && nl.NativeEndian().Uint32(table) == OwnTable {
		return ConcernRoutes
	}
	return 0
}
