package tunnel

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Peer is a peer as configured.
type Peer struct {
	// PublicKey identifies the peer on its device.
	PublicKey Key
	// Endpoint is the destination of the first packet; zero: the peer has to send first.
	// Later packets follow the peer as it roams.
	Endpoint netip.AddrPort
	// AllowedIPs are masked, sorted and unique. No two peers of a device share one.
	AllowedIPs []netip.Prefix
	// Keepalive is the interval of persistent keepalives in whole seconds, at
	// most 65535; zero switches them off.
	Keepalive time.Duration
}

func (p Peer) equal(q Peer) bool {
	return p.PublicKey == q.PublicKey && p.Endpoint == q.Endpoint && p.Keepalive == q.Keepalive && slices.Equal(p.AllowedIPs, q.AllowedIPs)
}

// PeerStatus is a peer as read from the device.
type PeerStatus struct {
	Peer
	// PresharedKey is set if the peer has a preshared key. We never set one: it is foreign.
	PresharedKey bool
	// LastHandshake is zero if there was none since the peer was added.
	LastHandshake time.Time
	// RxBytes and TxBytes count bytes of encrypted packets.
	RxBytes, TxBytes int64
}

// Status is a device as read.
type Status struct {
	Name    string
	Index   int    // the link's ifindex
	Backend string // Kernel or Userspace
	// PublicKey is zero while the device has no private key.
	PublicKey  Key
	ListenPort int
	MTU        int
	Peers      []PeerStatus // sorted by key
}

// Changes counts the peers changed by [Device.Configure].
type Changes struct {
	Added, Updated, Removed int
	// Repaired is set when the device differed from the same peers that were written last,
	// and is no new one: another program had changed it.
	Repaired bool
}

// Any reports whether something was changed.
func (c Changes) Any() bool { return c != Changes{} }

// normalize returns the peers sorted by key, with masked, sorted and unique allowed IPs. It
// returns an error for what the device can't represent, since every comparison would find
// the same difference again. before is the result of an earlier call: a prefix of two peers
// is searched only among changed peers, because there may be tens of thousands.
func normalize(peers []Peer, self Key, before []Peer) ([]Peer, error) {
	out := slices.Clone(peers)
	slices.SortFunc(out, func(a, b Peer) int { return a.PublicKey.Compare(b.PublicKey) })
	var changed []int
	for i := range out {
		p := &out[i]
		switch {
		case p.PublicKey.IsZero():
			return nil, fmt.Errorf("peer without a public key")
		case p.PublicKey == self:
			return nil, fmt.Errorf("peer %s is this device itself", p.PublicKey)
		case i > 0 && out[i-1].PublicKey == p.PublicKey:
			return nil, fmt.Errorf("peer %s is listed twice", p.PublicKey)
		case p.Keepalive < 0 || p.Keepalive > maxKeepalive || p.Keepalive%time.Second != 0:
			return nil, fmt.Errorf("peer %s: keepalive %v is not a number of seconds up to 65535", p.PublicKey, p.Keepalive)
		}
		p.Endpoint = unmap(p.Endpoint)
		ips, err := normalizePrefixes(p.AllowedIPs)
		if err != nil {
			return nil, fmt.Errorf("peer %s: %w", p.PublicKey, err)
		}
		p.AllowedIPs = ips
		for len(before) > 0 && before[0].PublicKey.Compare(p.PublicKey) < 0 {
			before = before[1:]
		}
		if len(before) == 0 || before[0].PublicKey != p.PublicKey || !slices.Equal(before[0].AllowedIPs, ips) {
			changed = append(changed, i)
		}
	}
	return out, claimedOnce(out, changed)
}

// claimedOnce returns an error if one of the changed peers has a prefix of another peer.
func claimedOnce(peers []Peer, changed []int) error {
	if len(changed) == 0 {
		return nil
	}
	owner := make(map[netip.Prefix]int, len(changed))
	twice := func(a, b int, prefix netip.Prefix) error {
		return fmt.Errorf("peers %s and %s both claim %s", peers[a].PublicKey, peers[b].PublicKey, prefix)
	}
	for _, i := range changed {
		for _, prefix := range peers[i].AllowedIPs {
			if other, taken := owner[prefix]; taken {
				return twice(other, i, prefix)
			}
			owner[prefix] = i
		}
	}
	if len(changed) == len(peers) {
		return nil
	}
	for i := range peers {
		for _, prefix := range peers[i].AllowedIPs {
			if other, taken := owner[prefix]; taken && other != i {
				return twice(other, i, prefix)
			}
		}
	}
	return nil
}

const maxKeepalive = 65535 * time.Second

func normalizePrefixes(prefixes []netip.Prefix) ([]netip.Prefix, error) {
	for i, prefix := range prefixes {
		if !prefix.IsValid() || prefix.Addr().Is4In6() {
			return nil, fmt.Errorf("%v is not a usable prefix", prefix)
		}
		if prefix != prefix.Masked() || i > 0 && prefixes[i-1].Compare(prefix) >= 0 {
			return sortedPrefixes(prefixes)
		}
	}
	return prefixes, nil
}

func sortedPrefixes(prefixes []netip.Prefix) ([]netip.Prefix, error) {
	out := make([]netip.Prefix, 0, len(prefixes))
	for _, prefix := range prefixes {
		if !prefix.IsValid() || prefix.Addr().Is4In6() {
			return nil, fmt.Errorf("%v is not a usable prefix", prefix)
		}
		out = append(out, prefix.Masked())
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out), nil
}

// unmap turns an IPv4-mapped IPv6 address into IPv4: wireguard-go reports received IPv4
// endpoints in that form.
func unmap(endpoint netip.AddrPort) netip.AddrPort {
	if !endpoint.Addr().Is4In6() {
		return endpoint
	}
	return netip.AddrPortFrom(endpoint.Addr().Unmap(), endpoint.Port())
}
