package handover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// ErrNotReleased is returned by [TakeOver] if the old engine aborted the hand-over.
var ErrNotReleased = errors.New("the other engine aborted the hand-over")

// TakeOver takes over a device from another engine, which runs [HandOver]. The device must
// have the same configuration and the same sockets as the other engine's, and be down, with
// its [Tun] shut. TakeOver calls owned when this engine owns the device, also if the other
// engine has ended before it released it, and returns nil when the other engine has ended. If
// TakeOver returns an error, this engine doesn't own the device, and the caller should close it.
func TakeOver(ctx context.Context, s Side, owned func()) error {
	e := &newEngine{Side: s, pair: newPair(s.Pair)}
	defer e.pair.close()
	if err := e.takeOver(ctx); err != nil {
		return fmt.Errorf("take over: %w", err)
	}
	owned()
	e.finish(ctx)
	return nil
}

type newEngine struct {
	Side
	pair              *pair
	relay             *relay
	keepalives        map[Key]int // as configured, in seconds
	withoutKeepalives []Key       // whose keepalives aren't restored yet
	endpoints         map[Key]string
	heard             map[Key]bool
	handshakes        *handshakes
	gone              bool // the old engine has ended
}

func (e *newEngine) takeOver(ctx context.Context) error {
	if err := e.disableKeepalives(); err != nil {
		return err
	}
	e.relay = &relay{send: e.pair.enqueue}
	e.heard, e.handshakes = make(map[Key]bool), newHandshakes(nil, false)
	if err := e.begin(ctx); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return errEnded
	}
	e.Bind.initiations.Store(newInitiations())
	e.Bind.relay.Store(e.relay)
	if err := e.Device.Up(); err != nil {
		return fmt.Errorf("open UDP sockets: %w", err)
	}
	if err := e.makeSessions(ctx); err != nil {
		return err
	}
	if !e.gone {
		if err := e.requestTun(ctx); err != nil {
			return err
		}
	}
	if e.gone && ctx.Err() != nil {
		return errEnded // Both end.
	}
	e.Tun.Open()
	e.relay.accept.Store(true)
	now, later := e.established()
	e.restoreKeepalives(now) // From here on, clients see the configured intervals.
	e.withoutKeepalives = later
	return nil
}

// disableKeepalives removes the persistent keepalives from the device: with them it would
// start handshakes with all peers when it goes up.
func (e *newEngine) disableKeepalives() error {
	have, err := peersOf(e.Device)
	if err != nil {
		return err
	}
	e.keepalives, e.endpoints = make(map[Key]int), make(map[Key]string)
	var keys []Key
	for key, p := range have {
		e.endpoints[key] = p.endpoint
		if p.keepalive > 0 {
			e.keepalives[key] = p.keepalive
			keys = append(keys, key)
		}
	}
	return e.setKeepalives(keys, func(Key) int { return 0 })
}

// restoreKeepalives restores the persistent keepalives of some peers.
func (e *newEngine) restoreKeepalives(keys []Key) {
	if err := e.setKeepalives(keys, func(key Key) int { return e.keepalives[key] }); err != nil {
		e.Log.Warn("restoring persistent keepalives failed", "err", err)
	}
}

func (e *newEngine) setKeepalives(keys []Key, seconds func(Key) int) error {
	var set strings.Builder
	for _, key := range keys {
		fmt.Fprintf(&set, "public_key=%x\nupdate_only=true\npersistent_keepalive_interval=%d\n", key[:], seconds(key))
	}
	if err := e.Device.IpcSet(set.String()); err != nil {
		return fmt.Errorf("set persistent keepalives: %w", err)
	}
	return nil
}

// begin returns when the old engine has stopped reading messages. It announces the handshakes
// then: an old engine that continues without that announcement needs no new sessions.
func (e *newEngine) begin(ctx context.Context) error {
	if err := e.pair.send(kindBegin, version); err != nil {
		e.gone = true
		return nil
	}
	timeout := time.After(2 * e.Limits.Answer) // The old engine may have to wait itself.
	for {
		m, err := e.pair.next(ctx.Done(), timeout)
		if errors.Is(err, io.EOF) {
			e.gone = true
			return nil
		}
		if err != nil {
			return err
		}
		if m.kind == kindPaused {
			if err := e.pair.send(kindProgress); err != nil {
				return e.resolveOwner(err)
			}
			return nil
		}
		if err := e.handle(m); err != nil {
			return err
		}
	}
}

// handle handles a message of the old engine.
func (e *newEngine) handle(m message) error {
	switch m.kind {
	case kindAborted:
		return fmt.Errorf("%w: %s", ErrNotReleased, m.body)
	case kindPeers:
		all, err := parseUpdates(m.body)
		if err != nil {
			return err
		}
		moved := make(map[Key]string)
		for _, n := range all {
			known, ours := e.endpoints[n.key]
			if !ours {
				continue // Not configured here.
			}
			e.heard[n.key] = n.heard
			e.handshakes.add(n.key)
			if n.endpoint != "" && n.endpoint != known {
				e.endpoints[n.key], moved[n.key] = n.endpoint, n.endpoint
			}
		}
		return setEndpoints(e.Device, moved)
	}
	return nil
}

// reportEndpoints sends the changed endpoints of peers with a session to the old engine.
func (e *newEngine) reportEndpoints(have map[Key]peer) error {
	var moved []peerUpdate
	for key, p := range have {
		if !p.handshake.IsZero() && p.endpoint != e.endpoints[key] {
			e.endpoints[key] = p.endpoint
			moved = append(moved, peerUpdate{key: key, endpoint: p.endpoint})
		}
	}
	return e.pair.sendPeers(moved)
}

