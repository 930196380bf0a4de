package handover

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/udp"
)

// cable is a TUN link in memory. Several devices may serve it, as several processes
// can one of the kernel's.
type cable struct {
	out chan []byte // from the host into the tunnel
	in  chan []byte // from the tunnel to the host
}

func newCable(room int) *cable {
	return &cable{out: make(chan []byte, room), in: make(chan []byte, room)}
}

// plug is one descriptor of it.
type plug struct {
	*cable
	events chan tun.Event
	closed chan struct{}
	once   sync.Once

	mu   sync.Mutex
	past chan struct{} // closed when the deadline has passed
}

func (c *cable) plug() *plug {
	return &plug{cable: c, events: make(chan tun.Event, 1), closed: make(chan struct{}), past: make(chan struct{})}
}

func (p *plug) SetReadDeadline(at time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.past:
		if at.IsZero() {
			p.past = make(chan struct{})
		}
	default:
		if !at.IsZero() {
			close(p.past)
		}
	}
	return nil
}

func (p *plug) Read(bufs [][]byte, sizes []int, offset int) (int, error) {
	p.mu.Lock()
	past := p.past
	p.mu.Unlock()
	select {
	case <-past:
		return 0, fmt.Errorf("read: %w", os.ErrDeadlineExceeded)
	default:
	}
	select {
	case <-p.closed:
		return 0, os.ErrClosed
	case <-past:
		return 0, fmt.Errorf("read: %w", os.ErrDeadlineExceeded)
	case packet := <-p.out:
		sizes[0] = copy(bufs[0][offset:], packet)
		return 1, nil
	}
}

func (p *plug) Write(bufs [][]byte, offset int) (int, error) {
	for _, b := range bufs {
		select {
		case p.in <- append([]byte(nil), b[offset:]...):
		case <-p.closed:
			return 0, os.ErrClosed
		}
	}
	return len(bufs), nil
}

func (*plug) File() *os.File             { return nil }
func (*plug) MTU() (int, error)          { return 1420, nil }
func (*plug) Name() (string, error)      { return "memory", nil }
func (p *plug) Events() <-chan tun.Event { return p.events }
func (*plug) BatchSize() int             { return 1 }
func (p *plug) Close() error {
	p.once.Do(func() { close(p.closed); close(p.events) })
	return nil
}

// underlay is where nodes and remotes have their sockets.
type underlay interface {
	// room is the number of packets that a node's link can queue.
	room() int
	// add adds a node.
	add(n *node)
	// sockets returns the sockets of a node's next engine.
	sockets(n *node) Sockets
	// bind returns the bind of a remote.
	bind(n *node) conn.Bind
	// pair returns the ends for two engines.
	pair(t *testing.T) (oldEnd, newEnd End)
	// made is called with each device that has its peers.
	made(t *testing.T, d *device.Device)
	// limits returns those of engines.
	limits() Limits
}

// node is one end of a tunnel: what outlives its engines.
type node struct {
	*cable
	under  underlay
	key    wgtypes.Key
	addr   netip.Addr     // inside
	at     netip.AddrPort // in the underlay; invalid: not known yet
	port   *port          // in a lan
	config string
	files  []*os.File // sockets of its engine, of the kernel's
}

func newNode(t *testing.T, under underlay, addr string) *node {
	t.Helper()
	key, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	n := &node{cable: newCable(under.room()), under: under, key: key, addr: netip.MustParseAddr(addr)}
	n.config = fmt.Sprintf("private_key=%x\n", key[:])
	under.add(n)
	return n
}

// A lan is an underlay in a bubble.
func (l *lan) room() int { return 256 }

func (l *lan) add(n *node) {
	n.port = l.listen()
	n.at = n.port.addrPort()
}

func (l *lan) sockets(n *node) Sockets { return newPortBind(n.port) }

func (l *lan) bind(n *node) conn.Bind { return newPortBind(n.port) }

func (l *lan) pair(*testing.T) (oldEnd, newEnd End) { return newMemoryPair() }

func (l *lan) made(t *testing.T, d *device.Device) { keepReachable(t, d) }

func (*lan) limits() Limits { return DefaultLimits }

// loopback is the kernel's underlay.
type loopback struct{}

func (loopback) room() int { return 1 << 16 }

func (loopback) add(*node) {}

func (loopback) sockets(n *node) Sockets {
	inherited := n.files
	n.files = nil // The new engine's bind gives others back.
	return udp.New(udp.Config{Inherited: inherited, Opened: func(port uint16, files []*os.File) {
		n.closeFiles()
		n.at, n.files = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port), files
	}})
}

