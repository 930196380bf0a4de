package handover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"golang.zx2c4.com/wireguard/device"
)

// Side is one engine's side of a hand-over: a device of wireguard-go on a [Bind] and a [Tun].
// During the hand-over the caller must not configure the device, bring it up or down, or
// close it.
type Side struct {
	Device *device.Device
	Bind   *Bind
	Tun    *Tun
	// Pair is this engine's end of the SEQPACKET pair. It is closed at the end.
	Pair   End
	Limits Limits
	Log    *slog.Logger
}

// Limits bound the duration of steps.
type Limits struct {
	// Answer is the time for each answer of the other engine. After it, that one counts as
	// hanging.
	Answer time.Duration
	// Silent is how long the new engine waits, since a peer last answered, for peers that
	// neither answer its handshake nor send in the old engine's session. Sessions is how
	// long it waits, since the start of its handshakes, for those that send: after that,
	// the old engine's sessions expire.
	Silent, Sessions time.Duration
	// Patience is how long the engine that has the device waits for peers without a
	// session, and for the new engine to begin.
	Patience time.Duration
	// Drain is how long the old engine continues to receive in its sessions, at least.
	// While messages arrive it continues, up to four times as long.
	Drain time.Duration
}

// DefaultLimits are for real networks: a handshake may take longer than a second, and be
// lost many times. Nothing is lost while the new engine waits, until the old engine's
// sessions expire: a session expires after 180 s (RejectAfterTime). Outside of a hand-over,
// a session in use is renewed after 120 s (RekeyAfterTime) and at most a keepalive's 10 s.
var DefaultLimits = Limits{
	Answer: 4 * time.Second, Silent: 3 * time.Second, Sessions: device.RejectAfterTime - device.RekeyAfterTime - device.KeepaliveTimeout - margin,
	Patience: 10 * time.Second, Drain: 3 * time.Second,
}

const (
	progressInterval = 100 * time.Millisecond // of the new engine
	reportInterval   = 250 * time.Millisecond // of the old engine
	// margin is the time for the steps before and after the handshakes.
	margin = 5 * time.Second
	// hearing is the time without messages after which a peer counts as silent: a peer that
	// sends and receives nothing for this long starts a handshake.
	hearing = device.KeepaliveTimeout + device.RekeyTimeout
)

// HandOver hands over a device to another engine, which runs [TakeOver]. It calls released
// when the other engine owns the device, and returns nil when this engine's sessions have
// drained or the other engine has ended: the caller should close the device then. If HandOver
// returns an error, the device continues here, with new sessions if the other engine had made
// some.
func HandOver(ctx context.Context, s Side, released func()) error {
	e := &oldEngine{Side: s, pair: newPair(s.Pair)}
	defer e.pair.close()
	began, err := e.handOver(ctx)
	if err == nil {
		released()
		e.drainSessions(ctx)
		return nil
	}
	reason := []byte(err.Error())
	_ = e.pair.send(kindAborted, reason[:min(len(reason), maxUpdates)]...)
	begun, owned := e.pair.drain()
	if owned {
		_ = e.shut(ctx)
		released()
		return nil
	}
	e.Tun.Open()
	e.Bind.release()
	if began || begun {
		e.renew(ctx)
	}
	return fmt.Errorf("hand over: %w", err)
}

type oldEngine struct {
	Side
	pair     *pair
	live     []Key
	reported map[Key]peerUpdate
	last     map[Key]receipt // of the peers in live
	received uint64          // bytes in all sessions, at the last report
}

// receipt records when a message of a peer last arrived in a session of the old engine.
type receipt struct {
	bytes uint64
	at    time.Time // zero: none since the start of the hand-over
}

// heard returns the receipt after the device has received that number of bytes, and whether
// the peer counts as heard.
func (r receipt) heard(bytes uint64, now time.Time) (receipt, bool) {
	if bytes > r.bytes {
		r = receipt{bytes, now}
	}
	return r, now.Sub(r.at) < hearing
}

