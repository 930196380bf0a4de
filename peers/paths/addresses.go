package paths

import (
	"net/netip"
	"slices"

	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// AllowProbes adds to each peer's allowed IPs the address by which it is probed, and returns
// these addresses; invalid when it is that of this device, whose key is own, or of an earlier
// peer. Of two peers with the same address, which takes a search for such keys, only the first
// has it in its allowed IPs and is probed, so that no peer answers for another one.
func AllowProbes(own tunnel.Key, peers []tunnel.Peer) []netip.Addr {
	return allowProbes(own, peers, tunnel.LinkLocal)
}

func allowProbes(own tunnel.Key, peers []tunnel.Peer, derive func(tunnel.Key) netip.Addr) []netip.Addr {
	addrs := make([]netip.Addr, len(peers))
	taken := make(map[netip.Addr]struct{}, len(peers)+1)
	taken[derive(own)] = struct{}{}
	for i := range peers {
		addr := derive(peers[i].PublicKey)
		if _, twice := taken[addr]; twice {
			continue
		}
		taken[addr], addrs[i] = struct{}{}, addr
		// Not in place: the slice is shared with the desired peer.
		peers[i].AllowedIPs = append(slices.Clone(peers[i].AllowedIPs), netip.PrefixFrom(addr, addr.BitLen()))
	}
	return addrs
}
