package handover

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
		renew bool
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
			{at: 499},
			{at: 500, want: []string{again}},
			{at: 1499},
			{at: 1500, want: []string{again}},
			{at: 3499},
			{at: 3500, want: []string{again}},
		}},
		"lost again and again": {steps: []step{
			{at: 0, want: []string{begin}},
			{at: 500, want: []string{again}},
			{at: 1500, want: []string{again}},
			{at: 3500, want: []string{again}},
			{at: 7499},
			{at: 7500, want: []string{again}},
			{at: 8000, want: []string{again}},
			{at: 9000, want: []string{again}},
			{at: 11000, want: []string{again}},
			{at: 14999},
			{at: 15000, want: []string{again}},
			{at: 15500, want: []string{again}},
		}},
		"the answer is slow, and the machine": {steps: []step{
			{at: 0, want: []string{begin}},
			{at: 5000, handshake: 400, sent: 148, want: []string{keepalive}},
			{at: 9000, handshake: 400, sent: 148, want: []string{keepalive}},
			{at: 9001, handshake: 400, sent: 180},
		}, done: true},
		"the session was spoilt: only an initiation is sent": {steps: []step{
			{at: 0, want: []string{begin}},
			{at: 500, want: []string{again}},
			{at: 510, handshake: 501, sent: 296, want: []string{keepalive}},
			{at: 520, handshake: 501, sent: 444, want: []string{keepalive}},
			{at: 530, handshake: 525, sent: 476},
		}, done: true},
		"an earlier session doesn't count when it is to be renewed": {renew: true, steps: []step{
			{at: 1000, handshake: 900, sent: 1000, want: []string{again}},
			{at: 1010, handshake: 900, sent: 1148},
			{at: 1020, handshake: 1015, sent: 1148, want: []string{keepalive}},
			{at: 1030, handshake: 1015, sent: 1180},
		}, done: true},
	} {
		t.Run(name, func(t *testing.T) {
			epoch, key := time.Unix(1_800_000_000, 0), Key{1}
			h := newHandshakes([]Key{key}, c.renew)
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
			h.add(key)
			if done := len(h.of) == 0; done != c.done {
				t.Error("a peer that is known is begun with once more")
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
	h, now := newHandshakes(order, false), time.Unix(1_800_000_000, 0)
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

// How long the new engine waits for peers without a session.
func TestNewEngineWaits(t *testing.T) {
	const s = time.Second
	limits := Limits{Silent: 3 * s, Sessions: 40 * s}
	for name, c := range map[string]struct {
		waited, silent time.Duration
		heard          []bool // each without a session
		want           bool
	}{
		"all peers have a session":              {want: true},
		"one that was never heard, at first":    {waited: 2 * s, silent: 2 * s, heard: []bool{false}},
		"one that was never heard":              {waited: 3 * s, silent: 3 * s, heard: []bool{false}, want: true},
		"others answer":                         {waited: 30 * s, silent: s, heard: []bool{false}},
		"one that is heard":                     {waited: 39 * s, silent: 39 * s, heard: []bool{true}},
		"one that is heard, one that isn't":     {waited: 39 * s, silent: 39 * s, heard: []bool{false, true}},
		"one that is heard, as sessions end":    {waited: 40 * s, silent: s, heard: []bool{true}, want: true},
		"several that aren't heard, and others": {waited: 39 * s, silent: 2 * s, heard: []bool{false, false}},
	} {
		t.Run(name, func(t *testing.T) {
			tk := &newEngine{Side: Side{Limits: limits}, heard: make(map[Key]bool), handshakes: newHandshakes(nil, false)}
			for i, heard := range c.heard {
				key := Key{byte(i)}
				tk.handshakes.add(key)
				tk.heard[key] = heard
			}
			if got := tk.doneWaiting(c.waited, c.silent); got != c.want {
				t.Errorf("enough: %v, want %v", got, c.want)
			}
		})
	}
}

func TestHeardPeers(t *testing.T) {
	r := receipt{bytes: 100}
	for _, step := range []struct {
		at    int // seconds
		bytes uint64
		want  bool
	}{{0, 100, false}, {1, 100, false}, {2, 132, true}, {16, 132, true}, {17, 132, false}, {18, 164, true}, {20, 200, true}, {34, 200, true}, {35, 200, false}} {
		var got bool
		if r, got = r.heard(step.bytes, time.Unix(1_800_000_000+int64(step.at), 0)); got != step.want {
			t.Errorf("heard after %d s: %v, want %v", step.at, got, step.want)
		}
	}
}
