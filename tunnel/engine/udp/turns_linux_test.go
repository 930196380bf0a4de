package udp

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun/tuntest"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// handshakeMessage returns a message of a kind and, as far as that has one, of a session.
func handshakeMessage(kind byte, session uint32) []byte {
	size := map[byte]int{kindInitiation: initiationSize, kindResponse: responseSize, kindTransport: 32}[kind]
	packet := make([]byte, size)
	packet[0] = kind
	packet[senderOffset] = byte(session) // that of the receiver in a transport message
	return packet
}

// turnTest has turns with a clock that stands still.
type turnTest struct {
	*turns
	now   time.Time
	alarm time.Time
}

func newTurnTest() *turnTest {
	t := &turnTest{now: time.Unix(1_800_000_000, 0)}
	t.turns = newTurns(func() time.Time { return t.now }, func(at time.Time) { t.alarm = at })
	return t
}

func (t *turnTest) released() (packets [][]byte) {
	t.ready(func(_ *endpoint, packet []byte) bool {
		packets = append(packets, packet)
		return true
	})
	return packets
}

func endpointOf(text string) *endpoint {
	return newEndpoint(netip.MustParseAddrPort(text), source{})
}

func TestHandshakeMessagesTakeTurns(t *testing.T) {
	from, other := endpointOf("192.0.2.1:51820"), endpointOf("192.0.2.2:51820")
	initiation, response := handshakeMessage(kindInitiation, 1), handshakeMessage(kindResponse, 7)
	answer, data := handshakeMessage(kindResponse, 9), handshakeMessage(kindTransport, 7)
	for name, c := range map[string]struct {
		first, second []byte
		to            *endpoint
		sent          []byte
		goesOn        bool
	}{
		"an initiation is answered":               {initiation, response, from, answer, true},
		"a response is answered":                  {response, initiation, from, data, true},
		"two of one kind":                         {initiation, initiation, from, answer, true},
		"an answer to somebody else":              {initiation, response, other, answer, false},
		"data of another session":                 {response, initiation, from, handshakeMessage(kindTransport, 8), false},
		"data doesn't answer an initiation":       {initiation, response, from, data, false},
		"a response doesn't answer another":       {response, initiation, from, answer, false},
		"an initiation doesn't answer a response": {response, initiation, from, initiation, false},
	} {
		t.Run(name, func(t *testing.T) {
			turns := newTurnTest()
			if !turns.arrived(from, c.first) || turns.arrived(from, c.second) {
				t.Fatal("want the first handed on, and the second not")
			}
			if !turns.arrived(other, c.second) || !turns.arrived(from, data) {
				t.Error("one of another address, or data, has to wait")
			}
			if got := turns.released(); len(got) > 0 || !turns.alarm.Equal(turns.now.Add(handlingTime)) {
				t.Errorf("%d go on at once, the alarm is at %v", len(got), turns.alarm)
			}
			turns.sent(c.to.addr, [][]byte{c.sent})
			if woken := turns.alarm.Before(turns.now); woken != c.goesOn {
				t.Errorf("receiver woken: %v, want %v", woken, c.goesOn)
			}
			if !c.goesOn {
				turns.now = turns.now.Add(handlingTime)
			}
			if got := turns.released(); len(got) != 1 || !bytes.Equal(got[0], c.second) {
				t.Errorf("%d go on then, want the second", len(got))
			}
			turns.now = turns.now.Add(handlingTime)
			if turns.released(); !turns.idle.Load() || !turns.alarm.IsZero() {
				t.Errorf("%d are remembered, the alarm is at %v", len(turns.of), turns.alarm)
			}
		})
	}
}

// Anybody can send messages in another's name: they are neither dropped nor kept in
// any number, nor do they hold up one for longer than handlingTime.
func TestForgedHandshakeMessages(t *testing.T) {
	turns := newTurnTest()
	from := endpointOf("192.0.2.1:51820")
	handed := 0
	for range 100 {
		if turns.arrived(from, handshakeMessage(kindInitiation, 1)) {
			handed++
		}
	}
	for range maxWaiting {
		turns.now = turns.now.Add(handlingTime)
		handed += len(turns.released())
	}
	if handed != 100 {
		t.Errorf("%d of 100 were handed on", handed)
	}
	for n := range 2 * maxTurns {
		if !turns.arrived(endpointOf(fmt.Sprintf("192.0.2.2:%d", n+1)), handshakeMessage(kindInitiation, 1)) {
			t.Fatal("the first of an address has to wait")
		}
	}
	if len(turns.of) > maxTurns {
		t.Errorf("%d addresses are remembered, want %d at most", len(turns.of), maxTurns)
	}
	for _, packet := range [][]byte{nil, {kindInitiation}, make([]byte, initiationSize), handshakeMessage(kindTransport, 1)} {
		if !turns.arrived(from, packet) {
			t.Errorf("%d bytes of kind %v have to wait", len(packet), packet[:min(1, len(packet))])
		}
	}
}

