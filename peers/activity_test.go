package peers

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

func TestActivity(t *testing.T) {
	now := time.Now()
	d, r := &device{statuses: map[tunnel.Key]tunnel.PeerStatus{}}, &remote{nodes: []*Node{node(1), node(2), node(3)}, synced: true}
	c := start(t, d, r, NewStore(t.TempDir(), "wireguard.gcp", "gcp"), new(strings.Builder))
	reconcile(t, c)
	see := func(n byte, rx, tx int64, handshake time.Time) {
		d.statuses[key(n)] = tunnel.PeerStatus{Peer: tunnel.Peer{PublicKey: key(n)}, RxBytes: rx, TxBytes: tx, LastHandshake: handshake}
	}
	listen := func(want ...tunnel.Key) {
		t.Helper()
		d.keepalives = nil
		if err := c.Listen(t.Context()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, d.keepalives); diff != "" {
			t.Errorf("keepalives (-want +got):\n%s", diff)
		}
	}
	heard := func(n byte) time.Time {
		p := d.statuses[key(n)]
		return c.Heard(now, &p)
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
	listen(key(1))
	if at := heard(1); at.Before(now) {
		t.Errorf("heard at %v, want now", at)
	}
	if at := heard(2); !at.Equal(ago) {
		t.Errorf("heard at %v, want the handshake", at)
	}
	listen(key(1), key(2)) // not the one without a session
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

	r.nodes = r.nodes[:1]
	reconcile(t, c)
	listen(key(1))
	if len(c.activity.peers) != 1 {
		t.Errorf("%d peers are remembered", len(c.activity.peers))
	}
	reads := d.reads
	d.gone = true
	if listen(); d.reads != reads {
		t.Error("a device that isn't there is read")
	}
}
