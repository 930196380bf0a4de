package tunnel

import (
	"errors"
	"slices"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

func TestRehandshakeLeavesSessionsAlone(t *testing.T) {
	s := newState()
	peers := thousands(40)
	s.apply(t, peers)
	silent := map[Key]bool{}
	var keys []Key
	for i, p := range s.applied {
		keys = append(keys, p.PublicKey)
		if i%2 == 0 {
			silent[p.PublicKey] = true
			continue
		}
		stored := s.device.peers[wgtypes.Key(p.PublicKey)]
		stored.LastHandshakeTime = time.Unix(1e9, 0)
		s.device.peers[wgtypes.Key(p.PublicKey)] = stored
	}
	stranger := testPeer(1000, "192.0.2.1:51820", "10.200.0.0/24").PublicKey
	s.device.configure(wgtypes.PeerConfig{PublicKey: wgtypes.Key(stranger)})

	s.device.writes = nil
	begun, err := s.rehandshake(t.Context(), append(keys, stranger))
	if err != nil || begun != len(silent) {
		t.Fatalf("%d, %v, want %d", begun, err, len(silent))
	}
	for pair := range slices.Chunk(s.device.writes, 2) {
		removed, added := pair[0], pair[1]
		if !silent[Key(removed.PublicKey)] || !removed.Remove || added.Remove || added.PublicKey != removed.PublicKey ||
			added.UpdateOnly || added.Endpoint == nil || len(added.AllowedIPs) != 2 || added.PersistentKeepaliveInterval == nil {
			t.Errorf("%+v, %+v, want a silent peer removed and added as it was", removed, added)
		}
	}
	if writes := s.apply(t, peers); len(writes) != 0 {
		t.Errorf("then it writes %+v, want nothing to be different", writes)
	}
}

func TestRehandshakeThatFailsIsMended(t *testing.T) {
	s := newState()
	peers := thousands(3)
	s.apply(t, peers)
	fault := errors.New("no buffer space")
	s.device.fail = func(p wgtypes.PeerConfig) error {
		if p.Remove {
			return nil
		}
		return fault
	}
	if begun, err := s.rehandshake(t.Context(), []Key{s.applied[1].PublicKey}); !errors.Is(err, fault) || begun != 0 {
		t.Fatalf("%d, %v, want %v", begun, err, fault)
	}
	s.device.fail = nil
	if writes := s.apply(t, peers); len(writes) != 1 || writes[0].Remove {
		t.Errorf("then it writes %+v, want the peer that was lost", writes)
	}
}
