// Package routes routes packets for remote pod subnets into the tunnel, and nowhere else.
//
// Every remote pod subnet has two routes. The device route sends its packets into the
// remote's WireGuard device. The guard, an unreachable route to the same prefix with the
// worst metric, takes effect when the device route is gone: the kernel removes that with
// its device, and without a guard the packets would leave unencrypted through the default
// route.
//
// Both are in our own table, [OwnTable], to which policy rules send the packets before the
// main table (see [Table.Fence]): foreign routes in the main table, to a remote pod subnet
// or a part of one, have no effect. While rules or routes are missing, as other programs have
// flushed them, packets are dropped where they leave (see [Exit]).
//
// Encrypted packets have a firewall mark, with which they pass these rules (see
// [Table.SetMark]): a remote's nodes may have addresses inside its pod subnets.
//
// All have the route protocol [Protocol], which marks ownership: routes with it are
// reconciled, including the removal of unwanted ones, and routes without it are never
// changed.
//
// Packets with a source in a remote pod subnet must have arrived through the tunnel, see
// [Filter].
//
// A foreign policy rule before ours decides first. It is never changed; packets that it leads
// past the tunnel are dropped where they leave, and counted (see [Exit]).
package routes

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"
)

// Protocol is the route protocol (rtm_protocol in rtnetlink(7)) that marks routes as ours.
// User space may use any number above 4. The value must not change, so that every version
// recognises its routes.
const Protocol = 115

// OwnTable is the number of our routing table, which has no other routes. Small numbers
// are in use: network plugins count from 1 or from 1000, often by the index of a link, and
// the kernel's own end at 255.
const OwnTable = 115115

// Metrics of our routes. IPv4 has metric 0 and prefers it to all others. IPv6 turns 0 into
// 1024 (IP6_RT_PRIO_USER), which is set explicitly to recognise the route when it is read
// back. The guard's is the worst possible one.
const (
	deviceMetric4 = 0
	deviceMetric6 = 1024
	guardMetric   = math.MaxUint32
)

// Route is one route of ours.
type Route struct {
	// Prefix is the destination, masked.
	Prefix netip.Prefix
	// Device is the index of the outgoing link, 0 for a guard.
	Device int
	// Src is the preferred source address of packets from this host itself; the zero Addr
	// leaves the choice to the kernel. Forwarded packets keep theirs.
	Src netip.Addr
	// Guard marks the route that makes packets fail at once with "host unreachable" when
	// there is no device route.
	Guard bool
}

// String formats the route like ip-route(8).
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

// slot identifies a route in a table: at most one of our routes has a slot, and the kernel
// replaces the route with the same one.
type slot struct {
	prefix netip.Prefix
	metric uint32
}

func (r Route) slot() slot { return slot{prefix: r.Prefix, metric: r.metric()} }

// compare sorts guards before device routes, then by prefix, so that guards are installed
// first.
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

// Desired returns the routes for the pod subnets of a remote cluster: a guard for each
// subnet and, when device is a link index (above 0), a route into the device. src has at
// most one preferred source address per family. The result is sorted and unique.
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

// Retain adapts want while its inputs are provisional. Installed device routes to the same
// prefix through the same device are retained with their source. Missing ones are added
// only with add: without it the device has not been verified yet.
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

// Diff returns the changes from have to want. All of add is to be applied before remove.
// An added route replaces the removed one with the same slot atomically, so the prefix is
// never without a route. Guards come first in add and last in remove. The arguments may be
// in any order and are not modified.
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

// Error is a fault with one route. The error of a Sync joins one for each faulty route.
type Error struct {
	Route Route
	Err   error
}

func (e *Error) Error() string { return fmt.Sprintf("route %s: %v", e.Route, e.Err) }

// Unwrap returns ErrInTheWay or the error of the kernel, such as unix.ENETDOWN for a device
// that is down.
func (e *Error) Unwrap() error { return e.Err }

// Changes counts what a Sync did.
type Changes struct {
	// Added, Replaced and Removed are numbers of routes. Replacing is atomic.
	Added, Replaced, Removed int
}
