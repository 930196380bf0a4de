package handover

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/device"
)

// middle relays messages between the ends of a pair, and closes it at a message.
type middle struct {
	oldEnd, newEnd End // the middle's ends
	// at is called with each message, which is dropped if at returns false.
	at      func(kind) bool
	refused atomic.Bool
	wg      sync.WaitGroup
}

// refuse makes writes of the new engine fail, as the old engine does at the middle's end.
func (m *middle) refuse() {
	m.refused.Store(true)
	_ = m.newEnd.CloseRead()
}

// between connects two engines by a pair with a middle.
func between(t *testing.T, old, fresh *engine, at func(kind) bool) *middle {
	t.Helper()
	m := &middle{at: at}
	old.Pair, m.oldEnd = old.node.under.pair(t)
	m.newEnd, fresh.Pair = old.node.under.pair(t)
	m.pass(m.oldEnd, m.newEnd)
	m.pass(m.newEnd, m.oldEnd)
	t.Cleanup(func() {
		_, _ = m.oldEnd.Close(), m.newEnd.Close()
		m.wg.Wait()
	})
	return m
}

func (m *middle) pass(from, to End) {
	m.wg.Go(func() {
		buf := make([]byte, maxMessage)
		for {
			n, err := from.Read(buf)
			if err != nil {
				if from == m.oldEnd || !m.refused.Load() {
					_ = to.Close()
				}
				return
			}
			if m.at(kind(buf[0])) {
				_, _ = to.Write(buf[:n])
			}
		}
	})
}

// scene is a tunnel with traffic, and a hand-over that a test disturbs.
type scene struct {
	*node
	remote                *remote
	old, fresh            *engine
	out, in               *flow
	handedOver, takenOver chan error
	released, owned       chan struct{}
	takeover              context.Context
	stopTakeover          func()
}

// newScene returns a scene in a synctest bubble.
func newScene(t *testing.T) *scene {
	t.Helper()
	s := &scene{node: newNode(t, newLAN(), "10.0.0.1"), handedOver: make(chan error, 1), takenOver: make(chan error, 1), released: make(chan struct{}), owned: make(chan struct{})}
	s.takeover, s.stopTakeover = context.WithCancel(context.Background())
	t.Cleanup(s.stopTakeover)
	s.remote = newRemote(t, "10.0.0.2", s.node, "")
	s.peer(s.remote.node, s.remote.endpoint(), "")
	s.old = s.start(t, false).up(t)
	s.out = startFlow(t, s.node, s.remote.node, interval)
	connect(t, s.out)
	s.in = startFlow(t, s.remote.node, s.node, interval)
	connect(t, s.in)
	s.fresh = s.start(t, true)
	s.old.Limits.Drain, s.fresh.Limits.Drain = 300*time.Millisecond, time.Second
	return s
}

// handOver begins the hand-over, and closes the new engine's device when the takeover fails.
func (s *scene) handOver() {
	go func() { s.handedOver <- HandOver(context.Background(), s.old.Side, func() { close(s.released) }) }()
	go func() {
		err := TakeOver(s.takeover, s.fresh.Side, func() { close(s.owned) })
		if err != nil {
			s.fresh.Device.Close()
		}
		s.takenOver <- err
	}()
}

// works checks that packets go through in both directions, and that none was lost unless
// that had to be.
func (s *scene) works(t *testing.T, lossy bool) {
	t.Helper()
	s.out.flowing(t)
	s.in.flowing(t)
	s.out.end()
	s.in.end()
	out, in := s.out.missing(t), s.in.missing(t)
	t.Logf("lost %d of %d packets out, %d of %d in", out, s.out.sent.Load(), in, s.in.sent.Load())
	if (out > 0 || in > 0) && !lossy {
		t.Error("packets are lost")
	}
	s.remote.noNonceTwice(t)
}

// kill takes the descriptors from an engine, as if its process had ended.
func (e *engine) kill() {
	_ = e.Tun.Device.Close()
	_ = e.Bind.Sockets.Close()
}

// The new engine ends after it has written or received a message.
func TestTheNewEngineDies(t *testing.T) {
	for name, when := range map[string]struct {
		kind  kind
		after bool // the message has passed
		lost  bool // packets may be lost: the remote had a session with the new engine
	}{
		"before it began":            {kind: kindBegin},
		"before it knows the peers":  {kind: kindPeers},
		"before it reads":            {kind: kindPaused},
		"while it makes sessions":    {kind: kindRelayed, after: true, lost: true},
		"before it asks for the TUN": {kind: kindReady, lost: true},
		"before it has the TUN":      {kind: kindReleased, lost: true},
		"before it has said so":      {kind: kindOwned, lost: true},
	} {
		runInBubble(t, name, func(t *testing.T) {
			s := newScene(t)
			if !when.lost {
				// The old engine needs no handshake.
				s.remote.losing(func(_ bool, m []byte) bool { return messageType(m) == device.MessageInitiationType })
			}
			var m *middle
			die := sync.OnceFunc(func() {
				s.stopTakeover()
				s.fresh.kill()
				_ = m.oldEnd.Close()
			})
			m = between(t, s.old, s.fresh, func(k kind) bool {
				if k != when.kind {
					return !when.after || k != kindReady // The message is dropped.
				}
				if !when.after {
					die()
				} else {
					time.AfterFunc(5*time.Millisecond, die)
				}
				return when.after
			})
			s.handOver()
			if err := <-s.handedOver; err == nil {
				t.Errorf("the old engine ends with %v, want it to go on", err)
			}
			if err := <-s.takenOver; err == nil && when.kind != kindOwned {
				t.Error("the new engine ends without an error")
			}
			select {
			case <-s.released:
				t.Error("the old engine thinks that the new engine has the device")
			default:
			}
			s.fresh.Device.Close()
			s.works(t, when.lost)
		})
	}
}

