package tunnel

import "net/netip"

const (
	// DefaultMTU is that of a new link while the underlay is unknown. It fits 1500, which
	// nearly every network carries.
	DefaultMTU = defaultUnderlay - overhead6
	// MinMTU is the smallest automatic MTU, which IPv6 requires (RFC 8200). On an underlay
	// that carries less, packets are fragmented.
	MinMTU = 1280
	// MaxMTU is the largest MTU whose packets fit an IP packet with the overhead.
	MaxMTU = 65535 - overhead6

	// Overhead of a packet: the IPv4 or IPv6 header, UDP (8), and WireGuard (32).
	overhead4 = 20 + 8 + 32
	overhead6 = 40 + 8 + 32

	defaultUnderlay = 1500
)

// UnderlayPath is the path to an endpoint as far as this host knows it.
type UnderlayPath struct {
	To netip.Addr
	// MTU is the minimum of the link's and the route's, in bytes.
	MTU int
	// Routed is set if the path has a gateway, whose next link is unknown.
	Routed bool
	// Stated is set if the route has an MTU, which an administrator set for the whole path.
	Stated bool
}

// presumed returns the presumed MTU of the whole path. Behind a gateway the MTU of the own
// link may be too large: that of a cloud's network (9001, 8896) ends at its border. There
// it is 1500, unless the route states more.
func (p UnderlayPath) presumed() int {
	if p.Routed && !p.Stated {
		return min(p.MTU, defaultUnderlay)
	}
	return p.MTU
}

// MTUFor returns the MTU of a device whose packets fit all paths, from MinMTU to MaxMTU;
// false without paths. Like wg-quick, it uses the overhead of IPv6 also over IPv4, so that
// it is the same in a mesh over both.
func MTUFor(paths []UnderlayPath) (mtu int, known bool) {
	mtu = MaxMTU
	for _, p := range paths {
		mtu = min(mtu, p.presumed()-overhead6)
	}
	return max(mtu, MinMTU), len(paths) > 0
}

// LargestMTU returns the largest MTU of a device whose packets aren't fragmented on this
// host, and the path that limits it; false without paths.
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