// handOver returns nil when the new engine owns the device. On error it returns whether the new
// engine may have started handshakes, which it announces.
func (e *oldEngine) handOver(ctx context.Context) (began bool, err error) {
	first, err := e.pair.next(ctx.Done(), time.After(e.Limits.Patience))
	switch {
	case err != nil:
		return false, err
	case first.kind != kindBegin || len(first.body) != 1 || first.body[0] != version:
		return false, fmt.Errorf("the other engine begins with %q %x, want %q %x", first.kind, first.body, kindBegin, version)
	}
	if err := e.Bind.mute(ctx); err != nil {
		return false, err
	}
	if err := e.reportPeers(); err != nil {
		return false, err
	}
	step, cancel := context.WithTimeout(ctx, e.Limits.Answer)
	err = e.Bind.receiveRelayed(step, e.pair.relayed)
	cancel()
	if err != nil {
		return false, err
	}
	if err := e.pair.send(kindPaused); err != nil {
		return false, err
	}
	report := time.NewTicker(reportInterval)
	defer report.Stop()
	silence := time.NewTimer(e.Limits.Answer)
	defer silence.Stop()
	for {
		select {
		case <-ctx.Done():
			return began, errEnded
		case <-silence.C:
			return began, errNoAnswer
		case <-report.C:
			if err := e.reportPeers(); err != nil {
				return began, err
			}
		case m, more := <-e.pair.messages:
			if !more {
				return began, io.EOF
			}
			began = true
			silence.Reset(e.Limits.Answer)
			switch m.kind {
			case kindPeers:
				if err := e.setEndpoints(m.body); err != nil {
					return true, err
				}
			case kindReady:
				err := e.shut(ctx)
				if err == nil {
					err = e.pair.send(kindReleased)
				}
				if err != nil {
					return true, err
				}
			case kindOwned:
				_ = e.shut(ctx) // The new engine may have timed out, or sent no kindReady.
				return true, nil
			}
		}
	}
}

// shut stops reading the TUN, also when ctx has ended. It waits for at most Limits.Answer.
func (e *oldEngine) shut(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.Limits.Answer)
	defer cancel()
	err := e.Tun.Shut(ctx)
	if err != nil {
		e.Log.Warn("stopping to read the TUN failed", "err", err)
	}
	return err
}

// reportPeers sends the peers with a session to the new engine at first, and later those that
// have changed.
func (e *oldEngine) reportPeers() error {
	have, err := peersOf(e.Device)
	if err != nil {
		return err
	}
	e.received = 0
	for _, p := range have {
		e.received += p.received
	}
	now := time.Now()
	if e.reported == nil {
		e.live = live(have, now)
		e.reported, e.last = make(map[Key]peerUpdate, len(e.live)), make(map[Key]receipt, len(e.live))
		for _, key := range e.live {
			e.last[key] = receipt{bytes: have[key].received}
		}
	}
	var changed []peerUpdate
	for _, key := range e.live {
		n := peerUpdate{key: key, endpoint: have[key].endpoint}
		if e.last[key], n.heard = e.last[key].heard(have[key].received, now); n != e.reported[key] {
			e.reported[key] = n
			changed = append(changed, n)
		}
	}
	return e.pair.sendPeers(changed)
}

// setEndpoints sets the endpoints of peers from which the new engine has received messages.
func (e *oldEngine) setEndpoints(body []byte) error {
	all, err := parseUpdates(body)
	if err != nil {
		return err
	}
	endpoints := make(map[Key]string, len(all))
	for _, n := range all {
		endpoints[n.key] = n.endpoint
	}
	return setEndpoints(e.Device, endpoints)
}

// drainSessions returns when no more messages arrive for this engine's sessions, and it has
// received all relayed ones. It counts checks instead of time: without processor time, this
// process receives nothing either.
func (e *oldEngine) drainSessions(ctx context.Context) {
	checks := max(2, int(e.Limits.Drain/reportInterval))
	tick := time.NewTicker(reportInterval)
	defer tick.Stop()
	for all, silent := 0, 0; all < 4*checks && silent < checks; {
		switch _, err := e.pair.next(ctx.Done(), tick.C); {
		case err == nil:
			continue
		case !errors.Is(err, errNoAnswer):
			return // One of the engines ends.
		}
		last := e.received
		// A remote that doesn't use the new engine's session yet may roam.
		if err := e.reportPeers(); err != nil {
			e.Log.Debug("the other engine doesn't read", "err", err)
		}
		all++
		if silent++; e.received != last || e.pair.conn.unread() || !e.Bind.idle() {
			silent = 0
		}
	}
}

// renew makes new sessions: remotes may send in sessions of an engine that has ended.
func (e *oldEngine) renew(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, e.Limits.Patience)
	defer cancel()
	if err := newHandshakes(e.live, true).make(ctx, e.Device, e.Bind); err != nil {
		// wireguard-go retries.
		e.Log.Info("not all peers have new sessions after the hand-over", "err", err)
	}
}