// The old engine ends after it has written or received a message. The new engine continues.
func TestTheOldEngineDies(t *testing.T) {
	for name, at := range map[string]kind{
		"before it began":           kindBegin,
		"before the other one read": kindPaused,
		"while it receives":         kindRelayed,
		"when it is to give":        kindReady,
		"before it released":        kindReleased,
		"when the other one took":   kindOwned,
	} {
		runInBubble(t, name, func(t *testing.T) {
			s := newScene(t)
			var m *middle
			die := sync.OnceFunc(func() {
				_ = m.newEnd.Close()
				s.old.kill()
			})
			m = between(t, s.old, s.fresh, func(k kind) bool {
				if k == at {
					die()
				}
				return k != at
			})
			s.handOver()
			if err := <-s.takenOver; err != nil {
				t.Fatal(err)
			}
			if err := <-s.handedOver; err == nil && at != kindOwned {
				t.Error("the old engine ends without an error")
			}
			s.old.Device.Close()
			s.works(t, true)
		})
	}
}

// The new engine hangs for longer than the old engine waits, and then continues: the old
// engine retains the device, and the new engine returns ErrNotReleased.
func TestTheNewEngineHangs(t *testing.T) {
	for name, at := range map[string]kind{
		"when it has begun":  kindPaused,
		"when it is to take": kindReleased,
	} {
		runInBubble(t, name, func(t *testing.T) {
			s := newScene(t)
			s.fresh.Limits.Answer = time.Minute
			hang := make(chan struct{})
			m := between(t, s.old, s.fresh, func(k kind) bool {
				if k == at {
					<-hang
				}
				return true
			})
			s.handOver()
			err := <-s.handedOver
			m.refuse()
			close(hang)
			if !errors.Is(err, errNoAnswer) {
				t.Errorf("the old engine ends with %v, want %v", err, errNoAnswer)
			}
			if err := <-s.takenOver; !errors.Is(err, ErrNotReleased) {
				t.Errorf("the new engine ends with %v, want %v", err, ErrNotReleased)
			}
			s.fresh.Device.Close()
			s.works(t, true)
		})
	}
}

// If the old engine hangs at the beginning, the new engine gives up, and the old engine
// returns an error when it continues. An old engine that hangs later loses the device.
func TestTheOldEngineHangs(t *testing.T) {
	runInBubble(t, "at the beginning", func(t *testing.T) {
		s := newScene(t)
		s.fresh.Limits.Answer = 100 * time.Millisecond
		hang := make(chan struct{})
		between(t, s.old, s.fresh, func(k kind) bool {
			if k == kindBegin {
				<-hang
			}
			return true
		})
		s.handOver()
		if err := <-s.takenOver; !errors.Is(err, errNoAnswer) {
			t.Errorf("the new engine ends with %v, want %v", err, errNoAnswer)
		}
		close(hang)
		if err := <-s.handedOver; err == nil {
			t.Error("the old engine ends without an error")
		}
		s.works(t, true)
	})
	runInBubble(t, "when it is to give", func(t *testing.T) {
		s := newScene(t)
		s.fresh.Limits.Answer = 3 * time.Second
		hang := make(chan struct{})
		between(t, s.old, s.fresh, func(k kind) bool {
			if k == kindReady {
				<-hang
			}
			return true
		})
		s.handOver()
		<-s.owned
		close(hang)
		if err := <-s.handedOver; err != nil {
			t.Errorf("the old engine ends with %v", err)
		}
		s.old.Device.Close()
		if err := <-s.takenOver; err != nil {
			t.Errorf("the new engine ends with %v", err)
		}
		s.works(t, true)
	})
}

// The old engine doesn't end before it has received everything that was relayed to it.
func TestTheOldEngineReceivesRelayedMessages(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScene(t)
		s.old.Limits.Drain = 2 * time.Second
		pairFor(t, s.old, s.fresh)
		defer func() { _ = s.fresh.Pair.Close() }()
		g := &oldEngine{Side: s.old.Side, pair: newPair(s.old.Pair)}
		defer g.pair.close()
		if err := g.reportPeers(); err != nil {
			t.Fatal(err)
		}
		s.out.end()
		s.in.end()
		const frames = 100 // more than are read ahead
		for range frames {
			if _, err := s.fresh.Pair.Write([]byte{byte(kindRelayed), 0}); err != nil {
				t.Fatal(err)
			}
		}
		var taken atomic.Int64
		late := time.AfterFunc(3*time.Second, func() { // Nothing else comes for longer than it drains.
			for range frames {
				<-g.pair.relayed
				taken.Add(1)
			}
		})
		defer late.Stop()
		g.drainSessions(t.Context())
		if n := taken.Load(); n != frames {
			t.Errorf("it ends when %d of %d frames are received", n, frames)
		}
	})
}
