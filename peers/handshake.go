package peers

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// turns are how long after a peer was configured we look whether it needs help,
// see docs/decisions/0005-first-handshakes.md:
//
//	0     70    157     266       403         574           788             1200 ms, 2, 4, 8 s
//	|-----|------|-------|---------|-----------|-------------|----------------|--- ...
//	configured: WireGuard sends its own initiation
//
// The gaps grow, because an attempt that follows sooner than an answer can come
// back undoes the one before: at any round trip time there is soon a gap that is
// longer. Before 1 s there are six attempts, so that one packet lost in ten makes
// all of them fail once in 20,000 peers. From the last turn on WireGuard's own
// retries have to do: the peer may not be there.
func turns() []time.Duration {
	const ms = time.Millisecond
	return []time.Duration{
		70 * ms, 157 * ms, 266 * ms, 403 * ms, 574 * ms, 788 * ms, 1200 * ms, 2 * time.Second, 4 * time.Second, 8 * time.Second,
	}
}

const (
	// confirmations are how many keepalives confirm a session, one a turn.
	confirmations = 3
	// unheard is after how many of them a session in which nothing comes back
	// is given up: the other side, when it is an agent like this one, has sent
	// as many. renewals is how often that is done.
	unheard  = 2
	renewals = 2
	// slowestConfirm is the longest time from one to the next.
	slowestConfirm = 300 * time.Millisecond
	// standBack is how many turns in a row the side that doesn't lead leaves to
	// one that has called before.
	standBack = 2
	// contactBurst bounds how many peers are begun anew with in a pass. With
	// thousands of new ones an answer that is late is more likely than one
	// that doesn't come.
	contactBurst = 64
	// A pass reads the whole device. For so many times as long as that took
	// there is no other. On a busy machine most of that may have been waiting,
	// so each peer on the device accounts for pausePerPeer at most: among few, the
	// next turn isn't held up. It is never longer than longestPause.
	contactPause = 20
	pausePerPeer = time.Millisecond
	longestPause = time.Second
)

// Rehandshake sees to the first sessions with peers that this process has
// configured: with those that are silent it begins anew, and it confirms sessions
// until both sides have heard each other, see [tunnel.Device.Contact]. Peers that
// had a session when they were configured are left alone. It is meant to be called
// when ControllerConfig.Fresh was, and when RehandshakeDue says; it may run beside
// Reconcile, but not beside itself.
func (c *Controller) Rehandshake(ctx context.Context) error {
	if _, exists := c.cfg.Device.Index(); !exists {
		return nil
	}
	c.handshakes.welcome(c.cfg.Device.PublicKey())
	started := time.Now()
	due := c.handshakes.turn(started)
	if len(due) == 0 {
		return nil
	}
	seen, read := make(map[tunnel.Key]bool, len(due)), 0
	done, err := c.cfg.Device.Contact(ctx, func(p tunnel.PeerStatus) tunnel.Contact {
		read++
		c.readPath(started, &p)
		peer, ours := due[p.PublicKey]
		if !ours {
			return tunnel.ContactNone
		}
		seen[p.PublicKey] = true
		return peer.look(started, &p)
	})
	ended := time.Now()
	c.handshakes.rest = ended.Add(pause(ended.Sub(started), read))
	if done.Anew > 0 {
		c.log.Debug("handshakes begun anew", "peers", done.Anew)
	}
	if err != nil {
		return err
	}
	for key, peer := range due {
		peer.acted(started, ended)
		if !seen[key] || peer.over {
			delete(c.handshakes.fresh, key)
		}
	}
	return nil
}

// RehandshakeDue returns when Rehandshake has something to do, and zero when
// there are no new peers. It may not run beside Rehandshake.
func (c *Controller) RehandshakeDue() time.Time { return c.handshakes.due() }

// handshakes are the first contacts with new peers.
type handshakes struct {
	mu       sync.Mutex
	arrivals []arrival

	// What follows belongs to Rehandshake.

	fresh map[tunnel.Key]*contact
	rest  time.Time // nothing is done before
}

// arrival is that peers were configured.
type arrival struct {
	at    time.Time
	peers []Peer
}

// add begins with peers that were configured at the given time.
func (h *handshakes) add(at time.Time, peers []Peer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.arrivals = append(h.arrivals, arrival{at, peers})
}

// welcome takes in those that arrived.
func (h *handshakes) welcome(own tunnel.Key) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, a := range h.arrivals {
		for i := range a.peers {
			key := a.peers[i].PublicKey
			h.fresh[key] = &contact{since: a.at, next: a.at.Add(turns()[0]), mute: !a.peers[i].Endpoint.IsValid(), leads: own.Compare(key) < 0}
		}
	}
	h.arrivals = nil
}