func (loopback) bind(*node) conn.Bind { return conn.NewStdNetBind() }

func (loopback) pair(t *testing.T) (oldEnd, newEnd End) { return socketPair(t) }

func (loopback) made(*testing.T, *device.Device) {}

// limits returns limits that don't expire on a busy machine.
func (loopback) limits() Limits {
	limits := DefaultLimits
	limits.Answer, limits.Silent, limits.Sessions, limits.Patience = time.Minute, time.Minute, time.Minute, time.Minute
	return limits
}

// peer adds a peer to its configuration; its engines get it when they start.
func (n *node) peer(other *node, endpoint, more string) {
	public := other.key.PublicKey()
	n.config += fmt.Sprintf("public_key=%x\nallowed_ip=%s/32\n%s", public[:], other.addr, more)
	if endpoint != "" {
		n.config += "endpoint=" + endpoint + "\n"
	}
}

// engine serves a node.
type engine struct {
	Side
	node *node
}

// start starts an engine, whose device is down.
func (n *node) start(t *testing.T, shut bool) *engine {
	t.Helper()
	var logger device.Logger
	logger.Verbosef, logger.Errorf = device.DiscardLogf, device.DiscardLogf
	if os.Getenv("HANDOVER_TEST_LOG") != "" {
		logger.Verbosef = func(format string, args ...any) {
			fmt.Printf(time.Now().Format("05.000000 ")+n.addr.String()+" "+format+"\n", args...)
		}
	}
	sockets := n.under.sockets(n)
	e := &engine{node: n, Side: Side{Bind: NewBind(sockets), Tun: NewTun(n.plug(), shut), Limits: n.under.limits(), Log: discardLog}}
	e.Device = device.NewDevice(e.Tun, e.Bind, &logger)
	t.Cleanup(e.Device.Close)
	config := n.config
	if n.at.IsValid() {
		config = strings.Replace(config, "\n", fmt.Sprintf("\nlisten_port=%d\n", n.at.Port()), 1)
	}
	if err := e.Device.IpcSet(config); err != nil {
		t.Fatal(err)
	}
	n.under.made(t, e.Device)
	return e
}

// closeFiles closes the node's own descriptors.
func (n *node) closeFiles() {
	for _, file := range n.files {
		_ = file.Close()
	}
	n.files = nil
}

func (e *engine) up(t *testing.T) *engine {
	t.Helper()
	if err := e.Device.Up(); err != nil {
		t.Fatal(err)
	}
	return e
}

// remote is a plain wireguard-go on its own sockets, and notes what it sends and gets.
type remote struct {
	*node
	dev *device.Device
	*spy
}

// spy is a bind that notes the transport messages that arrive, and may lose messages.
type spy struct {
	conn.Bind
	mu   sync.Mutex
	seen map[sealed]int               // transport messages that arrived, by nonce
	lose func(in bool, m []byte) bool // nil: none
}

// sealed is the key, by its receiver's index, and the nonce that a message was sealed with.
type sealed struct {
	receiver uint32
	counter  uint64
}

func (s *spy) lost(in bool, m []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if in && messageType(m) == device.MessageTransportType {
		s.seen[sealed{binary.LittleEndian.Uint32(m[4:]), binary.LittleEndian.Uint64(m[8:])}]++
	}
	return s.lose != nil && s.lose(in, m)
}

// losing makes the network lose messages.
func (s *spy) losing(lose func(in bool, m []byte) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lose = lose
}

func (s *spy) Open(port uint16) ([]conn.ReceiveFunc, uint16, error) {
	functions, port, err := s.Bind.Open(port)
	for i, receive := range functions {
		functions[i] = func(packets [][]byte, sizes []int, from []conn.Endpoint) (int, error) {
			n, err := receive(packets, sizes, from)
			for k := range n {
				if s.lost(true, packets[k][:sizes[k]]) {
					sizes[k] = 0
				}
			}
			return n, err
		}
	}
	return functions, port, err
}

func (s *spy) Send(packets [][]byte, to conn.Endpoint) error {
	var kept [][]byte
	for _, p := range packets {
		if !s.lost(false, p) {
			kept = append(kept, p)
		}
	}
	if len(kept) == 0 {
		return nil
	}
	return s.Bind.Send(kept, to)
}

