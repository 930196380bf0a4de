package paths

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// attemptTimes returns when a new peer is checked, after it was configured, and its
// handshake restarted if needed, see docs/decisions/0005-first-handshakes.md:
//
//	0     70    157     266       403         574           788             1200 ms, 2, 4, 8 s
//	|-----|------|-------|---------|-----------|-------------|----------------|--- ...
//	configured: WireGuard sends its own initiation
//
// The gaps grow, because a new attempt invalidates the one before, whose response may be
// on its way: for any round trip time there is soon a longer gap. With six attempts
// before 1 s and 10 % packet loss, all of them fail for one in 20,000 peers. After the
// last attempt WireGuard's own retries go on: the peer may be down.
func attemptTimes() []time.Duration {
	const ms = time.Millisecond
	return []time.Duration{
		70 * ms, 157 * ms, 266 * ms, 403 * ms, 574 * ms, 788 * ms, 1200 * ms, 2 * time.Second, 4 * time.Second, 8 * time.Second,
	}
}

const (
	// confirmations is the number of keepalives that confirm a session, one per attempt.
	confirmations = 3
	// unheardAfter is the number of confirmations without anything received after which a
	// session is given up: an agent on the other side has sent as many. maxResets bounds
	// how often that happens.
	unheardAfter = 2
	maxResets    = 2
	// slowestConfirm is the longest interval between confirmations.
	slowestConfirm = 300 * time.Millisecond
	// standBack is the number of consecutive attempts that the responder skips in favour
	// of an initiator that has sent something.
	standBack = 2
	// nudgeBurst bounds the peers that are reset in a pass. With thousands of new peers
	// a late response is more likely than a lost one.
	nudgeBurst = 64
	// A pass reads the whole device. passPause is the minimum pause after it, as a
	// multiple of its duration. On a busy machine most of the duration may be waiting, so
	// the pause is bounded by pausePerPeer for each peer on the device, which doesn't delay
	// attempts on small devices, and by longestPause.
	passPause    = 20
	pausePerPeer = time.Millisecond
	longestPause = time.Second
)

// rehandshake establishes the first sessions with peers that this process has configured:
// it restarts the handshake with silent peers, and confirms sessions until both sides have
// received something, see [tunnel.Device.Nudge]. Peers that had a session when they were
// configured are left alone.
func (m *Monitor) rehandshake(ctx context.Context) error {
	m.handshakes.takeArrivals()
	started := time.Now()
	due := m.handshakes.due(started)
	if len(due) == 0 {
		return nil
	}
	seen, read := make(map[tunnel.Key]bool, len(due)), 0
	done, err := m.cfg.Device.Nudge(ctx, func(p tunnel.PeerStatus) tunnel.Nudge {
		read++
		m.readPath(started, &p)
		peer, ours := due[p.PublicKey]
		if !ours {
			return tunnel.NudgeNone
		}
		seen[p.PublicKey] = true
		return peer.attempt(started, &p)
	})
	ended := time.Now()
	m.handshakes.notBefore = ended.Add(pause(ended.Sub(started), read))
	if done.Resets > 0 {
		m.cfg.Logger.Debug("handshakes restarted", "peers", done.Resets)
	}
	if err != nil {
		return err
	}
	for key, peer := range due {
		peer.done(started, ended)
		if !seen[key] || peer.over {
			delete(m.handshakes.fresh, key)
		}
	}
	return nil
}

// handshakes is the state of the first handshakes with new peers.
type handshakes struct {
	mu       sync.Mutex
	arrivals map[tunnel.Key]*newPeer
	peers    []Peer // all of the device

	// Owned by Tend.

	fresh     map[tunnel.Key]*newPeer
	notBefore time.Time // earliest next pass
}

// add queues those of the peers that are in fresh, of the device with the key own.
func (h *handshakes) add(own tunnel.Key, peers []Peer, fresh map[tunnel.Key]struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.peers = peers
	if len(fresh) == 0 {
		return
	}
	if h.arrivals == nil {
		h.arrivals = make(map[tunnel.Key]*newPeer, len(fresh))
	}
	for i := range peers {
		p := &peers[i]
		if _, is := fresh[p.PublicKey]; is {
			h.arrivals[p.PublicKey] = &newPeer{since: p.Since, next: p.Since.Add(attemptTimes()[0]), passive: p.Passive, initiator: own.Compare(p.PublicKey) < 0}
		}
	}
	h.bound(h.arrivals)
}

// takeArrivals moves queued peers to fresh.
func (h *handshakes) takeArrivals() {
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.Copy(h.fresh, h.arrivals)
	h.arrivals = nil
	h.bound(h.fresh)
}

// bound forgets peers that are gone, when there are more than of the device: a remote may change its
// nodes' keys faster than sessions begin. Callers hold mu.
func (h *handshakes) bound(of map[tunnel.Key]*newPeer) {
	if len(of) <= len(h.peers) {
		return
	}
	current := make(map[tunnel.Key]bool, len(h.peers))
	for i := range h.peers {
		current[h.peers[i].PublicKey] = true
	}
	maps.DeleteFunc(of, func(key tunnel.Key, _ *newPeer) bool { return !current[key] })
}

