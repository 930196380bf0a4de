package routes

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The library stores metrics in an int. With 32 bits the guard's would overflow to metric
// 0, so that the guard would win over the device route: there the package must not build.
const _ int = guardMetric

// dumpAttempts bounds the retries of a dump that the kernel marked as inconsistent,
// because objects changed meanwhile.
const dumpAttempts = 10

// retryInterrupted retries an interrupted list until it is consistent.
func retryInterrupted[T any](list func() ([]T, error)) ([]T, error) {
	for attempt := 1; ; attempt++ {
		found, err := list()
		if err == nil {
			return found, nil
		}
		if !errors.Is(err, netlink.ErrDumpInterrupted) || attempt == dumpAttempts {
			return nil, err
		}
	}
}

// snapshot is the part of a table that a Sync needs.
type snapshot struct {
	ours    []Route         // as we install them
	stray   []netlink.Route // with our protocol, but of another form
	foreign map[netip.Prefix][]netlink.Route
	// slots are those of all our routes and of those that we may replace.
	slots map[slot]bool
}

// occupied reports whether there is a route for r to replace.
func (s snapshot) occupied(r Route) bool { return s.slots[r.slot()] }

// read returns a snapshot of our own table: our routes, and foreign ones with the prefix of a
// wanted one.
func (t *Table) read(want []Route) (snapshot, error) {
	device := make(map[netip.Prefix]int, len(want))
	for _, r := range want {
		device[r.Prefix] = max(device[r.Prefix], r.Device)
	}
	return t.snapshot(OwnTable, device)
}

func (t *Table) snapshot(table int, device map[netip.Prefix]int) (snapshot, error) {
	var s snapshot
	_, err := retryInterrupted(func() ([]struct{}, error) {
		s = snapshot{foreign: make(map[netip.Prefix][]netlink.Route), slots: make(map[slot]bool)}
		return nil, t.dump(table, false, func(msg *netlink.Route) { s.add(msg, device) })
	})
	if err != nil {
		return snapshot{}, fmt.Errorf("read routing table: %w", err)
	}
	return s, nil
}