// party is one of two wireguard-go devices on this machine, with a relay between
// them that belongs to the test.
type party struct {
	dev   *device.Device
	bind  *Bind
	tun   *tuntest.ChannelTUN
	key   wgtypes.Key
	port  int
	relay *net.UDPConn // where it sends to
	addr  netip.Addr   // inside
}

func newParty(t *testing.T, addr string) *party {
	t.Helper()
	p := &party{bind: New(Config{}), tun: tuntest.NewChannelTUN(), addr: netip.MustParseAddr(addr)}
	p.dev = device.NewDevice(p.tun.TUN(), p.bind, &device.Logger{Verbosef: device.DiscardLogf, Errorf: device.DiscardLogf})
	t.Cleanup(p.dev.Close)
	var err error
	if p.key, err = wgtypes.GeneratePrivateKey(); err != nil {
		t.Fatal(err)
	}
	if p.relay, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.relay.Close() })
	if err := p.dev.IpcSet(fmt.Sprintf("private_key=%s\nlisten_port=0\n", hex.EncodeToString(p.key[:]))); err != nil {
		t.Fatal(err)
	}
	if err := p.dev.Up(); err != nil {
		t.Fatal(err)
	}
	text, err := p.dev.IpcGet()
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines([]byte(text)) {
		_, _ = fmt.Sscanf(string(line), "listen_port=%d", &p.port)
	}
	return p
}

// meet makes the other one a new peer, which has an initiation sent to it.
func (p *party) meet(t *testing.T, other *party) {
	t.Helper()
	public := other.key.PublicKey()
	err := p.dev.IpcSet(fmt.Sprintf("public_key=%x\nremove=true\npublic_key=%x\nendpoint=%s\nallowed_ip=%s/32\npersistent_keepalive_interval=25\n",
		public[:], public[:], p.relay.LocalAddr(), other.addr))
	if err != nil {
		t.Fatal(err)
	}
}

// next returns the next message that it sends.
func (p *party) next(t *testing.T) []byte {
	t.Helper()
	buf := make([]byte, 2048)
	if err := p.relay.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	n, err := p.relay.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	return buf[:n]
}

// nextOf returns the next of a kind; others are lost.
func (p *party) nextOf(t *testing.T, kind byte) []byte {
	t.Helper()
	for {
		if packet := p.next(t); packet[0] == kind {
			return packet
		}
	}
}

func (p *party) deliver(t *testing.T, packets ...[]byte) {
	t.Helper()
	for _, packet := range packets {
		if _, err := p.relay.WriteToUDPAddrPort(packet, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(p.port))); err != nil {
			t.Fatal(err)
		}
	}
}

// The answer to one's initiation, and an initiation of the other side, come at the
// same moment. Two workers of wireguard-go took one each: either the initiation
// overtook the answer, and both sides had sessions that the other one didn't know,
// or they became one session that is received under an index that nobody knows.
// Both ended with a new handshake only, after 5 s or 15 s.
func TestHandshakesThatArriveTogether(t *testing.T) {
	a, b := newParty(t, "10.1.0.1"), newParty(t, "10.2.0.1")
	// This machine may be slow, and none of a's is refused.
	turns := a.bind.four.Load().turns
	turns.mu.Lock()
	turns.limit = time.Minute
	turns.mu.Unlock()
	for round := range 100 {
		b.meet(t, a)
		initiation := b.nextOf(t, kindInitiation)
		a.meet(t, b)
		b.deliver(t, a.nextOf(t, kindInitiation))
		a.deliver(t, b.nextOf(t, kindResponse), initiation)

		b.tun.Outbound <- tuntest.Ping(a.addr, b.addr)
		arrived := make(chan []byte, 1)
		for connected, answered := false, false; !connected || !answered; {
			// What either sends passes. It ends with the ping and the answer to b's
			// initiation, which must not come up in the next round, or with the
			// initiation with which the other side helps itself.
			for _, from := range []*party{a, b} {
				to := map[*party]*party{a: b, b: a}[from]
				if err := from.relay.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
					t.Fatal(err)
				}
				buf := make([]byte, 2048)
				n, err := from.relay.Read(buf)
				if err != nil {
					continue
				}
				if buf[0] == kindInitiation {
					t.Fatalf("round %d: a new handshake was necessary", round)
				}
				answered = answered || from == a && buf[0] == kindResponse
				to.deliver(t, slices.Clone(buf[:n]))
			}
			select {
			case packet := <-a.tun.Inbound:
				arrived <- packet
				connected = true
			default:
			}
		}
		if packet := <-arrived; !bytes.Equal(packet, tuntest.Ping(a.addr, b.addr)) {
			t.Fatalf("round %d: another packet arrived", round)
		}
	}
}
