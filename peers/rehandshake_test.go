package peers

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/synctest"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// runDue restarts the handshakes that are due within a second of the bubble's clock.
func runDue(t *testing.T, c *Controller) {
	t.Helper()
	time.Sleep(time.Second)
	if err := c.Tend(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestRehandshakeOfNewPeersOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, r := &device{statuses: map[tunnel.Key]tunnel.PeerStatus{}}, &remote{nodes: []*Node{node(1)}, synced: true}
		var logs strings.Builder
		fired := 0
		c := NewController(ControllerConfig{
			Cluster: "gcp", Device: d, Store: NewStore(t.TempDir(), "wireguard.gcp", "gcp"),
			Source: read(func() ([]*Node, bool) { return r.nodes, r.synced }), Rules: func() Rules { return rules },
			Wake: func() { fired++ }, Logger: slog.New(slog.NewTextHandler(&logs, nil)),
		})
		tend := func() error { return c.Tend(t.Context()) }
		if err := tend(); err != nil || fired != 0 {
			t.Fatalf("without peers: %v, fired %d times", err, fired)
		}
		reads := d.reads // of the whole device, which is due every 10 s
		reconcileOnce(t, c)
		if err := tend(); err != nil || d.reads != reads || fired != 1 {
			t.Fatalf("%v, %d reads, fired %d times: the peer had no time to answer", err, d.reads-reads, fired)
		}
		if due := time.Until(c.TendDue()); due <= 0 || due > time.Second {
			t.Errorf("the first turn is in %v", due)
		}
		runDue(t, c)
		if diff := cmp.Diff([]tunnel.Key{key(1)}, d.resets); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}

		d.err = errors.New("no buffer space")
		time.Sleep(time.Second)
		if err := tend(); !errors.Is(err, d.err) {
			t.Errorf("error %v, want the reason", err)
		}
		d.err, d.gone = nil, true
		if err := tend(); err != nil {
			t.Errorf("without a device: %v", err)
		}
		d.gone = false
		for n := range 10 {
			d.statuses[key(1)] = tunnel.PeerStatus{LastHandshake: time.Now(), RxBytes: int64(100 + n)}
			runDue(t, c)
		}
		attempted := func() int {
			before := d.reads
			for range 9 {
				runDue(t, c)
			}
			return d.reads - before
		}
		if n := attempted(); n > 1 {
			t.Errorf("a peer with a session is looked at for ever: %d reads", n)
		}
		reconcileOnce(t, c)
		if fired != 1 {
			t.Error("a pass that changes nothing finds new peers")
		}

		r.nodes, d.resets = append(r.nodes, node(2)), nil
		reconcileOnce(t, c)
		runDue(t, c)
		if diff := cmp.Diff([]tunnel.Key{key(2)}, d.resets); diff != "" || fired != 2 {
			t.Errorf("a second one (-want +got):\n%s", diff)
		}
		r.nodes = r.nodes[:1]
		reconcileOnce(t, c)
		runDue(t, c)
		if n := attempted(); n > 1 {
			t.Errorf("a peer that left is remembered: %d reads", n)
		}
		// The device or its engine was recreated.
		before := c.State().Configured[key(1)]
		time.Sleep(time.Second)
		d.peers, d.resets = nil, nil
		delete(d.statuses, key(1))
		reconcileOnce(t, c)
		runDue(t, c)
		if diff := cmp.Diff([]tunnel.Key{key(1)}, d.resets); diff != "" || !c.State().Configured[key(1)].After(before) {
			t.Errorf("peers that the device had lost (-want +got):\n%s", diff)
		}
	})
}