// nextDue returns when the next attempt is due; zero: none.
func (h *handshakes) nextDue() time.Time {
	var first time.Time
	for _, c := range h.fresh {
		if first.IsZero() || c.next.Before(first) {
			first = c.next
		}
	}
	if !first.IsZero() && first.Before(h.notBefore) {
		return h.notBefore
	}
	return first
}

// due returns the peers whose attempt is due, at most nudgeBurst, those with the fewest
// attempts first.
func (h *handshakes) due(now time.Time) map[tunnel.Key]*newPeer {
	if now.Before(h.notBefore) {
		return nil
	}
	var keys []tunnel.Key
	for key, c := range h.fresh {
		if !c.next.After(now) {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, func(a, b tunnel.Key) int {
		return cmp.Or(cmp.Compare(h.fresh[a].attempts, h.fresh[b].attempts), a.Compare(b))
	})
	due := map[tunnel.Key]*newPeer{}
	for _, key := range keys[:min(len(keys), nudgeBurst)] {
		due[key] = h.fresh[key]
	}
	return due
}

// pause returns the minimum pause after a pass, by its duration and the number of peers
// read.
func pause(took time.Duration, read int) time.Duration {
	return min(passPause*took, time.Duration(read)*pausePerPeer, longestPause)
}

// newPeer is the state of the first handshake with a new peer.
type newPeer struct {
	since     time.Time // configured
	next      time.Time // attempt
	passive   bool      // no endpoint: the peer has to send first
	initiator bool      // this side initiates when both have sent
	over      bool
	wasReset  bool // reset at the last attempt

	attempts       int
	heard          int64 // received bytes at the last attempt; with a session, when that was first seen
	silentAttempts int   // attempts since something was received
	session        bool  // seen
	confirmed      int   // confirmations since the session was seen
	resets         int   // resets of a session
}

// attempt evaluates a peer's status at the time now, and returns what to do.
//
//	session                received               init.  do
//	none                   -                      yes    reset
//	none                   never                  no     reset
//	none                   yes                    no     nothing: the other side will retry
//	none                   not for standBack      no     reset: it didn't
//	before we configured   -                      -      nothing, over
//	yes                    since it was seen      -      keepalive, over after confirmations
//	yes                    not for unheardAfter   -      reset: its packets don't arrive
func (c *newPeer) attempt(now time.Time, p *tunnel.PeerStatus) tunnel.Nudge {
	c.attempts++
	c.wasReset = false
	// A late pass must not shorten the next gap.
	c.next = latest(c.since.Add(attemptTimes()[c.last()]), now.Add(c.gap()))
	switch {
	case p.LastHandshake.IsZero():
		c.over = c.attempts >= len(attemptTimes())
		return c.withoutSession(p)
	case p.LastHandshake.Before(c.since):
		c.over = true
		return tunnel.NudgeNone
	}
	return c.withSession(now, p)
}

// last is the index of the next attempt, and gap the minimum time until then.
func (c *newPeer) last() int { return min(c.attempts, len(attemptTimes())-1) }
func (c *newPeer) gap() time.Duration {
	return (attemptTimes()[c.last()] - attemptTimes()[c.last()-1]) * 3 / 4
}

// done records how long it took to apply an attempt. The gap counts from its end, and on
// a slow machine is as long as the attempt took: the other side may be on the same
// machine.
func (c *newPeer) done(started, ended time.Time) {
	if c.wasReset {
		c.next = latest(c.next, ended.Add(max(c.gap(), min(ended.Sub(started), longestPause))))
	}
}

func (c *newPeer) withoutSession(p *tunnel.PeerStatus) tunnel.Nudge {
	if p.RxBytes > c.heard {
		c.heard, c.silentAttempts = p.RxBytes, 0
	} else {
		c.silentAttempts++
	}
	if c.passive || !c.initiator && c.heard > 0 && c.silentAttempts < standBack {
		return tunnel.NudgeNone
	}
	return c.reset()
}

func (c *newPeer) withSession(now time.Time, p *tunnel.PeerStatus) tunnel.Nudge {
	if !c.session {
		c.session, c.heard, c.confirmed = true, p.RxBytes, 0
	}
	heard := p.RxBytes > c.heard
	switch {
	case !heard && c.confirmed == unheardAfter && c.resets < maxResets && !c.passive:
		c.resets++
		return c.reset()
	case c.confirmed == confirmations:
		c.over = true
		return tunnel.NudgeNone
	}
	c.confirmed++
	if soon := now.Add(slowestConfirm); soon.Before(c.next) {
		c.next = soon
	}
	return tunnel.NudgeKeepalive
}

// reset clears the state that the device loses when the peer is removed and added.
func (c *newPeer) reset() tunnel.Nudge {
	c.session, c.heard, c.wasReset = false, 0, true
	return tunnel.NudgeReset
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
