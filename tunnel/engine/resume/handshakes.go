package resume

import (
	"context"
	"time"

	"golang.zx2c4.com/wireguard/device"
)

// Pace of handshakes. wireguard-go assumes that it is under load when more than 128
// handshake messages are queued, and replies with cookies, which cost a second attempt: so
// at most atOnce handshakes start within headway, beside those that have succeeded.
const (
	atOnce        = 64
	headway       = 100 * time.Millisecond
	minRetry      = 200 * time.Millisecond // more than most round trips, as an attempt cancels the one before
	maxRetry      = time.Second
	maxKeepalives = 100 // keepalives after which a session counts as broken
)

// handshakes schedules handshakes with many peers. The current time is an argument, and run
// executes the schedule:
//
//	attempt   0    200   600     1400   1600   2000 ms ...
//	          |----|-----|-------|------|------|---
//	          initiation, repeated after twice the time: an attempt cancels the previous
//	          one, whose response may be slow. Beyond maxRetry from minRetry again: when
//	          messages are lost, the number of attempts counts
//	            | handshake: no other attempt, except after maxKeepalives
//	            |---|---- keepalives, until something is sent in the session
//	                | done
//
// A session that nothing is sent in is made again: when an attempt cancels another one
// ([device.Peer.ExpireCurrentKeypairs]) that succeeds at the same moment, the session is broken.
// See [initiations] for another way to break one.
type handshakes struct {
	order []Key
	of    map[Key]*attempt // of peers without a session
}

// attempt is the last handshake with a peer.
type attempt struct {
	number     int // 0: none yet
	at         time.Time
	keepalives int    // since the handshake
	sent       uint64 // bytes, before them
}

// newHandshakes returns handshakes with some peers, in that order.
func newHandshakes(order []Key) *handshakes {
	h := &handshakes{of: make(map[Key]*attempt)}
	for _, key := range order {
		if h.of[key] == nil {
			h.of[key] = new(attempt)
			h.order = append(h.order, key)
		}
	}
	return h
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
			due := first || !now.Before(a.at.Add(timeout(a.number)))
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
			if room--; first {
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
func timeout(number int) time.Duration {
	limit := minRetry
	for range number - 1 {
		if limit *= 2; limit > maxRetry {
			limit = minRetry
		}
	}
	return limit
}

// established reports whether a peer has a new session, and other messages than initiations
// were sent since.
func (a *attempt) established(p peer) bool {
	return a.keepalives > 0 && p.handshake.After(a.at) && (p.sent-a.sent)%device.MessageInitiationSize != 0
}

// run executes a step on a device and its bind, which has initiations.
func (h *handshakes) run(d *device.Device, b *Bind, now time.Time) error {
	have, err := peersOf(d)
	if err != nil {
		return err
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
	return nil
}

// initiate starts a handshake. wireguard-go logs errors, and a later attempt follows.
func initiate(key Key, p *device.Peer, b *Bind, forget func()) {
	b.initiations.Load().begin(key, forget, func() { _ = p.SendHandshakeInitiation(false) })
}

// pause returns the time until the next step, from how long the last one took: reading the
// state of thousands of peers takes milliseconds. It is at most headway, so that handshakes
// aren't delayed.
func pause(took time.Duration) time.Duration { return min(max(time.Millisecond, 4*took), headway) }

// Initiate makes handshakes with peers of a device that is up, in that order, until all have
// a session or the context ends. b is the device's bind.
func Initiate(ctx context.Context, d *device.Device, b *Bind, peers []Key) error {
	h := newHandshakes(peers)
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
		if err := h.run(d, b, began); err != nil || len(h.of) == 0 {
			return err
		}
		timer.Reset(pause(time.Since(began)))
	}
}
