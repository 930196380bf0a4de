package handover

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/blake2s"
	"golang.zx2c4.com/wireguard/device"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
)

// passage is a tunnel of a node with a remote, and the path between them.
type passage struct {
	*path
	e       *engine
	r       *remote
	out, in *flow
}

// newPassage makes packets flow through a tunnel, in a bubble, after the remote's first
// handshake or the node's.
func newPassage(t *testing.T, remoteFirst bool) *passage {
	t.Helper()
	n := newNode(t, newLAN(), "10.0.0.1")
	p := &passage{r: newRemote(t, "10.0.0.2", n, "")}
	p.path = newPath(n.port, p.r.port)
	n.peer(p.r.node, p.r.endpoint(), "")
	p.e = n.start(t, false).up(t)
	key := publicKey(t, n)
	if remoteFirst {
		if err := p.r.dev.IpcSet(fmt.Sprintf("public_key=%x\nendpoint=%s\n", key[:], n.at)); err != nil {
			t.Fatal(err)
		}
		p.in = startFlow(t, p.r.node, n, interval)
		connect(t, p.in)
	}
	p.out = startFlow(t, n, p.r.node, interval)
	connect(t, p.out)
	if !remoteFirst {
		p.in = startFlow(t, p.r.node, n, interval)
		connect(t, p.in)
	}
	return p
}

// rest sends nothing for so long that wireguard-go may begin another handshake.
func (p *passage) rest() {
	p.out.rests.Store(true)
	p.in.rests.Store(true)
	time.Sleep(device.RekeyTimeout + 100*time.Millisecond)
	p.out.rests.Store(false)
	p.in.rests.Store(false)
}

// keepWaiting gives the node another remote, which has a session, and answers nothing
// until end is called.
func (p *passage) keepWaiting(t *testing.T) (end func()) {
	t.Helper()
	n := p.e.node
	other := newRemote(t, "10.0.0.3", n, "")
	slowly := newPath(n.port, other.port)
	n.peer(other.node, other.endpoint(), "")
	if _, peers, _ := strings.Cut(n.config, "\n"); p.e.Device.IpcSet(peers) != nil {
		t.Fatal("the node doesn't take another peer")
	}
	n.under.made(t, p.e.Device)
	n.out <- packetOf(1, n.addr, other.addr)
	polltest.Until(t, time.Minute, "the other remote has a session", func() bool { return len(other.in) > 0 })
	var over atomic.Bool
	slowly.behave(func(bool, []byte) time.Duration {
		if over.Load() {
			return 0
		}
		return -1
	})
	return func() { over.Store(true) }
}

// nothingIsLost checks it, and that packets still flow.
func (p *passage) nothingIsLost(t *testing.T) {
	t.Helper()
	p.out.flowing(t)
	p.in.flowing(t)
	p.out.end()
	p.in.end()
	if lost := p.out.missing(t); lost > 0 {
		t.Errorf("%d of %d packets out are lost", lost, p.out.sent.Load())
	}
	if lost := p.in.missing(t); lost > 0 {
		t.Errorf("%d of %d packets in are lost", lost, p.in.sent.Load())
	}
	p.r.noNonceTwice(t)
}

// Either side may have begun a handshake when the hand-over begins, since each session
// is followed by another one after 120 s. Its messages are still on their way then.
func TestHandshakesCross(t *testing.T) {
	const way = 60 * time.Millisecond // for each message
	for _, old := range []bool{false, true} {
		for _, before := range []time.Duration{0, way / 2, way, 3 * way / 2, 5 * way / 2} {
			runInBubble(t, fmt.Sprintf("of the old engine %v, %v before", old, before), func(t *testing.T) {
				p := newPassage(t, old)
				begins, with := p.r.dev, p.e.node
				if old {
					begins, with = p.e.Device, p.r.node
				}
				p.behave(func(bool, []byte) time.Duration { return way })
				p.rest()
				if err := begins.LookupPeer(publicKey(t, with)).SendHandshakeInitiation(false); err != nil {
					t.Fatal(err)
				}
				time.Sleep(before) // This is what is tried, and waits for nothing.
				handOver(t, p.e)
				p.nothingIsLost(t)
			})
		}
	}
}

