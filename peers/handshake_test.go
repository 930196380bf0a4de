package peers

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

func TestLateHandshakesAreTriedAFewTimes(t *testing.T) {
	start := time.Unix(1_800_000_000, 0)
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	configured := map[tunnel.Key]time.Time{key(1): start, key(2): at(2.5)}
	var h handshakes
	var got []string
	for n := range 80 {
		now := float64(n) / 2
		for _, k := range h.late(configured, at(now)) {
			name := map[tunnel.Key]string{key(1): "first", key(2): "second"}[k]
			got = append(got, at(now).Sub(start).String()+" "+name)
		}
	}
	want := []string{
		"1s first", "2s first", "3.5s second", "4s first", "4.5s second", "6.5s second", "8s first", "10.5s second",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(h.tries) != 0 {
		t.Errorf("%d peers are remembered for ever", len(h.tries))
	}
}

func TestManyLateHandshakesTakeTurns(t *testing.T) {
	start := time.Unix(1_800_000_000, 0)
	configured := map[tunnel.Key]time.Time{}
	for n := range 3 * handshakeBurst {
		configured[key(byte(n+1))] = start
	}
	var h handshakes
	seen := map[tunnel.Key]int{}
	for n := range 3 {
		late := h.late(configured, start.Add(time.Second*time.Duration(n+1)))
		if len(late) != handshakeBurst {
			t.Fatalf("%d at once, want %d", len(late), handshakeBurst)
		}
		for _, k := range late {
			seen[k]++
		}
	}
	if len(seen) != len(configured) {
		t.Errorf("%d of %d had their turn", len(seen), len(configured))
	}
}

func TestControllerBeginsAnewWithNewPeersOnly(t *testing.T) {
	d, r := &device{}, &remote{nodes: []Node{node(1)}, synced: true}
	var logs strings.Builder
	c := start(t, d, r, NewStore(t.TempDir(), "wireguard.gcp", "gcp"), &logs)
	rehandshake := func() error { return c.Rehandshake(t.Context()) }
	if err := rehandshake(); err != nil {
		t.Fatal(err)
	}
	reconcile(t, c)
	if err := rehandshake(); err != nil || len(d.rehandshakes) > 0 {
		t.Fatalf("%v, %v: the peer had no time to answer", d.rehandshakes, err)
	}
	age := func(by time.Duration) {
		for k, since := range c.State().Configured {
			c.State().Configured[k] = since.Add(-by)
		}
	}
	age(firstHandshake)
	if err := rehandshake(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([][]tunnel.Key{{key(1)}}, d.rehandshakes); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	age(firstHandshake)
	d.err = errors.New("no buffer space")
	if err := rehandshake(); !errors.Is(err, d.err) || !strings.Contains(err.Error(), "wireguard.gcp") {
		t.Errorf("error %v, want the device and the reason", err)
	}
	d.gone = true
	age(2 * firstHandshake)
	if err := rehandshake(); err != nil {
		t.Errorf("without a device: %v", err)
	}
}
