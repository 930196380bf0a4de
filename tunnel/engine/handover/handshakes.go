package handover

import (
	"context"
	"time"

	"golang.zx2c4.com/wireguard/device"
)

// Pace of handshakes. wireguard-go assumes that it is under load when more than 128
// handshake messages are queued, and replies with cookies, which cost a second attempt: so
// at most atOnce handshakes start within headway.
const (
	atOnce        = 64
	headway       = 100 * time.Millisecond
	minRetry      = 500 * time.Millisecond // handshakes.first, usually
	maxRetry      = 4 * time.Second        // less than WireGuard's own interval of 5 s (RekeyTimeout)
	crashRetry    = 50 * time.Millisecond  // minRetry after a process that may just have started a handshake
	maxKeepalives = 100                    // keepalives after which a session counts as broken
	// handshakeTime is the usual maximum time until both sides use a handshake's session.
	handshakeTime = time.Second
)

// handshakes schedules handshakes with many peers. The current time is an argument, and run
// executes the schedule:
//
//	attempt   0      500       1500                3500                7500    8000 ms ...
//	          |-------|---------|-------------------|-------  -----------|-------|---
//	          initiation, repeated after twice the time: an attempt cancels the previous
//	          one, whose response may be slow. Then from minRetry again: when messages
//	          are lost, the number of attempts counts
//	            | handshake: no other attempt, except after maxKeepalives
//	            |---|---- keepalives, until something is sent in the session
//	                | done
//
// When a second session is made, the remote forgets the one before the first, in which the
// old engine still sends: so a second session is made only if necessary. It is necessary when
// an attempt cancels another one ([device.Peer.ExpireCurrentKeypairs]) that succeeds at the
// same moment: nothing is sent in that session. See [initiations] for another way to break a
// session.
type handshakes struct {
	renew bool          // the first attempt ends the peers' sessions
	first time.Duration // until the first retry; doubled each time up to maxRetry, then first again
	order []Key
	of    map[Key]*attempt // of peers without a session
	had   map[Key]bool     // all peers that were added
}

// attempt is the last handshake with a peer.
type attempt struct {
	number     int // 0: none yet
	at         time.Time
	keepalives int    // since the handshake
	sent       uint64 // bytes, before them
}

// newHandshakes returns handshakes with some peers, in that order.
func newHandshakes(order []Key, renew bool) *handshakes {
	h := &handshakes{renew: renew, first: minRetry, of: make(map[Key]*attempt), had: make(map[Key]bool)}
	for _, key := range order {
		h.add(key)
	}
	return h
}

func (h *handshakes) add(key Key) {
	if !h.had[key] {
		h.had[key] = true
		h.of[key] = new(attempt)
		h.order = append(h.order, key)
	}
}

// step returns the peers to start a handshake with, those to start one with after their
// sessions have been ended, and those to send a keepalive to, for the device's state have.
func (h *handshakes) step(now time.Time, have map[Key]peer) (begin, again, keepalive []Key) {
	rest, room := h.order[:0], atOnce
	for _, key := range h.order {
		if p, known := have[key]; !known || h.of[key].established(p) {
			delete(h.of, key)
			continue
		}
		rest = append(rest, key)
		if a := h.of[key]; a.number > 0 && now.Sub(a.at) < headway {
			room--
		}
	}
	h.order = rest
	for _, first := range []bool{true, false} {
		for _, key := range h.order {
			a := h.of[key]
			if first != (a.number == 0) {
				continue
			}
			due := first || !now.Before(a.at.Add(h.timeout(a.number)))
			if !first && have[key].handshake.After(a.at) {
				keepalive = append(keepalive, key)
				if a.keepalives++; a.keepalives == 1 {
					a.sent = have[key].sent
				}
				due = a.keepalives > maxKeepalives
			}
			if room <= 0 || !due {
				continue
			}
			if room--; first && !h.renew {
				begin = append(begin, key)
			} else {
				again = append(again, key)
			}
			*a = attempt{number: a.number + 1, at: now}
		}
	}
	return begin, again, keepalive
}

// timeout returns the time for an attempt. The first has number 1.
func (h *handshakes) timeout(number int) time.Duration {
	timeout := h.first
	for range number - 1 {
		if timeout *= 2; timeout > maxRetry {
			timeout = h.first
		}
	}
	return timeout
}

// established reports whether a peer has a new session, and other messages than initiations
// were sent since.
func (a *attempt) established(p peer) bool {
	return a.keepalives > 0 && p.handshake.After(a.at) && (p.sent-a.sent)%device.MessageInitiationSize != 0
}

// run executes a step on a device and its bind, which has initiations, and returns the state of
// the device's peers before it.
func (h *handshakes) run(d *device.Device, b *Bind, now time.Time) (map[Key]peer, error) {
	have, err := peersOf(d)
	if err != nil {
		return nil, err
	}
	begin, again, keepalive := h.step(now, have)
	for _, key := range begin {
		if p := d.LookupPeer(key); p != nil {
			initiate(key, p, b, func() {})
		}
	}
	for _, key := range again {
		if p := d.LookupPeer(key); p != nil {
			// Otherwise wireguard-go starts at most one in five seconds.
			initiate(key, p, b, p.ExpireCurrentKeypairs)
		}
	}
	for _, key := range keepalive {
		if p := d.LookupPeer(key); p != nil {
			p.SendKeepalive()
		}
	}
	return have, nil
}

// initiate starts a handshake. wireguard-go logs errors, and a later attempt follows.
func initiate(key Key, p *device.Peer, b *Bind, forget func()) {
	b.initiations.Load().begin(key, forget, func() { _ = p.SendHandshakeInitiation(false) })
}

// pause returns the time until the next step, from how long the last one took: reading the
// state of thousands of peers takes milliseconds. It is at most headway, so that handshakes
// aren't delayed.
func pause(took time.Duration) time.Duration { return min(max(5*time.Millisecond, 4*took), headway) }

// Initiate makes handshakes with peers of a device that is up, in that order, until all have
// a session or the context ends. b is the device's bind. The device is that of a process that
// has ended unexpectedly: a peer ignores an initiation within 20 ms of the last one (WireGuard
// whitepaper, section 5.3), so the second attempt follows soon.
func Initiate(ctx context.Context, d *device.Device, b *Bind, peers []Key) error {
	h := newHandshakes(peers, false)
	h.first = crashRetry
	return h.make(ctx, d, b)
}

// make runs steps until all peers have a session or the context ends.
func (h *handshakes) make(ctx context.Context, d *device.Device, b *Bind) error {
	b.initiations.Store(newInitiations())
	defer b.initiations.Store(nil)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-d.Wait():
			return nil
		case <-timer.C:
		}
		began := time.Now()
		if _, err := h.run(d, b, began); err != nil || len(h.of) == 0 {
			return err
		}
		timer.Reset(pause(time.Since(began)))
	}
}