// The response to a handshake of the old engine arrives just before or after the old engine
// stops waiting for it. If it used the new session then, its messages would arrive after the
// new engine's initiation, with which the remote drops that session.
func TestHandshakeIsAnsweredLate(t *testing.T) {
	for _, late := range []time.Duration{-60 * time.Millisecond, -20 * time.Millisecond, 20 * time.Millisecond, 60 * time.Millisecond} {
		runInBubble(t, late.String(), func(t *testing.T) {
			p := newPassage(t, true)
			p.rest()
			var answers atomic.Int64
			p.behave(func(toRemote bool, m []byte) time.Duration {
				switch kind := messageType(m); {
				case toRemote && kind == device.MessageTransportType:
					return 150 * time.Millisecond
				case kind == device.MessageResponseType && answers.Add(1) == 1:
					return handshakeTime + late
				}
				return 0
			})
			if err := p.e.Device.LookupPeer(publicKey(t, p.r.node)).SendHandshakeInitiation(false); err != nil {
				t.Fatal(err)
			}
			handOver(t, p.e)
			p.nothingIsLost(t)
		})
	}
}

// Handshakes are slow, or some of their messages are lost. The others go through.
func TestHandshakesAreSlowOrLost(t *testing.T) {
	type behaviour = func(bool, []byte) time.Duration
	slow := func(by time.Duration) behaviour {
		return func(_ bool, m []byte) time.Duration {
			if messageType(m) != device.MessageTransportType {
				return by
			}
			return 0
		}
	}
	lose := func(kind uint32, first int) behaviour {
		return func(_ bool, m []byte) time.Duration {
			if messageType(m) == kind {
				if first--; first >= 0 {
					return -1
				}
			}
			return 0
		}
	}
	cases := map[string]behaviour{
		"slow":                           slow(200 * time.Millisecond),
		"slower than the second attempt": slow(400 * time.Millisecond),
		"very slow":                      slow(1500 * time.Millisecond),
		"initiations are lost":           lose(device.MessageInitiationType, 3),
		"responses are lost":             lose(device.MessageResponseType, 3),
	}
	for seed := range uint64(3) {
		dice := rand.New(rand.NewPCG(seed, 0))
		cases[fmt.Sprintf("one in three of both is lost, and slow, seed %d", seed)] = func(_ bool, m []byte) time.Duration {
			switch {
			case messageType(m) == device.MessageTransportType:
				return 0
			case dice.IntN(3) == 0:
				return -1
			}
			return 300 * time.Millisecond
		}
	}
	for name, behaves := range cases {
		runInBubble(t, name, func(t *testing.T) {
			p := newPassage(t, false)
			p.behave(behaves)
			began := time.Now()
			handOver(t, p.e)
			t.Logf("the hand-over took %v", time.Since(began))
			p.nothingIsLost(t)
		})
	}
}

// The new engine waits for a remote that sends even if many of its handshakes are lost, but
// not for a remote that no longer sends.
func TestNewEngineWaitsForRemotesThatSend(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		p := newPassage(t, false)
		p.keepWaiting(t)
		lost := 6
		p.behave(func(toRemote bool, m []byte) time.Duration {
			if toRemote && messageType(m) == device.MessageInitiationType {
				if lost--; lost >= 0 {
					return -1
				}
			}
			return 0
		})
		handOver(t, p.e, func(s *Side) { s.Limits.Patience = 2 * time.Second })
		p.nothingIsLost(t)
	})
}

// wireguard-go may retry a handshake after five seconds although it was answered, if the
// response arrived at the time of sending. The remote must not receive the retry while the
// old engine sends.
func TestNewEngineRepeatsAHandshake(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		p := newPassage(t, false)
		goOn := p.keepWaiting(t)
		sides := make(chan Side, 2)
		over := make(chan struct{})
		go func() {
			defer close(over)
			handOver(t, p.e, patiently, func(s *Side) { sides <- *s })
		}()
		<-sides
		fresh := <-sides
		key := publicKey(t, p.r.node)
		polltest.Until(t, time.Minute, "the new engine has a session", func() bool {
			have, err := peersOf(fresh.Device)
			return err == nil && !have[key].handshake.IsZero()
		})
		time.Sleep(device.RekeyTimeout + 100*time.Millisecond) // wireguard-go begins none sooner
		if err := fresh.Device.LookupPeer(key).SendHandshakeInitiation(false); err != nil {
			t.Fatal(err)
		}
		p.out.flowing(t)
		p.in.flowing(t)
		goOn()
		<-over
		p.nothingIsLost(t)
	})
}

// patiently makes the new engine wait for silent remotes during the whole test.
func patiently(s *Side) { s.Limits.Silent, s.Limits.Sessions = time.Hour, time.Hour }

// The messages that confirm a new session are lost: the remote sends in the previous session
// until one arrives.
func TestConfirmationsAreLost(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		p := newPassage(t, false)
		fresh := make(map[uint32]int)
		began := false
		p.behave(func(toRemote bool, m []byte) time.Duration {
			began = began || messageType(m) == device.MessageResponseType
			if began && toRemote && messageType(m) == device.MessageTransportType && len(m) == device.MessageKeepaliveSize {
				receiver, _ := index(m)
				if fresh[receiver]++; fresh[receiver] <= 20 {
					return -1
				}
			}
			return 0
		})
		handOver(t, p.e)
		p.nothingIsLost(t)
	})
}

