package paths

import (
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

func TestActivity(t *testing.T) {
	now := time.Now()
	m, d := monitor(3, nil, slog.DiscardHandler)
	see := func(n int, rx, tx int64, handshake time.Time) {
		d.peers[keyOf(n)] = tunnel.PeerStatus{Peer: tunnel.Peer{PublicKey: keyOf(n)}, RxBytes: rx, TxBytes: tx, LastHandshake: handshake}
	}
	listen := func(want ...tunnel.Key) {
		t.Helper()
		d.keepalives = nil
		if err := m.listen(t.Context()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, d.keepalives); diff != "" {
			t.Errorf("keepalives (-want +got):\n%s", diff)
		}
	}
	heard := func(n int) time.Time {
		p := d.peers[keyOf(n)]
		return m.Heard(now, &p)
	}
	ago := now.Add(-time.Minute)
	see(1, 1000, 1000, ago)
	see(2, 1000, 1000, ago)
	see(3, 0, 148, time.Time{})
	listen()
	if at := heard(1); !at.Equal(ago) {
		t.Errorf("what was received before we looked is no sign since the handshake: %v", at)
	}
	see(1, 1032, 1000, ago) // received only
	see(2, 1000, 1500, ago) // sent only
	listen(keyOf(1))
	if at := heard(1); at.Before(now) {
		t.Errorf("heard at %v, want now", at)
	}
	if at := heard(2); !at.Equal(ago) {
		t.Errorf("heard at %v, want the handshake", at)
	}
	listen(keyOf(1), keyOf(2)) // not the one without a session
	see(2, 1001, 1500, ago)
	if at := heard(2); !at.Equal(now) {
		t.Errorf("between two looks: heard at %v, want now", at)
	}
	before := heard(1)
	see(1, 92, 180, now.Add(-50*time.Second)) // after a reset
	if at := heard(1); !at.Equal(before) {
		t.Errorf("reset counters count as activity at %v", at)
	}
	see(2, 1001, 1500, now.Add(-sessionEnds))
	listen()

	delete(d.peers, keyOf(2))
	delete(d.peers, keyOf(3))
	listen(keyOf(1))
	if len(m.activity.peers) != 1 {
		t.Errorf("%d peers are remembered", len(m.activity.peers))
	}
}
