package tunnel

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

func TestNudgeAppliesDecisions(t *testing.T) {
	s := newState()
	peers := thousands(60)
	for i := range peers {
		peers[i].Keepalive = 25 * time.Second
	}
	peers[1].Keepalive = 0
	s.apply(t, peers)
	ask := map[Key]Nudge{}
	for i := range peers {
		ask[peers[i].PublicKey] = []Nudge{NudgeReset, NudgeKeepalive, NudgeNone}[i%3]
	}
	stranger := testPeer(1000, "192.0.2.1:51820", "10.200.0.0/24").PublicKey
	s.device.configure(wgtypes.PeerConfig{PublicKey: wgtypes.Key(stranger)})
	ask[stranger] = NudgeReset

	s.device.writes = nil
	done, err := s.nudge(t.Context(), new(sync.Mutex), nil, func(p PeerStatus) Nudge { return ask[p.PublicKey] })
	if err != nil || done != (Nudges{Resets: 20, Keepalives: 19}) {
		t.Fatalf("%+v, %v, want 20 and 19", done, err)
	}
	for pair := range slices.Chunk(s.device.writes, 2) {
		first, second := pair[0], pair[1]
		if first.PublicKey != second.PublicKey {
			t.Fatalf("%+v, %+v, want two steps of one peer", first, second)
		}
		switch ask[Key(first.PublicKey)] {
		case NudgeReset:
			if !first.Remove || second.Remove || second.UpdateOnly || second.Endpoint == nil || len(second.AllowedIPs) != 2 ||
				second.PersistentKeepaliveInterval == nil {
				t.Errorf("%+v, %+v, want a peer removed and added as it was", first, second)
			}
		case NudgeKeepalive:
			off, on := first.PersistentKeepaliveInterval, second.PersistentKeepaliveInterval
			if !first.UpdateOnly || !second.UpdateOnly || off == nil || *off != 0 || on == nil || *on != 25*time.Second ||
				len(first.AllowedIPs)+len(second.AllowedIPs) > 0 || first.ReplaceAllowedIPs || second.Endpoint != nil {
				t.Errorf("%+v, %+v, want keepalives off and on, and nothing else", first, second)
			}
		default:
			t.Errorf("%+v, %+v, want nothing", first, second)
		}
	}
	if writes := s.apply(t, peers); len(writes) != 0 {
		t.Errorf("then it writes %+v, want nothing to be different", writes)
	}
}

func TestNudgeRecoversFromAnError(t *testing.T) {
	for _, what := range []Nudge{NudgeReset, NudgeKeepalive} {
		s := newState()
		peers := thousands(3)
		for i := range peers {
			peers[i].Keepalive = 25 * time.Second
		}
		s.apply(t, peers)
		fault := errors.New("no buffer space")
		first := true
		s.device.fail = func(wgtypes.PeerConfig) error {
			if first {
				first = false
				return nil
			}
			return fault
		}
		key := s.applied[1].PublicKey
		_, err := s.nudge(t.Context(), new(sync.Mutex), nil, func(p PeerStatus) Nudge {
			if p.PublicKey == key {
				return what
			}
			return NudgeNone
		})
		if !errors.Is(err, fault) {
			t.Fatalf("%v, want %v", err, fault)
		}
		s.device.fail = nil
		if writes := s.apply(t, peers); len(writes) != 1 || writes[0].Remove || *writes[0].PersistentKeepaliveInterval != 25*time.Second {
			t.Errorf("then it writes %+v, want the peer as it should be", writes)
		}
	}
}