// Only the remote sends, and for some seconds after its response it receives nothing. It
// doesn't use the new session until it has received a message in it.
func TestPathToTheRemoteIsInterrupted(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		p := newPassage(t, true)
		p.out.end()
		var over time.Time
		p.behave(func(toRemote bool, m []byte) time.Duration {
			switch messageType(m) {
			case device.MessageResponseType:
				over = time.Now().Add(3 * time.Second)
			case device.MessageTransportType:
				if toRemote && time.Now().Before(over) {
					return -1
				}
			}
			return 0
		})
		handOver(t, p.e, func(s *Side) { s.Limits.Drain = 2 * time.Second })
		p.in.flowing(t)
		if lost := p.in.missing(t); lost > 0 {
			t.Errorf("%d of %d packets in are lost", lost, p.in.sent.Load())
		}
	})
}

// A remote under load answers with cookies, which cost another attempt.
func TestRemoteUnderLoad(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		p := newPassage(t, false)
		var cookies atomic.Int32
		p.behave(func(_ bool, m []byte) time.Duration {
			if messageType(m) == device.MessageCookieReplyType {
				cookies.Add(1)
			}
			return 0
		})
		done, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			flood(t, p.r, done)
		}()
		end := sync.OnceFunc(func() { close(done); <-stopped })
		defer end()
		handOver(t, p.e)
		if cookies.Load() == 0 {
			t.Error("the remote has answered with no cookie")
		}
		end()
		p.nothingIsLost(t)
	})
}

// flood sends initiations that are found to be forged only when they are decrypted.
func flood(t *testing.T, r *remote, done <-chan struct{}) {
	from := r.port.lan.listen()
	public := r.key.PublicKey()
	secret := blake2s.Sum256(append([]byte(device.WGLabelMAC1), public[:]...))
	m := wireMessage(device.MessageInitiationType, device.MessageInitiationSize)
	const macs = device.MessageInitiationSize - 2*blake2s.Size128
	mac, err := blake2s.New128(secret[:])
	if err != nil {
		t.Error(err)
		return
	}
	tick := time.NewTicker(200 * time.Millisecond) // A device is under load for a second after a burst.
	defer tick.Stop()
	for {
		for range 400 {
			m[20]++
			mac.Reset()
			mac.Write(m[:macs])
			mac.Sum(m[:macs])
			from.send(m, r.at)
		}
		select {
		case <-tick.C:
		case <-done:
			return
		}
	}
}

// The remote's address changes during the hand-over, while the new engine waits for another
// peer: before the session of the remote with the new engine, before the new engine has
// received a message in it, and later.
func TestRemoteRoams(t *testing.T) {
	const (
		unanswered = iota
		unconfirmed
		established
	)
	for name, when := range map[string]int{"before it answers": unanswered, "before it uses its new session": unconfirmed, "when it has one": established} {
		runInBubble(t, name, func(t *testing.T) {
			p := newPassage(t, false)
			slowly := p.keepWaiting(t)
			old := make(map[uint32]bool)
			for _, m := range p.of(device.MessageTransportType) {
				receiver, _ := index(m)
				old[receiver] = true
			}
			var answered, roamed, over atomic.Bool
			p.behave(func(toRemote bool, m []byte) time.Duration {
				receiver, _ := index(m)
				switch kind := messageType(m); {
				case kind == device.MessageInitiationType && !toRemote:
					t.Error("nothing arrives at the remote for 15 s")
				case kind == device.MessageResponseType && when == unanswered && !roamed.Load():
					return -1
				case kind == device.MessageResponseType:
					answered.Store(true)
				case kind == device.MessageTransportType && when == unconfirmed && toRemote && !old[receiver] && !over.Load():
					return -1
				}
				return 0
			})
			began := len(p.of(device.MessageInitiationType))
			ended := make(chan struct{})
			go func() { defer close(ended); handOver(t, p.e, patiently) }()
			polltest.Until(t, time.Minute, "the new engine begins", func() bool {
				return len(p.of(device.MessageInitiationType)) > began && (when == unanswered || answered.Load())
			})
			p.roam()
			roamed.Store(true)
			p.out.flowing(t)
			p.in.flowing(t)
			select {
			case <-ended:
				t.Error("the hand-over hasn't waited for the other remote")
			default:
			}
			slowly()
			<-ended
			over.Store(true)
			p.out.flowing(t)
			p.in.flowing(t)
			p.r.noNonceTwice(t)
		})
	}
}
