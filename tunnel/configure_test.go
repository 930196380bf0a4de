package tunnel

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// state is a peerState on a device in memory, with a manual clock.
type state struct {
	*peerState
	device *fakeControl
	clock  time.Time
}

func newState() *state {
	s := &state{device: newFakeControl(), clock: time.Unix(1e9, 0)}
	s.peerState = &peerState{
		name:      "d",
		control:   s.device,
		now:       func() time.Time { return s.clock },
		published: make(map[Key]netip.AddrPort),
	}
	return s
}

// apply configures the peers and returns the writes to the device.
func (s *state) apply(t *testing.T, want []Peer) []wgtypes.PeerConfig {
	t.Helper()
	s.device.writes = nil
	if _, err := s.configure(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	return s.device.writes
}

func thousands(n int) []Peer {
	peers := make([]Peer, n)
	for i := range peers {
		peers[i] = testPeer(i, "192.0.2.1:51820", fmt.Sprintf("10.%d.%d.0/24", i/256, i%256), fmt.Sprintf("fd00:%x::/64", i))
	}
	return peers
}

func TestConfigureCounts(t *testing.T) {
	s := newState()
	peers := thousands(100)
	check := func(want []Peer, changes Changes) {
		t.Helper()
		got, err := s.configure(t.Context(), want)
		if err != nil || got != changes {
			t.Errorf("got %+v, %v, want %+v", got, err, changes)
		}
	}
	check(peers[:60], Changes{Added: 60})
	check(peers[:60], Changes{})
	changed := slices.Clone(peers[20:])
	changed[0].Keepalive = 0
	check(changed, Changes{Added: 40, Updated: 1, Removed: 20})
}

func TestConfigureSendsOneChangeOf5000AndReadsNothing(t *testing.T) {
	s := newState()
	peers := thousands(5000)
	s.apply(t, peers)
	s.device.reads = 0
	peers = slices.Clone(peers)
	peers[4000].Endpoint = netip.MustParseAddrPort("192.0.2.99:51820")
	writes := s.apply(t, peers)
	if len(writes) != 1 || Key(writes[0].PublicKey) != peers[4000].PublicKey {
		t.Errorf("%d peers reached the device", len(writes))
	}
	if w := writes[0]; w.AllowedIPs != nil || w.ReplaceAllowedIPs || w.PersistentKeepaliveInterval != nil || w.PresharedKey != nil {
		t.Errorf("more than the endpoint was written: %+v", w)
	}
	if s.device.reads > 0 {
		t.Errorf("the device was read %d times", s.device.reads)
	}
}

func TestConfigureRepairsForeignChanges(t *testing.T) {
	s := newState()
	peers := thousands(4)
	s.apply(t, peers)
	delete(s.device.peers, wgtypes.Key(peers[1].PublicKey))
	s.device.configure(wgtypes.PeerConfig{PublicKey: wgtypes.Key{0xff}, AllowedIPs: netsOf(peers[2].AllowedIPs)})

	if writes := s.apply(t, peers); len(writes) > 0 {
		t.Errorf("before it is time to look: %+v", writes)
	}
	s.clock = s.clock.Add(recheck)
	if changes, err := s.configure(t.Context(), peers); err != nil || changes != (Changes{Added: 1, Updated: 1, Removed: 1, Repaired: true}) {
		t.Errorf("repaired: %+v, %v", changes, err)
	}
	if changes := Diff(s.device.have(), peers, nil); len(changes) > 0 {
		t.Errorf("still different: %+v", changes)
	}

	// An allowed IP more.
	s.device.configure(wgtypes.PeerConfig{PublicKey: wgtypes.Key(peers[0].PublicKey), AllowedIPs: netsOf([]netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")})})
	s.clock = s.clock.Add(recheck)
	if changes, err := s.configure(t.Context(), peers); err != nil || changes != (Changes{Updated: 1, Repaired: true}) {
		t.Errorf("an allowed IP is taken back: %+v, %v", changes, err)
	}
	if changes, err := s.configure(t.Context(), peers[1:]); err != nil || changes != (Changes{Removed: 1}) {
		t.Errorf("other peers are desired: %+v, %v", changes, err)
	}
}

func TestConfigureRemovesPeersOfAnEarlierRun(t *testing.T) {
	s := newState()
	s.device.configure(wgtypes.PeerConfig{PublicKey: wgtypes.Key{7}})
	s.apply(t, thousands(2))
	if _, left := s.device.peers[wgtypes.Key{7}]; left {
		t.Error("an unknown peer stays")
	}
}

func TestConfigureLeavesRoamingAlone(t *testing.T) {
	s := newState()
	peers := thousands(3)
	s.apply(t, peers)
	s.device.roam(peers[1].PublicKey, "198.51.100.1:9")

	s.clock = s.clock.Add(recheck)
	if writes := s.apply(t, peers); len(writes) > 0 {
		t.Errorf("a full comparison undoes roaming: %+v", writes)
	}
	peers = slices.Clone(peers)
	peers[1].Endpoint = netip.MustParseAddrPort("192.0.2.50:51820")
	if writes := s.apply(t, peers); len(writes) != 1 || writes[0].Endpoint.String() != "192.0.2.50:51820" {
		t.Errorf("a newly published endpoint is not written: %+v", writes)
	}
}

func TestConfigureWithRestoredEndpoints(t *testing.T) {
	before := newState()
	peers := thousands(2)
	before.apply(t, peers)
	before.device.roam(peers[0].PublicKey, "198.51.100.1:9")

	after := newState()
	after.control, after.device = before.device, before.device
	after.published = map[Key]netip.AddrPort{peers[0].PublicKey: peers[0].Endpoint}
	if writes := after.apply(t, peers); len(writes) > 0 {
		t.Errorf("the restart undoes roaming: %+v", writes)
	}
}

// A peer that is removed and added again is a new peer: its endpoint is written although it
// is the one that was published before.
func TestConfigureOfARemovedPeer(t *testing.T) {
	s := newState()
	peers := thousands(2)
	s.apply(t, peers)
	s.apply(t, peers[:1])
	if len(s.published) != 1 {
		t.Errorf("%d endpoints are remembered, want 1", len(s.published))
	}
	writes := s.apply(t, peers)
	if len(writes) != 1 || writes[0].Endpoint == nil {
		t.Errorf("the peer comes back without its endpoint: %+v", writes)
	}
}

func TestConfigureRecoversFromAnErrorHalfWay(t *testing.T) {
	for _, after := range []int{0, 1, 31, 32, 33, 64, 99} {
		t.Run(fmt.Sprintf("after %d peers", after), func(t *testing.T) {
			s := newState()
			peers := thousands(100)
			broken := errors.New("broken")
			s.device.fail = func(wgtypes.PeerConfig) error {
				if len(s.device.writes) == after {
					return broken
				}
				return nil
			}
			if _, err := s.configure(t.Context(), peers); !errors.Is(err, broken) {
				t.Fatalf("got %v", err)
			}
			s.device.fail = nil
			writes := s.apply(t, peers)
			if changes := Diff(s.device.have(), peers, nil); len(changes) > 0 {
				t.Errorf("%d peers still differ", len(changes))
			}
			if len(writes) != 100-after {
				t.Errorf("%d peers were written, want %d: those that weren't there", len(writes), 100-after)
			}
		})
	}
}

// A peer that can't be added doesn't prevent the removal of another one.
func TestConfigureRemovesAfterAFailedAddition(t *testing.T) {
	s := newState()
	peers := thousands(3)
	s.apply(t, peers[:2])
	broken := errors.New("broken")
	s.device.fail = func(cfg wgtypes.PeerConfig) error {
		if !cfg.Remove {
			return broken
		}
		return nil
	}
	done, err := s.configure(t.Context(), peers[1:])
	if !errors.Is(err, broken) || done != (Changes{Removed: 1}) {
		t.Errorf("changed %+v: %v", done, err)
	}
	if _, left := s.device.peers[wgtypes.Key(peers[0].PublicKey)]; left {
		t.Error("the peer that has to go is left")
	}
}

func TestConfigureReportsAMissingDevice(t *testing.T) {
	s := newState()
	s.device.gone = true
	if _, err := s.configure(t.Context(), thousands(1)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want os.ErrNotExist", err)
	}
	s.device.gone = false
	s.apply(t, thousands(1))
	s.device.gone = true
	if _, err := s.configure(t.Context(), thousands(2)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want os.ErrNotExist", err)
	}
}

func TestConfigureStopsWithItsContext(t *testing.T) {
	s := newState()
	ctx, cancel := context.WithCancel(t.Context())
	s.device.fail = func(wgtypes.PeerConfig) error { cancel(); return nil }
	peers := thousands(5 * requestPeers)
	if _, err := s.configure(ctx, peers); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if n := len(s.device.peers); n != requestPeers {
		t.Errorf("%d peers were written, want the %d of one request", n, requestPeers)
	}
	s.apply(t, peers)
	if n := len(s.device.peers); n != len(peers) {
		t.Errorf("%d peers afterwards, want %d", n, len(peers))
	}
}

func TestRequestsStayWithinTheirLimits(t *testing.T) {
	var peers []Peer
	for i := range 100 {
		p := testPeer(i, "")
		for j := range i * 5 {
			p.AllowedIPs = append(p.AllowedIPs, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i), byte(j / 256), byte(j)}), 32))
		}
		peers = append(peers, p)
	}
	changes := Diff(nil, peers, nil)
	seen := 0
	for batch := range batches(changes) {
		ips := 0
		for i := range batch {
			if batch[i].Peer.PublicKey != changes[seen].Peer.PublicKey {
				t.Fatalf("change %d is out of order", seen)
			}
			seen++
			ips += len(batch[i].Peer.AllowedIPs)
		}
		if len(batch) > requestPeers || ips > requestAllowedIPs && len(batch) > 1 {
			t.Errorf("a request of %d peers and %d allowed IPs", len(batch), ips)
		}
	}
	if seen != len(changes) {
		t.Errorf("%d of %d changes were sent", seen, len(changes))
	}
}
