package agent

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/peers"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

func TestJustLost(t *testing.T) {
	now := time.Unix(1e9, 0)
	var paths []peers.Path
	var all []peers.Peer
	for i, p := range []peers.Path{
		{State: peers.PathDown, Since: now.Add(-time.Second)},
		{State: peers.PathDown, Since: now.Add(-unrepliedWindow)},
		{State: peers.PathUp, Since: now},
		{State: peers.PathUnknown, Since: now},
		{State: peers.PathDown, Since: now},
	} {
		p.PublicKey = tunnel.Key{byte(i + 1)}
		paths = append(paths, p)
		prefix := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 4, byte(i), 0}), 24)
		all = append(all, peers.Peer{Peer: tunnel.Peer{PublicKey: p.PublicKey, AllowedIPs: []netip.Prefix{prefix}}})
	}
	var got []string
	for _, p := range justLost(now, paths, all) {
		got = append(got, p.String())
	}
	if diff := cmp.Diff([]string{"10.4.0.0/24", "10.4.4.0/24"}, got); diff != "" {
		t.Errorf("differs (-want +got):\n%s", diff)
	}
	if got := justLost(now, paths[1:4], all); got != nil {
		t.Errorf("nothing went down just now, and lost are %v", got)
	}
}
