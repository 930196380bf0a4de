package resume

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Each step has the time in milliseconds, the state of the peer then, and what is done.
func TestHandshakeSteps(t *testing.T) {
	const begin, again, keepalive = "begin", "again", "keepalive"
	type step struct {
		at        int
		handshake int // when the last one was; 0: never
		sent      uint64
		want      []string
	}
	for name, c := range map[string]struct {
		steps []step
		done  bool
	}{
		"answered": {steps: []step{
			{at: 0, want: []string{begin}},
			{at: 10, sent: 148},
			{at: 20, sent: 148, handshake: 15, want: []string{keepalive}},
			{at: 25, sent: 180, handshake: 15},
		}, done: true},
		"lost twice": {steps: []step{
			{at: 0, want: []string{begin}},
			{at: 199},
			{at: 200, want: []string{again}},
			{at: 599},
			{at: 600, want: []string{again}},
			{at: 1399},
			{at: 1400, want: []string{again}},
		}},
		"lost again and again": {steps: []step{
			{at: 0, want: []string{begin}},
			{at: 200, want: []string{again}},
			{at: 600, want: []string{again}},
			{at: 1400, want: []string{again}},
			{at: 1599},
			{at: 1600, want: []string{again}},
			{at: 2000, want: []string{again}},
		}},
		"the answer is slow, and the machine": {steps: []step{
			{at: 0, want: []string{begin}},
			{at: 5000, handshake: 400, sent: 148, want: []string{keepalive}},
			{at: 9000, handshake: 400, sent: 148, want: []string{keepalive}},
			{at: 9001, handshake: 400, sent: 180},
		}, done: true},
		"the session is broken: only an initiation is sent": {steps: []step{
			{at: 0, want: []string{begin}},
			{at: 200, want: []string{again}},
			{at: 210, handshake: 201, sent: 296, want: []string{keepalive}},
			{at: 220, handshake: 201, sent: 444, want: []string{keepalive}},
			{at: 230, handshake: 225, sent: 476},
		}, done: true},
	} {
		t.Run(name, func(t *testing.T) {
			epoch, key := time.Unix(1_800_000_000, 0), Key{1}
			h := newHandshakes([]Key{key})
			for _, s := range c.steps {
				p := peer{sent: s.sent}
				if s.handshake != 0 {
					p.handshake = epoch.Add(time.Duration(s.handshake) * time.Millisecond)
				}
				var got []string
				b, a, k := h.step(epoch.Add(time.Duration(s.at)*time.Millisecond), map[Key]peer{key: p})
				for what, keys := range map[string][]Key{begin: b, again: a, keepalive: k} {
					for range keys {
						got = append(got, what)
					}
				}
				if diff := cmp.Diff(s.want, got); diff != "" {
					t.Errorf("at %d: %s", s.at, diff)
				}
			}
			if done := len(h.of) == 0; done != c.done {
				t.Errorf("done: %v, want %v", done, c.done)
			}
		})
	}
}

// A device that receives many answers at once counts as under load.
func TestHandshakesArePaced(t *testing.T) {
	var order []Key
	have := make(map[Key]peer)
	for i := range 1000 {
		key := Key{byte(i), byte(i >> 8)}
		order, have[key] = append(order, key), peer{}
	}
	h, now := newHandshakes(order), time.Unix(1_800_000_000, 0)
	var begun []Key
	var times []time.Time
	for ; len(begun) < len(order); now = now.Add(7 * time.Millisecond) {
		keys, again, _ := h.step(now, have)
		for _, key := range keys {
			begun = append(begun, key)
			times = append(times, now)
		}
		if len(again) > 0 && len(begun) < len(order) {
			t.Fatal("one is begun again before others were begun")
		}
	}
	if diff := cmp.Diff(order, begun); diff != "" {
		t.Errorf("another order: %s", diff)
	}
	for i := range len(times) - atOnce {
		if times[i+atOnce].Sub(times[i]) < headway {
			t.Fatalf("%d are begun within %v", atOnce+1, times[i+atOnce].Sub(times[i]))
		}
	}
}
