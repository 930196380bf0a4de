package agent

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/peers"
	"github.com/kube-semaphore/kube-semaphore/peers/paths"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

func TestJustLost(t *testing.T) {
	now := time.Unix(1e9, 0)
	var known []paths.Path
	var all []peers.Peer
	for i, p := range []paths.Path{
		{State: paths.Down, Since: now.Add(-time.Second)},
		{State: paths.Down, Since: now.Add(-unrepliedWindow)},
		{State: paths.Up, Since: now},
		{State: paths.Unknown, Since: now},
		{State: paths.Down, Since: now},
	} {
		p.PublicKey = tunnel.Key{byte(i + 1)}
		known = append(known, p)
		prefix := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 4, byte(i), 0}), 24)
		all = append(all, peers.Peer{Peer: tunnel.Peer{PublicKey: p.PublicKey, AllowedIPs: []netip.Prefix{prefix}}})
	}
	var got []string
	for _, p := range justLost(now, known, all) {
		got = append(got, p.String())
	}
	if diff := cmp.Diff([]string{"10.4.0.0/24", "10.4.4.0/24"}, got); diff != "" {
		t.Errorf("differs (-want +got):\n%s", diff)
	}
	if got := justLost(now, known[1:4], all); got != nil {
		t.Errorf("nothing went down just now, and lost are %v", got)
	}
}
