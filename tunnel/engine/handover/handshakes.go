package handover

import (
	"context"
	"time"

	"golang.zx2c4.com/wireguard/device"
)

// How handshakes are begun. An engine that gets more than 128 handshake messages at a
// time thinks that it is under load, and asks for cookies, which cost a second attempt:
// so this many are begun at once, and the next when they have had their time.
const (
	atOnce   = 64
	headway  = 100 * time.Millisecond
	firstTry = 500 * time.Millisecond // handshakes.first, usually
	lastTry  = 4 * time.Second        // WireGuard itself waits no longer than 5 s (RekeyTimeout)
	hasty    = 50 * time.Millisecond  // where an earlier process may have begun one just before
	inVain   = 100                    // keepalives after which a session is spoilt
	// handshakeTime is how long a handshake usually takes, at most, until both use the
	// session that it makes.
	handshakeTime = time.Second
)

// handshakes are those that are to be made with many peers. It takes the time as an
// argument, and does nothing by itself:
//
//	attempt   0      500       1500                3500                7500    8000 ms ...
//	          |-------|---------|-------------------|-------  -----------|-------|---
//	          initiation, and again with twice the patience: an attempt ends the one
//	          before, whose answer may be slow. Then as at first: where messages are
//	          lost it is the number of attempts that counts
//	            | handshake: no other attempt, unless all keepalives are in vain
//	            |---|---- keepalives, until something is sent in the session
//	                | done
//
// A remote whose peer makes a second session forgets the one that it had before the
// first, in which the giver still sends: so there is none without need. It is needed when
// the attempt that ends another one ([device.Peer.ExpireCurrentKeypairs]) comes in the
// moment in which that succeeds, and spoils it: nothing is sent in such a session. See
// [answers] for another way to spoil one.
type handshakes struct {
	renew bool          // the peers have sessions, which are ended by the first attempt
	first time.Duration // until a handshake is begun again; doubled each time, up to lastTry; then as at first
	order []Key
	of    map[Key]*attempt // of those that have no session yet
	had   map[Key]bool     // all that there ever were
}

// attempt is the last one.
type attempt struct {
	number     int // 0: none yet
	at         time.Time
	keepalives int    // since the handshake
	sent       uint64 // bytes, before them
}

// newHandshakes returns those with some peers, in that order.
func newHandshakes(order []Key, renew bool) *handshakes {
	h := &handshakes{renew: renew, first: firstTry, of: make(map[Key]*attempt), had: make(map[Key]bool)}
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

// step returns with which peers to begin a handshake now, those that are to forget what
// they have by then, and to which a keepalive is to be sent, from what the device says
// of its peers.
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
			due := first || !now.Before(a.at.Add(h.patience(a.number)))
			if !first && have[key].handshake.After(a.at) {
				keepalive = append(keepalive, key)
				if a.keepalives++; a.keepalives == 1 {
					a.sent = have[key].sent
				}
				due = a.keepalives > inVain
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

// patience is how long an attempt has. The first has number 1.
func (h *handshakes) patience(number int) time.Duration {
	patience := h.first
	for range number - 1 {
		if patience *= 2; patience > lastTry {
			patience = h.first
		}
	}
	return patience
}

// established reports whether a peer has a new session that something was sent in:
// more than initiations.
func (a *attempt) established(p peer) bool {
	return a.keepalives > 0 && p.handshake.After(a.at) && (p.sent-a.sent)%device.MessageInitiationSize != 0
}

// run does a step on a device and its bind, which has answers, and returns what the
// device says of its peers.
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
			// Without that wireguard-go begins one in five seconds only.
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

// initiate begins a handshake. That it can't, wireguard-go logs; there is a next attempt.
func initiate(key Key, p *device.Peer, b *Bind, forget func()) {
	b.answers.Load().begin(key, forget, func() { _ = p.SendHandshakeInitiation(false) })
}

// pause returns how long to wait for the next step after one that took so long: what
// a device with thousands of peers says takes milliseconds to read. Those that have had
// their headway aren't kept waiting.
func pause(took time.Duration) time.Duration { return min(max(5*time.Millisecond, 4*took), headway) }

// Initiate makes handshakes with peers of a device that is up, in that order, until all
// have a session or the context ends. b is the device's bind. With renew, sessions that they have are ended,
// packets to them wait for the new ones.
func Initiate(ctx context.Context, d *device.Device, b *Bind, peers []Key, renew bool) error {
	return newHandshakes(peers, renew).make(ctx, d, b)
}

// Succeed is Initiate for a process that follows on one that has ended at any moment: a
// peer takes no initiation within 20 ms of the last (WireGuard whitepaper, section 5.3),
// so the second attempt comes soon.
func Succeed(ctx context.Context, d *device.Device, b *Bind, peers []Key) error {
	h := newHandshakes(peers, false)
	h.first = hasty
	return h.make(ctx, d, b)
}

// make does all steps, until all have a session or the context ends.
func (h *handshakes) make(ctx context.Context, d *device.Device, b *Bind) error {
	b.answers.Store(newAnswers())
	defer b.answers.Store(nil)
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
