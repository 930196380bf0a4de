package handover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// ErrKept is returned by [Take] when the giver keeps the device.
var ErrKept = errors.New("the other engine keeps the device")

// Take takes a device over from another engine, which runs [Give]. The device must be
// configured as the other one's is, and down, its [Tun] shut, and its sockets those of
// the other one. Take calls here at the moment from which on this engine has the device,
// and returns nil when the other one has ended. When that ends before, the device is
// this engine's, too. When Take returns an error, it isn't, and should be closed.
func Take(ctx context.Context, s Side, here func()) error {
	t := &taker{Side: s, pair: newPair(s.Pair)}
	defer t.pair.close()
	if err := t.take(ctx); err != nil {
		return fmt.Errorf("take over: %w", err)
	}
	here()
	t.settle(ctx)
	return nil
}

type taker struct {
	Side
	pair       *pair
	relay      *relay
	keepalives map[Key]int
	quiet      []Key // have no keepalives yet
	endpoints  map[Key]string
	heard      map[Key]bool
	handshakes *handshakes
	gone       bool // the giver is
}

func (t *taker) take(ctx context.Context) error {
	if err := t.quieten(); err != nil {
		return err
	}
	t.relay = &relay{send: t.pair.post}
	t.heard, t.handshakes = make(map[Key]bool), newHandshakes(nil, false)
	if err := t.begin(ctx); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return errEnded
	}
	t.Bind.answers.Store(newAnswers())
	t.Bind.relay.Store(t.relay)
	if err := t.Device.Up(); err != nil {
		return fmt.Errorf("open UDP sockets: %w", err)
	}
	if err := t.meet(ctx); err != nil {
		return err
	}
	if !t.gone {
		if err := t.ask(ctx); err != nil {
			return err
		}
	}
	if t.gone && ctx.Err() != nil {
		return errEnded // Both end.
	}
	t.Tun.Open()
	t.relay.accept.Store(true)
	now, later := t.established()
	t.giveKeepalives(now) // Whoever asks from now on is told what was configured.
	t.quiet = later
	return nil
}

// quieten takes the persistent keepalives from the device: with them it would begin a
// handshake with all of its peers in the moment when it goes up.
func (t *taker) quieten() error {
	have, err := peersOf(t.Device)
	if err != nil {
		return err
	}
	t.keepalives, t.endpoints = make(map[Key]int), make(map[Key]string)
	var keys []Key
	for key, p := range have {
		t.endpoints[key] = p.endpoint
		if p.keepalive > 0 {
			t.keepalives[key] = p.keepalive
			keys = append(keys, key)
		}
	}
	return t.setKeepalives(keys, func(Key) int { return 0 })
}

// giveKeepalives is the reverse for some of them.
func (t *taker) giveKeepalives(keys []Key) {
	if err := t.setKeepalives(keys, func(key Key) int { return t.keepalives[key] }); err != nil {
		t.Log.Warn("peers without persistent keepalives", "err", err)
	}
}

func (t *taker) setKeepalives(keys []Key, seconds func(Key) int) error {
	var set strings.Builder
	for _, key := range keys {
		fmt.Fprintf(&set, "public_key=%x\nupdate_only=true\npersistent_keepalive_interval=%d\n", key[:], seconds(key))
	}
	if err := t.Device.IpcSet(set.String()); err != nil {
		return fmt.Errorf("set persistent keepalives: %w", err)
	}
	return nil
}

// begin returns when the giver reads no messages any more, and is told that handshakes
// begin: one that goes on without that needs no new sessions.
func (t *taker) begin(ctx context.Context) error {
	if err := t.pair.send(kindBegin, version); err != nil {
		t.gone = true
		return nil
	}
	timeout := time.After(2 * t.Limits.Answer) // it may have to wait itself
	for {
		m, err := t.pair.next(ctx.Done(), timeout)
		if errors.Is(err, io.EOF) {
			t.gone = true
			return nil
		}
		if err != nil {
			return err
		}
		if m.kind == kindPaused {
			if err := t.pair.send(kindProgress); err != nil {
				return t.verdict(err)
			}
			return nil
		}
		if err := t.handle(m); err != nil {
			return err
		}
	}
}

// handle takes notice of a message.
func (t *taker) handle(m message) error {
	switch m.kind {
	case kindAborted:
		return fmt.Errorf("%w: %s", ErrKept, m.body)
	case kindPeers:
		all, err := parseNews(m.body)
		if err != nil {
			return err
		}
		moved := make(map[Key]string)
		for _, n := range all {
			known, ours := t.endpoints[n.key]
			if !ours {
				continue // Configured here, it would be.
			}
			t.heard[n.key] = n.heard
			t.handshakes.add(n.key)
			if n.endpoint != "" && n.endpoint != known {
				t.endpoints[n.key], moved[n.key] = n.endpoint, n.endpoint
			}
		}
		return setEndpoints(t.Device, moved)
	}
	return nil
}

// look tells the giver where peers are that send in sessions with this engine.
func (t *taker) look(have map[Key]peer) error {
	var moved []news
	for key, p := range have {
		if !p.handshake.IsZero() && p.endpoint != t.endpoints[key] {
			t.endpoints[key] = p.endpoint
			moved = append(moved, news{key: key, endpoint: p.endpoint})
		}
	}
	return t.pair.tell(moved)
}