// makeSessions makes sessions with the peers. It returns when doneWaiting does.
func (e *newEngine) makeSessions(ctx context.Context) error {
	began := time.Now()
	reported, answered, missing := began, began, len(e.handshakes.of)
	step := time.NewTimer(0)
	defer step.Stop()
	for {
		select {
		case <-ctx.Done():
			return errEnded
		case m, more := <-e.pair.messages:
			if !more {
				e.gone = true
				return nil
			}
			if err := e.handle(m); err != nil {
				return err
			}
		case <-step.C:
			now := time.Now()
			have, err := e.handshakes.run(e.Device, e.Bind, now)
			if err != nil {
				return err
			}
			if err := e.reportEndpoints(have); err != nil {
				e.Log.Debug("the other engine doesn't read", "err", err)
			}
			if n := len(e.handshakes.of); n < missing {
				answered, missing = now, n
			}
			if e.doneWaiting(now.Sub(began), now.Sub(answered)) {
				return nil
			}
			if now.Sub(reported) >= progressInterval {
				reported = now
				if err := e.pair.send(kindProgress); err != nil {
					e.Log.Debug("the other engine doesn't read", "err", err)
				}
			}
			step.Reset(pause(time.Since(now)))
		}
	}
}

// doneWaiting reports whether to stop waiting for peers without a session. waited is the time
// since the start, silent the time since a peer last answered. Peers that are heard use
// sessions of the old engine, in which nothing is lost, so they get more time.
func (e *newEngine) doneWaiting(waited, silent time.Duration) bool {
	if len(e.handshakes.of) == 0 || waited >= e.Limits.Sessions {
		return true
	}
	if silent < e.Limits.Silent {
		return false
	}
	for key := range e.handshakes.of {
		if e.heard[key] {
			return false
		}
	}
	return true
}

// requestTun requests the TUN, and takes ownership of the device.
func (e *newEngine) requestTun(ctx context.Context) error {
	if err := e.pair.send(kindReady); err != nil {
		e.Log.Debug("the other engine doesn't read", "err", err)
	}
	timeout := time.After(e.Limits.Answer)
	for {
		m, err := e.pair.next(ctx.Done(), timeout)
		switch {
		case errors.Is(err, io.EOF):
			e.gone = true
			return nil
		case errors.Is(err, errEnded):
			return err
		case err == nil && m.kind != kindReleased:
			if err := e.handle(m); err != nil {
				return err
			}
			continue
		}
		break
	}
	// From here on this engine owns the device, also if the other one hangs.
	if err := e.pair.send(kindOwned); err != nil {
		return e.resolveOwner(err)
	}
	return nil
}

// resolveOwner decides which engine owns the device when writing to the old engine has
// failed: the old engine if it has sent kindAborted, and otherwise it has ended.
func (e *newEngine) resolveOwner(err error) error {
	for {
		m, nextErr := e.pair.next(nil, time.After(e.Limits.Answer))
		switch {
		case errors.Is(nextErr, io.EOF):
			e.gone = true
			return nil
		case nextErr != nil:
			return err
		}
		if err := e.handle(m); err != nil {
			return err
		}
	}
}

// finish restores the remaining keepalives and handshakes, and returns when the old engine
// has ended.
func (e *newEngine) finish(ctx context.Context) {
	defer func() {
		if n := e.pair.lost.Load(); n > 0 {
			e.Log.Warn("lost relayed messages: the other engine didn't read them in time", "frames", n)
		}
	}()
	defer e.Bind.relay.Store(nil)
	defer e.Bind.initiations.Store(nil)
	began := time.Now()
	pace := time.NewTicker(headway)
	defer pace.Stop()
	limit := time.After(5 * e.Limits.Drain) // The old engine drains for up to four.
	for rounds := 0; ; rounds++ {
		n := min(atOnce, len(e.withoutKeepalives))
		e.restoreKeepalives(e.withoutKeepalives[:n])
		e.withoutKeepalives = e.withoutKeepalives[n:]
		if rounds < 10 || rounds%10 == 0 {
			// A remote uses a session once it has received a message in it. The first
			// ones may be lost, so this repeats until the old engine has ended.
			e.Device.SendKeepalivesToPeersWithCurrentKeypair()
		}
		_, err := e.handshakes.run(e.Device, e.Bind, time.Now())
		late := err != nil || time.Since(began) >= e.Limits.Patience // wireguard-go retries
		if e.gone && len(e.withoutKeepalives) == 0 && (late || len(e.handshakes.of) == 0) {
			return
		}
	wait:
		for {
			messages := e.pair.messages
			if e.gone {
				messages = nil
			}
			select {
			case m, more := <-messages:
				if !more {
					e.gone = true
				} else if err := e.handle(m); err != nil {
					e.Log.Debug("parsing a message of the other engine failed", "err", err)
				}
			case <-pace.C:
				break wait
			case <-limit:
				e.gone = true
			case <-e.Device.Wait():
				return
			case <-ctx.Done():
				e.restoreKeepalives(e.withoutKeepalives)
				return
			}
		}
	}
}

// established returns the peers with persistent keepalives: now those with a session, later
// those with which a keepalive would start a handshake.
func (e *newEngine) established() (now, later []Key) {
	have, err := peersOf(e.Device)
	for key := range e.keepalives {
		if err == nil && have[key].handshake.IsZero() {
			later = append(later, key)
		} else {
			now = append(now, key)
		}
	}
	return now, later
}
