package routes

import (
	"bytes"
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

func (w *watcher) subscribe() (*nl.NetlinkSocket, error) {
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE,
		unix.RTNLGRP_LINK,
		unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
		unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE,
		unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF)
	for _, u := range w.Underlays {
		u.invalidate() // Changes from here on cause events.
	}
	return socket, err
}

func (w *watcher) concerns(msg syscall.NetlinkMessage) (all Concern) {
	switch msg.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		all = w.ofLink(msg.Data) | w.ofPaths(func(u *Underlay) bool { return u.concernsLink(msg) })
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		all = ConcernAddresses
	case unix.RTM_NEWRULE, unix.RTM_DELRULE:
		all = ofRule(msg.Data)
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		all = ofRoute(msg.Data) | w.ofPaths(func(u *Underlay) bool { return u.concernsRoute(msg.Data) })
	case unix.RTM_NEWNETCONF:
		all = ofForwarding(msg.Data)
	}
	return all
}

// ofPaths asks all underlays, which record the change.
func (w *watcher) ofPaths(concerns func(*Underlay) bool) (c Concern) {
	for _, u := range w.Underlays {
		if concerns(u) {
			c = ConcernUnderlay
		}
	}
	return c
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