// due returns when the next turn is, zero when there is none.
func (h *handshakes) due() time.Time {
	var first time.Time
	for _, c := range h.fresh {
		if first.IsZero() || c.next.Before(first) {
			first = c.next
		}
	}
	if !first.IsZero() && first.Before(h.rest) {
		return h.rest
	}
	return first
}

// turn returns the peers whose turn it is, those first that had fewest.
func (h *handshakes) turn(now time.Time) map[tunnel.Key]*contact {
	if now.Before(h.rest) {
		return nil
	}
	var keys []tunnel.Key
	for key, c := range h.fresh {
		if !c.next.After(now) {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, func(a, b tunnel.Key) int {
		return cmp.Or(cmp.Compare(h.fresh[a].turn, h.fresh[b].turn), a.Compare(b))
	})
	due := map[tunnel.Key]*contact{}
	for _, key := range keys[:min(len(keys), contactBurst)] {
		due[key] = h.fresh[key]
	}
	return due
}

// pause is how long there is no other pass after one that took so long and read so
// many peers.
func pause(took time.Duration, read int) time.Duration {
	return min(contactPause*took, time.Duration(read)*pausePerPeer, longestPause)
}

// contact is what was seen of and done about a new peer.
type contact struct {
	since time.Time // configured
	next  time.Time // turn
	mute  bool      // we don't know where it is: it has to speak first
	leads bool      // this side goes on when both have called
	over  bool
	began bool // anew, at the last turn

	turn      int
	heard     int64 // bytes that it had sent at the last turn; with a session, when that was seen
	quiet     int   // turns since it was heard
	session   bool  // seen
	confirmed int   // times since the session was seen
	renewed   int
}

// look takes a turn at the time now, and says what to do.
//
//	session                heard                  leads  do
//	none                   -                      yes    begin anew
//	none                   never                  no     begin anew
//	none                   yes                    no     nothing: the other side is about to call again
//	none                   not for standBack      no     begin anew: it isn't
//	before we configured   -                      -      nothing, over
//	yes                    since it was seen      -      confirm, over after confirmations
//	yes                    not for unheard turns  -      begin anew: it doesn't reach us
func (c *contact) look(now time.Time, p *tunnel.PeerStatus) tunnel.Contact {
	c.turn++
	c.began = false
	// A pass that came late must not make the next gap short.
	c.next = latest(c.since.Add(turns()[c.last()]), now.Add(c.gap()))
	switch {
	case p.LastHandshake.IsZero():
		c.over = c.turn >= len(turns())
		return c.silent(p)
	case p.LastHandshake.Before(c.since):
		c.over = true
		return tunnel.ContactNone
	}
	return c.connected(now, p)
}

// last is the turn that comes next, and gap the least time until then.
func (c *contact) last() int          { return min(c.turn, len(turns())-1) }
func (c *contact) gap() time.Duration { return (turns()[c.last()] - turns()[c.last()-1]) * 3 / 4 }

// acted is told how long it took to do what look said. A new attempt has all of its
// gap from then on, and on a machine that is slow as much time as it took here: the
// other side may be on the same.
func (c *contact) acted(started, ended time.Time) {
	if c.began {
		c.next = latest(c.next, ended.Add(max(c.gap(), min(ended.Sub(started), longestPause))))
	}
}

func (c *contact) silent(p *tunnel.PeerStatus) tunnel.Contact {
	if p.RxBytes > c.heard {
		c.heard, c.quiet = p.RxBytes, 0
	} else {
		c.quiet++
	}
	if c.mute || !c.leads && c.heard > 0 && c.quiet < standBack {
		return tunnel.ContactNone
	}
	return c.anew()
}

func (c *contact) connected(now time.Time, p *tunnel.PeerStatus) tunnel.Contact {
	if !c.session {
		c.session, c.heard, c.confirmed = true, p.RxBytes, 0
	}
	heard := p.RxBytes > c.heard
	switch {
	case !heard && c.confirmed == unheard && c.renewed < renewals && !c.mute:
		c.renewed++
		return c.anew()
	case c.confirmed == confirmations:
		c.over = true
		return tunnel.ContactNone
	}
	c.confirmed++
	if soon := now.Add(slowestConfirm); soon.Before(c.next) {
		c.next = soon
	}
	return tunnel.ContactConfirm
}

// anew forgets what a peer that is added again has forgotten, too.
func (c *contact) anew() tunnel.Contact {
	c.session, c.heard, c.began = false, 0, true
	return tunnel.ContactAnew
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