// dump calls add for the routes of a table, or only for ours. Kernels before 4.20 don't
// filter, and the library does.
func (t *Table) dump(table int, ours bool, add func(*netlink.Route)) error {
	filter, mask := &netlink.Route{Table: table}, netlink.RT_FILTER_TABLE
	if ours {
		filter.Protocol, mask = Protocol, mask|netlink.RT_FILTER_PROTOCOL
	}
	for _, family := range t.families() {
		err := t.dumps.RouteListFilteredIter(family, filter, mask, func(msg netlink.Route) bool {
			add(&msg)
			return true
		})
		// A table that never had a route doesn't exist.
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}

func (s *snapshot) add(msg *netlink.Route, device map[netip.Prefix]int) {
	r := fromMessage(msg)
	index, wanted := device[r.Prefix]
	switch {
	case msg.Protocol == Protocol && canonical(msg, r):
		s.ours = append(s.ours, r)
		s.slots[r.slot()] = true
	case msg.Protocol == Protocol:
		s.stray = append(s.stray, *msg)
		s.slots[slotOf(msg)] = true
	case wanted && msg.Tos == 0:
		s.foreign[r.Prefix] = append(s.foreign[r.Prefix], *msg)
		if index != 0 && msg.LinkIndex == index {
			s.slots[slotOf(msg)] = true
		}
	}
}

// takesPrecedence reports whether a foreign route to the same prefix makes the kernel
// refuse want or not use it. The lower metric wins, and only one route has the same
// metric. A route through the wanted device is fine: it leads into the tunnel.
func takesPrecedence(foreign *netlink.Route, want Route) bool {
	if want.Device != 0 && foreign.LinkIndex == want.Device {
		return false
	}
	if want.Guard {
		return uint32(foreign.Priority) == want.metric()
	}
	return uint32(foreign.Priority) <= want.metric()
}

// message returns the rtnetlink form of r in our own table.
func message(r Route) *netlink.Route {
	msg := &netlink.Route{
		Dst: &net.IPNet{
			IP:   r.Prefix.Addr().AsSlice(),
			Mask: net.CIDRMask(r.Prefix.Bits(), r.Prefix.Addr().BitLen()),
		},
		Table:     OwnTable,
		Protocol:  Protocol,
		Type:      unix.RTN_UNICAST,
		Scope:     unix.RT_SCOPE_LINK,
		Priority:  int(r.metric()),
		LinkIndex: r.Device,
	}
	if r.Guard {
		msg.Type, msg.Scope = unix.RTN_UNREACHABLE, unix.RT_SCOPE_UNIVERSE
	}
	if r.Src.IsValid() {
		msg.Src = r.Src.AsSlice()
	}
	return msg
}

// fromMessage is the inverse of message. It is lossless only for canonical messages.
func fromMessage(msg *netlink.Route) Route {
	r := Route{Prefix: prefixOf(msg), Guard: msg.Type == unix.RTN_UNREACHABLE}
	if !r.Guard {
		// A guard has no device; IPv6 reports the loopback there.
		r.Device = msg.LinkIndex
	}
	r.Src, _ = netip.AddrFromSlice(msg.Src)
	return r
}

// canonical reports whether msg, of which r is fromMessage, is message(r) as the kernel
// returns it. State that the kernel adds, such as "linkdown" of a device without carrier,
// is ignored.
func canonical(msg *netlink.Route, r Route) bool {
	want := message(r)
	return msg.Type == want.Type &&
		uint32(msg.Priority) == r.metric() &&
		(r.Prefix.Addr().Is6() || msg.Scope == want.Scope) && // IPv6 has no scopes
		msg.Tos == 0 && msg.Gw == nil && msg.Via == nil && msg.Encap == nil &&
		len(msg.MultiPath) == 0 && msg.MTU == 0 &&
		(r.Guard || r.Device != 0)
}

func prefixOf(msg *netlink.Route) netip.Prefix {
	if msg.Dst == nil {
		return netip.Prefix{}
	}
	addr, _ := netip.AddrFromSlice(msg.Dst.IP)
	ones, bits := msg.Dst.Mask.Size()
	if bits == 32 { // The library's default route has 16 bytes.
		addr = addr.Unmap()
	}
	return netip.PrefixFrom(addr, ones)
}

func slotOf(msg *netlink.Route) slot {
	return slot{prefix: prefixOf(msg), metric: uint32(msg.Priority)}
}

// describe formats a route like ip-route(8), with the device's name.
func (t *Table) describe(msg *netlink.Route) string {
	words := []string{prefixOf(msg).String()}
	if prefixOf(msg).Bits() <= 0 {
		words[0] = "default"
	}
	if kind, special := routeType(msg.Type); special {
		words = []string{kind, words[0]}
	}
	if msg.Gw != nil {
		words = append(words, "via", msg.Gw.String())
	}
	if msg.LinkIndex != 0 {
		name := fmt.Sprint(msg.LinkIndex)
		if link, err := t.handle.LinkByIndex(msg.LinkIndex); err == nil {
			name = link.Attrs().Name
		}
		words = append(words, "dev", name)
	}
	if msg.Src != nil {
		words = append(words, "src", msg.Src.String())
	}
	words = append(words, "protocol", msg.Protocol.String())
	if msg.Priority != 0 {
		words = append(words, "metric", fmt.Sprint(msg.Priority))
	}
	if msg.Table != unix.RT_TABLE_MAIN {
		words = append(words, "table", fmt.Sprint(msg.Table))
	}
	return strings.Join(words, " ")
}

// routeType returns ip-route(8)'s names of the types of routes that drop packets.
func routeType(kind int) (name string, special bool) {
	switch kind {
	case unix.RTN_UNREACHABLE:
		return "unreachable", true
	case unix.RTN_BLACKHOLE:
		return "blackhole", true
	case unix.RTN_PROHIBIT:
		return "prohibit", true
	case unix.RTN_THROW:
		return "throw", true
	default:
		return "", false
	}
}
