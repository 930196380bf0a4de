package handover

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/blake2s"
	"golang.zx2c4.com/wireguard/device"

	"github.com/kube-semaphore/kube-semaphore/internal/polltest"
)

// passage is a tunnel of a node with a remote behind a network.
type passage struct {
	*network
	e       *engine
	r       *remote
	out, in *flow
}

// newPassage has the tunnel's packets flow, after the remote's first handshake or the
// node's.
func newPassage(t *testing.T, remoteFirst bool) *passage {
	t.Helper()
	n := newNode(t, "10.0.0.1")
	p := &passage{r: newRemote(t, "10.0.0.2", n, "")}
	p.network = newNetwork(t, n, p.r, "")
	p.e = n.start(t, nil, false).up(t)
	t.Cleanup(n.closeSockets)
	key := publicKey(t, n)
	if remoteFirst {
		p.found(n.port)
		if err := p.r.dev.IpcSet(fmt.Sprintf("public_key=%x\nendpoint=%s\n", key[:], p.far.LocalAddr())); err != nil {
			t.Fatal(err)
		}
		p.in = startFlow(t, p.r.node, n, 2*time.Millisecond)
		connect(t, p.in)
	}
	p.out = startFlow(t, n, p.r.node, 2*time.Millisecond)
	connect(t, p.out)
	if !remoteFirst {
		p.in = startFlow(t, p.r.node, n, 2*time.Millisecond)
		connect(t, p.in)
	}
	return p
}

