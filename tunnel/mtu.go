package tunnel

import "net/netip"

const (
	// DefaultMTU is that of a new link while nothing is known of the underlay. It
	// suits 1500, which about every network carries.
	DefaultMTU = defaultUnderlay - overhead6
	// MinMTU is the least that a device gets by itself: IPv6 needs it (RFC 8200).
	// On an underlay that carries less, packets are fragmented.
	MinMTU = 1280
	// MaxMTU leaves room in the largest packet for the overhead.
	MaxMTU = 65535 - overhead6

	// What is added to a packet: the header of IPv4 or IPv6, that of UDP (8), and
	// WireGuard's own (32).
	overhead4 = 20 + 8 + 32
	overhead6 = 40 + 8 + 32

	defaultUnderlay = 1500
)

// Path is what this host knows of the way to an endpoint.
type UnderlayPath struct {
	To netip.Addr
	// MTU is the least of the link's and the route's, in bytes.
	MTU int
	// Routed says that a router is in between, whose next link isn't known.
	Routed bool
	// Stated says that a route has an MTU, which somebody meant for all of the way.
	Stated bool
}

// presumed returns what the path is presumed to carry to its end. Behind a router,
// the large packets of the own link may come to an end: those of a cloud's network
// (9001, 8896) do at its border. So there it is 1500, unless a route says more.
func (p UnderlayPath) presumed() int {
	if p.Routed && !p.Stated {
		return min(p.MTU, defaultUnderlay)
	}
	return p.MTU
}

// MTUFor returns the MTU of a device whose packets fit into all of the paths, from
// MinMTU to MaxMTU, and false when there are none. As wg-quick does, it counts the
// overhead of IPv6 also over IPv4, so that it is the same in a mesh over both.
func MTUFor(paths []UnderlayPath) (mtu int, known bool) {
	mtu = MaxMTU
	for _, p := range paths {
		mtu = min(mtu, p.presumed()-overhead6)
	}
	return max(mtu, MinMTU), len(paths) > 0
}

// LargestMTU returns the largest MTU of a device whose packets aren't fragmented on
// this host, and the path that allows no more. It is false when there are none.
func LargestMTU(paths []UnderlayPath) (mtu int, narrowest UnderlayPath, known bool) {
	mtu = MaxMTU
	for _, p := range paths {
		overhead := overhead6
		if p.To.Is4() {
			overhead = overhead4
		}
		if p.MTU-overhead < mtu {
			mtu, narrowest = p.MTU-overhead, p
		}
	}
	return mtu, narrowest, len(paths) > 0
}