// meet makes sessions with the peers. It returns when all have one, or enough was
// waited for the others.
func (t *taker) meet(ctx context.Context) error {
	began := time.Now()
	told, answered, missing := began, began, len(t.handshakes.of)
	step := time.NewTimer(0)
	defer step.Stop()
	for {
		select {
		case <-ctx.Done():
			return errEnded
		case m, more := <-t.pair.messages:
			if !more {
				t.gone = true
				return nil
			}
			if err := t.handle(m); err != nil {
				return err
			}
		case <-step.C:
			now := time.Now()
			have, err := t.handshakes.run(t.Device, t.Bind, now)
			if err != nil {
				return err
			}
			if err := t.look(have); err != nil {
				t.Log.Debug("the other engine doesn't read", "err", err)
			}
			if n := len(t.handshakes.of); n < missing {
				answered, missing = now, n
			}
			if t.enough(now.Sub(began), now.Sub(answered)) {
				return nil
			}
			if now.Sub(told) >= progressEvery {
				told = now
				if err := t.pair.send(kindProgress); err != nil {
					t.Log.Debug("the other engine doesn't read", "err", err)
				}
			}
			step.Reset(pause(time.Since(now)))
		}
	}
}

// enough reports whether nobody is to be waited for any more, after some time in all and
// since a peer answered: peers that are gone won't come back by it. One that is heard has
// a session of the giver's, and what it is sent in that isn't lost.
func (t *taker) enough(waited, silent time.Duration) bool {
	if len(t.handshakes.of) == 0 || waited >= t.Limits.Sessions {
		return true
	}
	if silent < t.Limits.Silent {
		return false
	}
	for key := range t.handshakes.of {
		if t.heard[key] {
			return false
		}
	}
	return true
}

// ask asks for the TUN, and takes it.
func (t *taker) ask(ctx context.Context) error {
	if err := t.pair.send(kindReady); err != nil {
		t.Log.Debug("the other engine doesn't read", "err", err)
	}
	timeout := time.After(t.Limits.Answer)
	for {
		m, err := t.pair.next(ctx.Done(), timeout)
		switch {
		case errors.Is(err, io.EOF):
			t.gone = true
			return nil
		case errors.Is(err, errEnded):
			return err
		case err == nil && m.kind != kindGiven:
			if err := t.handle(m); err != nil {
				return err
			}
			continue
		}
		break
	}
	// From here on it is this engine's, also when the other one hangs.
	if err := t.pair.send(kindTaken); err != nil {
		return t.verdict(err)
	}
	return nil
}

// verdict says whose the device is when nothing can be written to the giver: its own
// when it has said so, and otherwise it has ended.
func (t *taker) verdict(err error) error {
	for {
		m, nextErr := t.pair.next(nil, time.After(t.Limits.Answer))
		switch {
		case errors.Is(nextErr, io.EOF):
			t.gone = true
			return nil
		case nextErr != nil:
			return err
		}
		if err := t.handle(m); err != nil {
			return err
		}
	}
}

// settle gives the device what it was spared, and returns when the giver has ended.
func (t *taker) settle(ctx context.Context) {
	defer func() {
		if n := t.pair.lost(); n > 0 {
			t.Log.Warn("the engine before this one didn't run for too long: messages for it are lost", "frames", n)
		}
	}()
	defer t.Bind.relay.Store(nil)
	defer t.Bind.answers.Store(nil)
	began := time.Now()
	pace := time.NewTicker(headway)
	defer pace.Stop()
	limit := time.After(5 * t.Limits.Linger) // of the giver; it lingers for four
	for rounds := 0; ; rounds++ {
		n := min(atOnce, len(t.quiet))
		t.giveKeepalives(t.quiet[:n])
		t.quiet = t.quiet[n:]
		if rounds < 10 || rounds%10 == 0 {
			// A remote uses a session when something has come in it, and that may
			// have been lost, also for seconds: as long as the giver is there.
			t.Device.SendKeepalivesToPeersWithCurrentKeypair()
		}
		_, err := t.handshakes.run(t.Device, t.Bind, time.Now())
		late := err != nil || time.Since(began) >= t.Limits.Patience // wireguard-go goes on trying
		if t.gone && len(t.quiet) == 0 && (late || len(t.handshakes.of) == 0) {
			return
		}
	wait:
		for {
			messages := t.pair.messages
			if t.gone {
				messages = nil
			}
			select {
			case m, more := <-messages:
				if !more {
					t.gone = true
				} else if err := t.handle(m); err != nil {
					t.Log.Debug("the other engine says what isn't understood", "err", err)
				}
			case <-pace.C:
				break wait
			case <-limit:
				t.gone = true
			case <-t.Device.Wait():
				return
			case <-ctx.Done():
				t.giveKeepalives(t.quiet)
				return
			}
		}
	}
}

// established returns the peers that had persistent keepalives: those that have a
// session, and those with which the first one would begin a handshake.
func (t *taker) established() (now, later []Key) {
	have, err := peersOf(t.Device)
	for key := range t.keepalives {
		if err == nil && have[key].handshake.IsZero() {
			later = append(later, key)
		} else {
			now = append(now, key)
		}
	}
	return now, later
}