// keepWaiting gives the node another remote, which has a session, and has it say nothing
// until end is called.
func (p *passage) keepWaiting(t *testing.T) (end func()) {
	t.Helper()
	n := p.e.node
	other := newRemote(t, "10.0.0.3", n, "")
	slowly := newNetwork(t, n, other, "")
	if _, peers, _ := strings.Cut(n.config, "\n"); p.e.Device.IpcSet(peers) != nil {
		t.Fatal("the node doesn't take another peer")
	}
	n.out <- packetOf(1, n.addr, other.addr)
	polltest.Until(t, time.Minute, "the other one has a session", func() bool { return len(other.in) > 0 })
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
	for _, giver := range []bool{false, true} {
		for _, before := range []time.Duration{0, way / 2, way, 3 * way / 2, 5 * way / 2} {
			t.Run(fmt.Sprintf("of the giver %v, %v before", giver, before), func(t *testing.T) {
				t.Parallel()
				p := newPassage(t, giver)
				begins, with := p.r.dev, p.e.node
				if giver {
					begins, with = p.e.Device, p.r.node
				}
				p.behave(func(bool, []byte) time.Duration { return way })
				time.Sleep(device.RekeyTimeout + 100*time.Millisecond) // wireguard-go begins none sooner
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

// A handshake that the giver has begun is answered at the end of the time that it has, and
// what the giver sends in its session comes later than the next engine's initiation: the
// remote would forget the session.
func TestAHandshakeIsAnsweredLate(t *testing.T) {
	for _, late := range []time.Duration{-60 * time.Millisecond, -20 * time.Millisecond, 20 * time.Millisecond, 60 * time.Millisecond} {
		t.Run(late.String(), func(t *testing.T) {
			t.Parallel()
			p := newPassage(t, true)
			time.Sleep(device.RekeyTimeout + 100*time.Millisecond)
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
	slow := func(by time.Duration) func(bool, []byte) time.Duration {
		return func(_ bool, m []byte) time.Duration {
			if messageType(m) != device.MessageTransportType {
				return by
			}
			return 0
		}
	}
	lose := func(kind uint32, first int) func(bool, []byte) time.Duration {
		return func(_ bool, m []byte) time.Duration {
			if messageType(m) == kind {
				if first--; first >= 0 {
					return -1
				}
			}
			return 0
		}
	}
	for name, behaves := range map[string]func(bool, []byte) time.Duration{
		"slow":                           slow(200 * time.Millisecond),
		"slower than the second attempt": slow(400 * time.Millisecond),
		"very slow":                      slow(1500 * time.Millisecond),
		"initiations are lost":           lose(device.MessageInitiationType, 3),
		"responses are lost":             lose(device.MessageResponseType, 3),
		"one in three of both is lost, and slow": func(_ bool, m []byte) time.Duration {
			switch {
			case messageType(m) == device.MessageTransportType:
				return 0
			case rand.N(3) == 0:
				return -1
			}
			return 300 * time.Millisecond
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPassage(t, false)
			p.behave(behaves)
			began := time.Now()
			handOver(t, p.e)
			t.Logf("the hand-over took %v", time.Since(began))
			p.nothingIsLost(t)
		})
	}
}

// For a remote that sends the new engine waits, however unlucky its handshakes are, and
// not for one that is gone.
func TestTheNewEngineWaitsForWhoSends(t *testing.T) {
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
	handOver(t, p.e, func(s *Side) {
		s.Limits = DefaultLimits
		s.Limits.Answer, s.Limits.Patience = time.Minute, 2*time.Second
	})
	p.nothingIsLost(t)
}

// wireguard-go now and then begins another handshake five seconds after one that was
// answered in the moment in which it was sent. The remote must not see it as long as the
// old engine sends.
func TestTheNewEngineBeginsAnother(t *testing.T) {
	p := newPassage(t, false)
	goOn := p.keepWaiting(t)
	sides := make(chan Side, 2)
	over := make(chan struct{})
	go func() {
		defer close(over)
		handOver(t, p.e, func(s *Side) { sides <- *s })
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
}

// What confirms a session is lost: the remote sends in the one before until it comes.
func TestConfirmationsAreLost(t *testing.T) {
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
}

// Only the remote sends, and for some seconds nothing gets through to it, when it has
// answered: it doesn't use a session until something has come in it.
func TestTheWayToTheRemoteIsInterrupted(t *testing.T) {
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
	handOver(t, p.e, func(s *Side) { s.Limits.Linger = 2 * time.Second })
	p.in.flowing(t)
	if lost := p.in.missing(t); lost > 0 {
		t.Errorf("%d of %d packets in are lost", lost, p.in.sent.Load())
	}
}

// A remote under load answers with cookies, which cost another attempt.
func TestTheRemoteIsUnderLoad(t *testing.T) {
	p := newPassage(t, false)
	var cookies atomic.Int32
	p.behave(func(_ bool, m []byte) time.Duration {
		if messageType(m) == device.MessageCookieReplyType {
			cookies.Add(1)
		}
		return 0
	})
	done := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		flood(t, p.r, done)
	}()
	end := sync.OnceFunc(func() { close(done); <-stopped })
	defer end()
	// A slow machine is under load for as long as that lasts: one cookie is enough.
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for cookies.Load() == 0 {
			p.e = handOver(t, p.e)
		}
	}()
	polltest.Until(t, 5*time.Minute, "a cookie", func() bool { return cookies.Load() > 0 })
	end()
	<-ended
	p.out.flowing(t)
	p.in.flowing(t)
}

// flood sends initiations that only who tries to decrypt them finds to be forged.
func flood(t *testing.T, r *remote, done <-chan struct{}) {
	c, err := net.Dial("udp4", r.endpoint())
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = c.Close() }()
	public := r.key.PublicKey()
	secret := blake2s.Sum256(append([]byte(device.WGLabelMAC1), public[:]...))
	m := wireMessage(device.MessageInitiationType, device.MessageInitiationSize)
	const macs = device.MessageInitiationSize - 2*blake2s.Size128
	mac, err := blake2s.New128(secret[:])
	if err != nil {
		t.Error(err)
		return
	}
	tick := time.NewTicker(200 * time.Millisecond) // An engine is under load for a second after a burst.
	defer tick.Stop()
	for i := 0; ; i++ {
		for range 400 {
			m[20]++
			mac.Reset()
			mac.Write(m[:macs])
			mac.Sum(m[:macs])
			_, _ = c.Write(m)
		}
		select {
		case <-tick.C:
		case <-done:
			return
		}
	}
}

// The remote gets another address during the hand-over, while the new engine waits for
// another peer: before it has a session with that, before it knows that it has, and later.
func TestTheRemoteRoams(t *testing.T) {
	const (
		unanswered = iota
		unconfirmed
		established
	)
	for name, when := range map[string]int{"before it answers": unanswered, "before it uses its new session": unconfirmed, "when it has one": established} {
		t.Run(name, func(t *testing.T) {
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
					t.Error("the remote hears nothing for 15 s")
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
			go func() { defer close(ended); handOver(t, p.e) }()
			polltest.Until(t, time.Minute, "the new engine begins", func() bool {
				return len(p.of(device.MessageInitiationType)) > began && (when == unanswered || answered.Load())
			})
			p.roam(t)
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
