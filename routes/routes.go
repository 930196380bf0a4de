// Package routes leads packets for remote pod subnets into the tunnel, and
// nowhere else.
//
// Every remote pod subnet has two routes. The device route sends its packets into
// the remote's WireGuard device. The guard, the same prefix as unreachable with the
// worst metric there is, takes over when the device route is gone: the kernel
// removes that one together with its device, and without a guard the packets would
// leave unencrypted through the default route.
//
// Both are in a table of our own, [OwnTable], to which policy rules send the packets
// before they come to the main table (see [Table.Fence]): what others have in the
// main table, inside a remote pod subnet or for exactly one, decides nothing. The
// same routes are in the main table as well, as far as there is room for them. They
// hold when somebody removes the rules, and are what the version before looks for.
//
// All carry the route protocol [Protocol]. It is the mark of ownership: routes
// with it are kept as wanted, including removal of those that are no longer
// wanted, and routes without it are never changed. The one exception is a route
// to exactly a wanted prefix through exactly the wanted device. The original
// tool leaves such routes (protocol boot) behind; they are replaced in place by
// ours.
//
// What claims to come from a remote pod subnet must have come out of the tunnel, see
// [Filter].
//
// Rules of others before ours, and the tables that these lead to, are the business
// of whoever made them.
package routes

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"
)

// Protocol is the route protocol (rtm_protocol in rtnetlink(7)) that marks
// routes as ours. User space may choose freely from numbers above 4; the value
// is the one of the design, fixed so that every version recognises its routes.
const Protocol = 115

// OwnTable is the number of the routing table of ours. It holds nothing else. Small
// numbers are others': network plugins count theirs up from 1 or from 1000, often by
// the index of a link, and the kernel's own end at 255.
const OwnTable = 115115

// Metrics of our routes. IPv4 knows metric 0 and prefers it to all others.
// IPv6 turns 0 into 1024 (IP6_RT_PRIO_USER), so that is named here to recognise
// the route when it is read back. The guard's is the worst possible one.
const (
	deviceMetric4 = 0
	deviceMetric6 = 1024
	guardMetric   = math.MaxUint32
)

// Route is one route of ours.
type Route struct {
	// Prefix is the destination, masked.
	Prefix netip.Prefix
	// Device is the index of the link that packets leave through, 0 for a guard.
	Device int
	// Src is the preferred source address of packets that this host itself
	// sends; the zero Addr leaves the choice to the kernel. Forwarded packets
	// keep theirs.
	Src netip.Addr
	// Guard marks the route that makes packets fail at once with "host
	// unreachable" when no device route is there to take them.
	Guard bool
}

// String describes the route in the words of ip-route(8).
func (r Route) String() string {
	if r.Guard {
		return fmt.Sprintf("unreachable %s metric %d", r.Prefix, r.metric())
	}
	s := fmt.Sprintf("%s dev %d", r.Prefix, r.Device)
	if r.Src.IsValid() {
		s += " src " + r.Src.String()
	}
	return s
}

func (r Route) metric() uint32 {
	switch {
	case r.Guard:
		return guardMetric
	case r.Prefix.Addr().Is4():
		return deviceMetric4
	default:
		return deviceMetric6
	}
}

// slot is what at most one of our routes may occupy. It is also what the kernel
// looks at to find the route that another one replaces.
type slot struct {
	prefix netip.Prefix
	metric uint32
}

func (r Route) slot() slot { return slot{prefix: r.Prefix, metric: r.metric()} }

// compare orders guards before device routes, then by prefix: a guard that is
// there first leaves no moment without one.
func compare(a, b Route) int {
	if a.Guard != b.Guard {
		if a.Guard {
			return -1
		}
		return 1
	}
	return cmp.Or(
		a.Prefix.Addr().Compare(b.Prefix.Addr()),
		cmp.Compare(a.Prefix.Bits(), b.Prefix.Bits()),
		cmp.Compare(a.Device, b.Device),
		a.Src.Compare(b.Src),
	)
}

// Desired returns the routes that a remote cluster with these pod subnets
// needs: a guard for each subnet and, when device is a link index (above 0), a
// route into the device. src holds at most one preferred source address per
// family; a subnet without one of its family gets none. The result is sorted
// and free of duplicates.
func Desired(subnets []netip.Prefix, device int, src []netip.Addr) []Route {
	want := make([]Route, 0, 2*len(subnets))
	for _, subnet := range subnets {
		prefix := subnet.Masked()
		want = append(want, Route{Prefix: prefix, Guard: true})
		if device > 0 {
			want = append(want, Route{Prefix: prefix, Device: device, Src: sourceFor(prefix, src)})
		}
	}
	return normalise(want)
}

// Retain adapts want to what isn't known yet. Device routes that are installed, to
// the same prefix through the same device, stay as they are, with their source. The
// others go in only with add: without it nobody has looked yet whether the device is
// the one that packets may go into, and a route that isn't there isn't needed.
func Retain(want, installed []Route, add bool) []Route {
	var kept []Route
	for _, w := range want {
		same := func(r Route) bool { return !r.Guard && r.Prefix == w.Prefix && r.Device == w.Device }
		at := slices.IndexFunc(installed, same)
		switch {
		case w.Guard || at < 0 && add:
			kept = append(kept, w)
		case at >= 0:
			kept = append(kept, installed[at])
		}
	}
	return kept
}

func sourceFor(prefix netip.Prefix, src []netip.Addr) netip.Addr {
	for _, addr := range src {
		if addr.Is4() == prefix.Addr().Is4() {
			return addr
		}
	}
	return netip.Addr{}
}

// Diff returns what leads from have to want. All of add goes in before any of
// remove goes out. An added route takes the place of the removed one with the
// same prefix and kind in one step, so the prefix is never without a route.
// Guards come first in add and last in remove. The arguments may be in any
// order and are left as they are.
func Diff(have, want []Route) (add, remove []Route) {
	have, want = normalise(have), normalise(want)
	for len(have) > 0 || len(want) > 0 {
		order := 0
		switch {
		case len(have) == 0:
			order = 1
		case len(want) == 0:
			order = -1
		default:
			order = compare(have[0], want[0])
		}
		if order > 0 {
			add = append(add, want[0])
		}
		if order < 0 {
			remove = append(remove, have[0])
		}
		if order <= 0 {
			have = have[1:]
		}
		if order >= 0 {
			want = want[1:]
		}
	}
	slices.Reverse(remove)
	return add, remove
}

func normalise(routes []Route) []Route {
	sorted := slices.SortedFunc(slices.Values(routes), compare)
	return slices.Compact(sorted)
}

// Error is a fault with one route. The joined error of a Sync holds one for
// each route that isn't as it should be.
type Error struct {
	Route Route
	Err   error
}

func (e *Error) Error() string { return fmt.Sprintf("route %s: %v", e.Route, e.Err) }

// Unwrap returns the fault itself: ErrInTheWay or the error of the kernel, such
// as unix.ENETDOWN for a device that is down.
func (e *Error) Unwrap() error { return e.Err }

// Changes counts what a Sync did.
type Changes struct {
	// Added, Replaced and Removed are numbers of routes. Replaced ones took the
	// place of an earlier route without a gap.
	Added, Replaced, Removed int
}