// newRemote starts a remote whose only peer is a node, without its endpoint.
func newRemote(t *testing.T, addr string, of *node, more string) *remote {
	t.Helper()
	r := &remote{node: newNode(t, of.under, addr)}
	r.spy = &spy{Bind: of.under.bind(r.node), seen: make(map[sealed]int)}
	r.peer(of, "", more)
	r.dev = device.NewDevice(r.plug(), r.spy, device.NewLogger(device.LogLevelSilent, ""))
	t.Cleanup(r.dev.Close)
	if err := r.dev.IpcSet(r.config); err != nil {
		t.Fatal(err)
	}
	of.under.made(t, r.dev)
	if err := r.dev.Up(); err != nil {
		t.Fatal(err)
	}
	if r.at.IsValid() {
		return r
	}
	text, err := r.dev.IpcGet()
	if err != nil {
		t.Fatal(err)
	}
	var port uint16
	for line := range strings.Lines(text) {
		_, _ = fmt.Sscanf(line, "listen_port=%d", &port)
	}
	r.at = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port)
	return r
}

func (r *remote) endpoint() string { return r.at.String() }

// noNonceTwice checks all that arrived at the remote.
func (r *remote) noNonceTwice(t *testing.T) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for nonce, times := range r.seen {
		if times > 1 {
			t.Errorf("session %08x, counter %d was sent %d times", nonce.receiver, nonce.counter, times)
		}
	}
}

// packetOf returns an IPv4 packet that carries a number.
func packetOf(number uint64, from, to netip.Addr) []byte {
	packet := make([]byte, 28, 64)
	packet[0], packet[3], packet[8], packet[9] = 0x45, 28, 64, 253 // 253: for experiments (RFC 3692)
	copy(packet[12:], from.AsSlice())
	copy(packet[16:], to.AsSlice())
	binary.BigEndian.PutUint64(packet[20:], number)
	return packet
}

// flow is a stream of numbered packets from one node to another.
type flow struct {
	stop, stopped chan struct{}
	end           func()      // of sending
	rests         atomic.Bool // sends nothing meanwhile
	sent          atomic.Uint64
	connected     uint64 // sent when the first had arrived
	mu            sync.Mutex
	arrived       map[uint64]bool
}

// startFlow sends a packet at each interval, until the test ends.
func startFlow(t *testing.T, from, to *node, every time.Duration) *flow {
	f := &flow{stop: make(chan struct{}), stopped: make(chan struct{}), arrived: make(map[uint64]bool)}
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-f.stop:
				return
			case <-tick.C:
				if f.rests.Load() {
					continue
				}
				from.out <- packetOf(f.sent.Add(1), from.addr, to.addr)
			}
		}
	})
	finished := make(chan struct{})
	wg.Go(func() {
		for {
			select {
			case p := <-to.in:
				f.mu.Lock()
				f.arrived[binary.BigEndian.Uint64(p[20:])] = true
				f.mu.Unlock()
			case <-finished:
				return
			}
		}
	})
	f.end = sync.OnceFunc(func() { close(f.stop) })
	t.Cleanup(func() {
		f.end()
		close(finished)
		wg.Wait()
	})
	return f
}

func (f *flow) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.arrived)
}

// missing returns how many of those didn't arrive that were sent since the first one did.
func (f *flow) missing(t *testing.T) int {
	t.Helper()
	upTo := f.sent.Load()
	lost := func() (n int) {
		f.mu.Lock()
		defer f.mu.Unlock()
		for i := f.connected + 1; i <= upTo; i++ {
			if !f.arrived[i] {
				n++
			}
		}
		return n
	}
	waitForLate(lost)
	if n := lost(); n > 0 && os.Getenv("HANDOVER_TEST_LOG") != "" {
		first, last := uint64(0), uint64(0)
		for i := f.connected + 1; i <= upTo; i++ {
			if !f.arrived[i] {
				if first == 0 {
					first = i
				}
				last = i
			}
		}
		t.Logf("missing between %d and %d", first, last)
	}
	return lost()
}

// flowing waits until packets arrive that are sent from now on.
func (f *flow) flowing(t *testing.T) {
	t.Helper()
	from := f.sent.Load()
	polltest.Until(t, time.Minute, "packets arrive", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		for i := from + 1; i <= f.sent.Load(); i++ {
			if f.arrived[i] {
				return true
			}
		}
		return false
	})
}

func publicKey(t *testing.T, n *node) (key Key) {
	t.Helper()
	public := n.key.PublicKey()
	if err := key.FromHex(hex.EncodeToString(public[:])); err != nil {
		t.Fatal(err)
	}
	return key
}

// pairFor gives each of two engines an end of a pair.
func pairFor(t *testing.T, old, fresh *engine) {
	t.Helper()
	old.Pair, fresh.Pair = old.node.under.pair(t)
}

func verifyNoLeaks(t *testing.T) {
	t.Helper()
	ignore := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, ignore) })
}

var discardLog = slog.New(slog.DiscardHandler)
