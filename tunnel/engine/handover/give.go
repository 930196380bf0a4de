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

// Side is one of the two engines: a device of wireguard-go on a [Bind] and a [Tun].
// While the device is handed over nobody else may configure it, bring it up or down, or
// close it.
type Side struct {
	Device *device.Device
	Bind   *Bind
	Tun    *Tun
	// Pair is an end of a SEQPACKET pair, whose other end the other engine has. It is
	// closed at the end.
	Pair   End
	Limits Limits
	Log    *slog.Logger
}

// Limits bound how long the steps take.
type Limits struct {
	// Answer is for each answer of the other engine: beyond it, that one hangs.
	Answer time.Duration
	// Silent is how long the taker waits for a peer that neither answers its
	// handshake nor sends anything in the giver's session, after the last peer that
	// answered. Sessions is how long it waits for one that does send, since the
	// handshakes began: after that sessions of the giver end.
	Silent, Sessions time.Duration
	// Patience is how long an engine that has a device waits for peers without a
	// session, and for a taker to begin.
	Patience time.Duration
	// Linger is how long the giver goes on receiving for its sessions, at least.
	// While anything comes it goes on, up to four times as long.
	Linger time.Duration
}

// DefaultLimits are for real networks: a peer's handshake may take longer than a
// second, and be lost many times. Nothing is lost while the taker waits, as long as the
// giver's sessions last: a session ends after 180 s (RejectAfterTime), and one in which
// anything is sent or received is followed by another one when 120 s (RekeyAfterTime) and
// at most a keepalive's 10 s are over, but for the time of the hand-over.
var DefaultLimits = Limits{
	Answer: 4 * time.Second, Silent: 3 * time.Second, Sessions: device.RejectAfterTime - device.RekeyAfterTime - device.KeepaliveTimeout - margin,
	Patience: 10 * time.Second, Linger: 3 * time.Second,
}

// ErrTakerEnded is returned by [Give] when the taker ended after it had taken the
// device, while the giver lingered. [Resume] makes the giver's device go on.
var ErrTakerEnded = errors.New("the engine that took the device has ended")

const (
	progressEvery = 100 * time.Millisecond // taker
	newsEvery     = 250 * time.Millisecond // giver
	// margin is for what comes before and after the handshakes.
	margin = 5 * time.Second
	// hearing is how long ago a peer may have been heard that is there: who sends and
	// hears nothing for as long begins a handshake.
	hearing = device.KeepaliveTimeout + device.RekeyTimeout
)

// Give hands a device over to another engine, which runs [Take]. It returns nil when
// that has the device and no more is to be expected for the sessions of this one, which
// should be closed. It calls gone at the moment from which on the other one has it. When
// Give returns an error other than [ErrTakerEnded] the device goes on here as if nothing
// had been: with new sessions, when the other engine had made some already.
func Give(ctx context.Context, s Side, gone func()) error {
	g := &giver{Side: s, pair: newPair(s.Pair)}
	defer g.pair.close()
	began, err := g.give(ctx)
	if err == nil {
		gone()
		return g.linger(ctx)
	}
	reason := []byte(err.Error())
	_ = g.pair.send(kindAborted, reason[:min(len(reason), maxNews)]...)
	begun, took := g.pair.refuse()
	if took {
		_ = g.shut(ctx)
		gone()
		if errors.Is(err, io.EOF) {
			return ErrTakerEnded
		}
		return nil
	}
	g.Tun.Open()
	g.Bind.release()
	if began || begun {
		g.renew(ctx)
	}
	return fmt.Errorf("hand over: %w", err)
}

// Resume makes the device of a giver go on after [ErrTakerEnded].
func Resume(ctx context.Context, s Side) {
	g := &giver{Side: s}
	peers, err := peersOf(s.Device)
	if err == nil {
		g.live = live(peers, time.Now())
	}
	s.Tun.Open()
	s.Bind.release()
	g.renew(ctx)
}

type giver struct {
	Side
	pair *pair
	live []Key
	told map[Key]news
	last map[Key]receipt // of those in live
	// received is how many bytes came in all sessions, when it was looked last.
	received uint64
}

// receipt is when something came from a peer in a session of the giver.
type receipt struct {
	bytes uint64
	at    time.Time // zero: not since the hand-over began
}

// heard returns the receipt that follows when the device says how many bytes came, and
// whether the peer counts as heard.
func (r receipt) heard(bytes uint64, now time.Time) (receipt, bool) {
	if bytes > r.bytes {
		r = receipt{bytes, now}
	}
	return r, now.Sub(r.at) < hearing
}

