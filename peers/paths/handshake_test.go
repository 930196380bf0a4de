package paths

import (
	"log/slog"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/synctest"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// TestAttempts lists the attempts for a new peer by its status at each.
func TestAttempts(t *testing.T) {
	start := time.Unix(1_800_000_000, 0)
	var (
		silent  = tunnel.PeerStatus{}
		called  = tunnel.PeerStatus{RxBytes: 148}
		twice   = tunnel.PeerStatus{RxBytes: 296}
		session = tunnel.PeerStatus{RxBytes: 92, LastHandshake: start.Add(time.Second)}
		heard   = tunnel.PeerStatus{RxBytes: 124, LastHandshake: start.Add(time.Second)}
		old     = tunnel.PeerStatus{RxBytes: 5000, LastHandshake: start.Add(-time.Second)}
	)
	repeat := func(p tunnel.PeerStatus, n int) (many []tunnel.PeerStatus) {
		for range n {
			many = append(many, p)
		}
		return many
	}
	for _, c := range []struct {
		name string
		peer newPeer
		seen []tunnel.PeerStatus
		want string // A: reset, C: keepalive, -: nothing, a full stop when over
	}{
		{"it never answers, and we lead", newPeer{initiator: true}, repeat(silent, 20), "AAAAAAAAAA."},
		{"it never answers, and would lead", newPeer{}, repeat(silent, 20), "AAAAAAAAAA."},
		{"it has to speak first", newPeer{passive: true}, repeat(silent, 20), "----------."},
		{
			"it has called, and we lead", newPeer{initiator: true},
			[]tunnel.PeerStatus{called, silent, called, session, heard, heard, heard}, "AAACCC-.",
		},
		{
			"it has called, and goes on calling", newPeer{},
			[]tunnel.PeerStatus{called, twice, session, heard, heard, heard}, "--CCC-.",
		},
		{
			"it has called, and doesn't go on", newPeer{},
			[]tunnel.PeerStatus{called, called, called, silent, session, heard, heard, heard}, "--AACCC-.",
		},
		{"a session that is older", newPeer{initiator: true}, repeat(old, 3), "-."},
		{"a session that both sides have", newPeer{initiator: true}, []tunnel.PeerStatus{session, heard, heard, heard}, "CCC-."},
		{
			"a session in which nothing comes back", newPeer{},
			[]tunnel.PeerStatus{session, session, session, silent, session, heard, heard, heard}, "CCAACCC-.",
		},
		{
			"an agent that doesn't confirm", newPeer{initiator: true}, repeat(session, 20), "CCACCACCC-.",
		},
		{
			"a session with one that had to speak first", newPeer{passive: true}, repeat(session, 20), "CCC-.",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			peer, got, now := c.peer, "", start
			peer.since = start
			for _, p := range c.seen {
				got += map[tunnel.Nudge]string{tunnel.NudgeNone: "-", tunnel.NudgeReset: "A", tunnel.NudgeKeepalive: "C"}[peer.attempt(now, &p)]
				if peer.over {
					got += "."
					break
				}
				if gap := peer.next.Sub(now); gap < attemptTimes()[0]/2 {
					t.Errorf("turn %d comes %v after the one before", peer.attempts+1, gap)
				}
				now = peer.next
			}
			if got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

// On a busy machine an attempt takes time, and the gap counts from its end: another one
// right after it would invalidate it.
func TestAttemptsHaveTheirGapOnASlowMachine(t *testing.T) {
	start := time.Unix(1_800_000_000, 0)
	peer := newPeer{since: start, initiator: true}
	now := start.Add(attemptTimes()[0])
	for peer.attempts < len(attemptTimes()) {
		if peer.attempt(now, &tunnel.PeerStatus{}) != tunnel.NudgeReset {
			t.Fatalf("nothing is done at turn %d", peer.attempts)
		}
		done := now.Add(365 * time.Millisecond)
		peer.done(now, done)
		if gap := peer.next.Sub(done); gap < 365*time.Millisecond {
			t.Errorf("turn %d comes %v after the attempt before", peer.attempts+1, gap)
		}
		now = peer.next
	}
}

// An attempt whose response takes longer than the gap is invalidated by the next one. So
// the gaps grow, and the last ones are longer than any round trip.
func TestGapsOfAttemptsGrow(t *testing.T) {
	all := attemptTimes()
	gap := all[0]
	withinASecond := 0
	for i := 1; i < len(all); i++ {
		if all[i] < time.Second {
			withinASecond++
		}
		if all[i]-all[i-1] < gap {
			t.Errorf("turn %d comes %v after the one before, that one came after %v", i, all[i]-all[i-1], gap)
		}
		gap = all[i] - all[i-1]
	}
	if gap < 3*time.Second || withinASecond < 5 {
		t.Errorf("last gap %v, %d within a second after the first", gap, withinASecond)
	}
}

// TestNewPeersAreBounded: a remote that changes the keys of its nodes all the time, faster than sessions begin,
// takes no memory for those that are gone.
func TestNewPeersAreBounded(t *testing.T) {
	h := handshakes{fresh: map[tunnel.Key]*newPeer{}}
	for i := range 100 {
		var peers []Peer
		fresh := map[tunnel.Key]struct{}{}
		for n := range 10 {
			key := tunnel.Key{byte(i), byte(n)}
			peers, fresh[key] = append(peers, Peer{PublicKey: key}), struct{}{}
		}
		if h.add(tunnel.Key{}, peers, fresh); len(h.arrivals) > len(peers) {
			t.Fatalf("%d of %d arrive", len(h.arrivals), len(peers))
		}
		if i%3 == 0 {
			if h.takeArrivals(); len(h.fresh) != len(peers) {
				t.Fatalf("%d of %d are new", len(h.fresh), len(peers))
			}
		}
	}
}

func TestResetsPerPassAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 3 * nudgeBurst
		m, d := monitor(size, nil, slog.DiscardHandler)
		time.Sleep(attemptTimes()[0]) // of the bubble's clock
		seen := map[tunnel.Key]int{}
		for range 3 {
			d.resets = nil
			if err := m.rehandshake(t.Context()); err != nil {
				t.Fatal(err)
			}
			if len(d.resets) != nudgeBurst {
				t.Fatalf("%d at once, want %d", len(d.resets), nudgeBurst)
			}
			for _, k := range d.resets {
				seen[k]++
			}
		}
		if len(seen) != size {
			t.Errorf("%d of %d had their turn", len(seen), size)
		}
	})
}

// A pass that was slow because the machine was busy must not delay the next attempts on a
// small device, as it did for up to a second.
func TestSlowPassesDelayLargeDevicesOnly(t *testing.T) {
	for _, c := range []struct {
		took time.Duration
		read int
		want time.Duration
	}{
		{100 * time.Millisecond, 0, 0},
		{100 * time.Millisecond, 1, time.Millisecond},
		{100 * time.Millisecond, 20, 20 * time.Millisecond},
		{10 * time.Millisecond, 1000, 200 * time.Millisecond},
		{100 * time.Millisecond, 5000, time.Second},
		{time.Minute, 5000, time.Second},
	} {
		if got := pause(c.took, c.read); got != c.want {
			t.Errorf("after %v for %d peers: a pause of %v, want %v", c.took, c.read, got, c.want)
		}
	}
}
