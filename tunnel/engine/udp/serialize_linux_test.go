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

// handshakeMessage returns a message of a kind and, if that has one, of a session.
func handshakeMessage(kind byte, session uint32) []byte {
	size := map[byte]int{kindInitiation: initiationSize, kindResponse: responseSize, kindTransport: 32}[kind]
	packet := make([]byte, size)
	packet[0] = kind
	packet[senderOffset] = byte(session) // that of the receiver in a transport message
	return packet
}

// serializerTest is a serializer with a manual clock.
type serializerTest struct {
	*serializer
	now   time.Time
	alarm time.Time
}

func newSerializerTest() *serializerTest {
	t := &serializerTest{now: time.Unix(1_800_000_000, 0)}
	t.serializer = newSerializer(func() time.Time { return t.now }, func(at time.Time) { t.alarm = at })
	return t
}

func (t *serializerTest) released() (packets [][]byte) {
	t.ready(func(_ *endpoint, packet []byte) bool {
		packets = append(packets, packet)
		return true
	})
	return packets
}

func endpointOf(text string) *endpoint {
	return newEndpoint(netip.MustParseAddrPort(text), source{})
}

func TestHandshakeMessagesAreSerialized(t *testing.T) {
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
		"an answer to another address":            {initiation, response, other, answer, false},
		"data of another session":                 {response, initiation, from, handshakeMessage(kindTransport, 8), false},
		"data doesn't answer an initiation":       {initiation, response, from, data, false},
		"a response doesn't answer another":       {response, initiation, from, answer, false},
		"an initiation doesn't answer a response": {response, initiation, from, initiation, false},
	} {
		t.Run(name, func(t *testing.T) {
			serializer := newSerializerTest()
			if !serializer.arrived(from, c.first) || serializer.arrived(from, c.second) {
				t.Fatal("want the first delivered, and the second delayed")
			}
			if !serializer.arrived(other, c.second) || !serializer.arrived(from, data) {
				t.Error("a message of another address, or data, is delayed")
			}
			if got := serializer.released(); len(got) > 0 || !serializer.alarm.Equal(serializer.now.Add(handlingTime)) {
				t.Errorf("%d delivered at once, the alarm is at %v", len(got), serializer.alarm)
			}
			serializer.sent(c.to.addr, [][]byte{c.sent})
			if woken := serializer.alarm.Before(serializer.now); woken != c.goesOn {
				t.Errorf("receiver woken: %v, want %v", woken, c.goesOn)
			}
			if !c.goesOn {
				serializer.now = serializer.now.Add(handlingTime)
			}
			if got := serializer.released(); len(got) != 1 || !bytes.Equal(got[0], c.second) {
				t.Errorf("%d delivered then, want the second", len(got))
			}
			serializer.now = serializer.now.Add(handlingTime)
			if serializer.released(); !serializer.idle.Load() || !serializer.alarm.IsZero() {
				t.Errorf("%d addresses are stored, the alarm is at %v", len(serializer.of), serializer.alarm)
			}
		})
	}
}

// The source address of messages may be forged: they aren't dropped, the number of stored
// ones is bounded, and none delays another for longer than handlingTime.
func TestForgedHandshakeMessages(t *testing.T) {
	serializer := newSerializerTest()
	from := endpointOf("192.0.2.1:51820")
	handed := 0
	for range 100 {
		if serializer.arrived(from, handshakeMessage(kindInitiation, 1)) {
			handed++
		}
	}
	for range maxWaiting {
		serializer.now = serializer.now.Add(handlingTime)
		handed += len(serializer.released())
	}
	if handed != 100 {
		t.Errorf("%d of 100 were delivered", handed)
	}
	for n := range 2 * maxHandling {
		if !serializer.arrived(endpointOf(fmt.Sprintf("192.0.2.2:%d", n+1)), handshakeMessage(kindInitiation, 1)) {
			t.Fatal("the first message of an address is delayed")
		}
	}
	if len(serializer.of) > maxHandling {
		t.Errorf("%d addresses are stored, want at most %d", len(serializer.of), maxHandling)
	}
	serializer.now = serializer.now.Add(handlingTime)
	serializer.arrived(endpointOf("192.0.2.3:1"), handshakeMessage(kindInitiation, 1))
	if len(serializer.of) != 1 {
		t.Errorf("%d addresses are stored after handlingTime, want 1", len(serializer.of))
	}
	for _, packet := range [][]byte{nil, {kindInitiation}, make([]byte, initiationSize), handshakeMessage(kindTransport, 1)} {
		if !serializer.arrived(from, packet) {
			t.Errorf("%d bytes of kind %v are delayed", len(packet), packet[:min(1, len(packet))])
		}
	}
}

// party is one of two wireguard-go devices on this host, with a relay of the test between
// them.
type party struct {
	dev   *device.Device
	bind  *Bind
	tun   *tuntest.ChannelTUN
	key   wgtypes.Key
	port  int
	relay *net.UDPConn // its peer's endpoint
	addr  netip.Addr   // in the tunnel
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

// meet adds the other one as a new peer, to which the device sends an initiation.
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

// nextOf returns the next message of a kind, and drops others.
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

// A response and an initiation of the other side arrive together. Without the serializer,
// two workers of wireguard-go handle them: either the initiation overtakes the response, and
// both sides have sessions that the other one doesn't know, or they become one session with
// a receiver index that the other side doesn't know. Either lasts until the next handshake,
// after 5 s or 15 s.
func TestHandshakesThatArriveTogether(t *testing.T) {
	a, b := newParty(t, "10.1.0.1"), newParty(t, "10.2.0.1")
	// No delay of a's ends early, however slow the host is.
	serializer := a.bind.four.Load().serializer
	serializer.mu.Lock()
	serializer.limit = time.Minute
	serializer.mu.Unlock()
	for round := range 100 {
		b.meet(t, a)
		initiation := b.nextOf(t, kindInitiation)
		a.meet(t, b)
		b.deliver(t, a.nextOf(t, kindInitiation))
		a.deliver(t, b.nextOf(t, kindResponse), initiation)

		b.tun.Outbound <- tuntest.Ping(a.addr, b.addr)
		arrived := make(chan []byte, 1)
		for connected, answered := false, false; !connected || !answered; {
			// Relay all messages until the ping and the answer to b's initiation, which
			// must not arrive in the next round, or until the initiation with which the
			// other side recovers.
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