// give returns nil when the taker has the device, and otherwise whether it may have
// begun handshakes: it says so before.
func (g *giver) give(ctx context.Context) (began bool, err error) {
	first, err := g.pair.next(ctx.Done(), time.After(g.Limits.Patience))
	switch {
	case err != nil:
		return false, err
	case first.kind != kindBegin || len(first.body) != 1 || first.body[0] != version:
		return false, fmt.Errorf("the other engine begins with %q %x, want %q %x", first.kind, first.body, kindBegin, version)
	}
	if err := g.Bind.mute(ctx); err != nil {
		return false, err
	}
	if err := g.look(); err != nil {
		return false, err
	}
	step, cancel := context.WithTimeout(ctx, g.Limits.Answer)
	err = g.Bind.hold(step, g.pair.relayed)
	cancel()
	if err != nil {
		return false, err
	}
	if err := g.pair.send(kindPaused); err != nil {
		return false, err
	}
	news := time.NewTicker(newsEvery)
	defer news.Stop()
	silence := time.NewTimer(g.Limits.Answer)
	defer silence.Stop()
	for {
		select {
		case <-ctx.Done():
			return began, errEnded
		case <-silence.C:
			return began, errNoAnswer
		case <-news.C:
			if err := g.look(); err != nil {
				return began, err
			}
		case m, more := <-g.pair.messages:
			if !more {
				return began, io.EOF
			}
			began = true
			silence.Reset(g.Limits.Answer)
			switch m.kind {
			case kindPeers:
				if err := g.moved(m.body); err != nil {
					return true, err
				}
			case kindReady:
				err := g.shut(ctx)
				if err == nil {
					err = g.pair.send(kindGiven)
				}
				if err != nil {
					return true, err
				}
			case kindTaken:
				_ = g.shut(ctx) // The taker doesn't wait for ever: there may have been no kindReady.
				return true, nil
			}
		}
	}
}

// shut ends reading the TUN, also when that takes too long or this engine ends.
func (g *giver) shut(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.Limits.Answer)
	defer cancel()
	err := g.Tun.Shut(ctx)
	if err != nil {
		g.Log.Warn("a device doesn't stop reading its TUN", "err", err)
	}
	return err
}

// look tells the taker which peers have a session, the first time, and later what has
// changed of them.
func (g *giver) look() error {
	have, err := peersOf(g.Device)
	if err != nil {
		return err
	}
	g.received = 0
	for _, p := range have {
		g.received += p.received
	}
	now := time.Now()
	if g.told == nil {
		g.live = live(have, now)
		g.told, g.last = make(map[Key]news, len(g.live)), make(map[Key]receipt, len(g.live))
		for _, key := range g.live {
			g.last[key] = receipt{bytes: have[key].received}
		}
	}
	var changed []news
	for _, key := range g.live {
		n := news{key: key, endpoint: have[key].endpoint}
		if g.last[key], n.heard = g.last[key].heard(have[key].received, now); n != g.told[key] {
			g.told[key] = n
			changed = append(changed, n)
		}
	}
	return g.pair.tell(changed)
}

// moved sends to peers where the taker has heard them.
func (g *giver) moved(body []byte) error {
	all, err := parseNews(body)
	if err != nil {
		return err
	}
	endpoints := make(map[Key]string, len(all))
	for _, n := range all {
		endpoints[n.key] = n.endpoint
	}
	return setEndpoints(g.Device, endpoints)
}

// linger returns when nothing comes for this engine's sessions any more, and all that was
// relayed for them has been received. What counts is how often it has looked, not the time:
// a process that didn't run meanwhile hasn't received anything either.
func (g *giver) linger(ctx context.Context) error {
	looks := max(2, int(g.Limits.Linger/newsEvery))
	tick := time.NewTicker(newsEvery)
	defer tick.Stop()
	for all, silent := 0, 0; all < 4*looks && silent < looks; {
		switch _, err := g.pair.next(ctx.Done(), tick.C); {
		case err == nil:
			continue
		case errors.Is(err, io.EOF):
			return ErrTakerEnded
		case !errors.Is(err, errNoAnswer):
			return nil
		}
		last := g.received
		// A remote that hasn't got the other one's session yet may roam.
		if err := g.look(); err != nil {
			g.Log.Debug("the other engine doesn't read", "err", err)
		}
		all++
		if silent++; g.received != last || g.pair.conn.unread() || !g.Bind.idle() {
			silent = 0
		}
	}
	return nil
}

// renew makes new sessions: the remotes may send in those of an engine that has ended.
func (g *giver) renew(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, g.Limits.Patience)
	defer cancel()
	if err := Initiate(ctx, g.Device, g.Bind, g.live, true); err != nil {
		// wireguard-go goes on trying.
		g.Log.Info("not all peers answered when sessions were made again", "err", err)
	}
}
