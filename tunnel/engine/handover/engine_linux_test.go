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

	"github.com/kube-semaphore/kube-semaphore/internal/polltest"
	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/udp"
)

// cable is a TUN link in memory. Several devices may serve it, as several processes
// can one of the kernel's.
type cable struct {
	out chan []byte // from the host into the tunnel
	in  chan []byte // from the tunnel to the host
}

func newCable() *cable { return &cable{out: make(chan []byte, 4096), in: make(chan []byte, 1<<16)} }

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

// node is one end of a tunnel: what outlives its engines.
type node struct {
	*cable
	key     wgtypes.Key
	addr    netip.Addr // inside
	port    int
	config  string
	sockets []*os.File // of its engine
}

func newNode(t *testing.T, addr string) *node {
	t.Helper()
	key, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	n := &node{cable: newCable(), key: key, addr: netip.MustParseAddr(addr)}
	n.config = fmt.Sprintf("private_key=%x\n", key[:])
	return n
}

// peer adds a peer to its configuration; its engines get it when they start.
func (n *node) peer(other *node, endpoint, more string) {
	public := other.key.PublicKey()
	n.config += fmt.Sprintf("public_key=%x\nallowed_ip=%s/32\n%s", public[:], other.addr, more)
	if endpoint != "" {
		n.config += "endpoint=" + endpoint + "\n"
	}
}

// slow returns limits that a busy machine keeps.
func slow() Limits {
	limits := DefaultLimits
	limits.Answer, limits.Silent, limits.Sessions, limits.Patience = time.Minute, time.Minute, time.Minute, time.Minute
	return limits
}

// engine serves a node.
type engine struct {
	Side
	node *node
}

// start starts an engine, whose device is down.
func (n *node) start(t *testing.T, inherited []*os.File, shut bool) *engine {
	t.Helper()
	var logger device.Logger
	logger.Verbosef, logger.Errorf = device.DiscardLogf, device.DiscardLogf
	if os.Getenv("HANDOVER_TEST_LOG") != "" {
		logger.Verbosef = func(format string, args ...any) {
			fmt.Printf(time.Now().Format("05.000000 ")+n.addr.String()+" "+format+"\n", args...)
		}
	}
	sockets := udp.New(udp.Config{Inherited: inherited, Opened: func(port uint16, files []*os.File) {
		n.closeSockets()
		n.port, n.sockets = int(port), files
	}})
	e := &engine{node: n, Side: Side{Bind: NewBind(sockets), Tun: NewTun(n.plug(), shut), Limits: slow(), Log: discardLog}}
	e.Device = device.NewDevice(e.Tun, e.Bind, &logger)
	t.Cleanup(e.Device.Close)
	config := n.config
	if n.port != 0 {
		config = strings.Replace(config, "\n", fmt.Sprintf("\nlisten_port=%d\n", n.port), 1)
	}
	if err := e.Device.IpcSet(config); err != nil {
		t.Fatal(err)
	}
	return e
}

// closeSockets closes the node's own descriptors.
func (n *node) closeSockets() {
	for _, file := range n.sockets {
		_ = file.Close()
	}
	n.sockets = nil
}

// inheritance returns descriptors of the sockets for another engine.
func (n *node) inheritance() []*os.File {
	files := n.sockets
	n.sockets = nil // The new engine's bind gives others back.
	return files
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

// spy is conn.StdNetBind with somebody who listens, and may lose messages.
type spy struct {
	conn.Bind
	mu   sync.Mutex
	seen map[sealed]int               // transport messages that arrived, by nonce
	lose func(in bool, m []byte) bool // nil: none
}

// sealed says by what key and nonce a message was sealed.
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
	r := &remote{node: newNode(t, addr), spy: &spy{Bind: conn.NewStdNetBind(), seen: make(map[sealed]int)}}
	r.peer(of, "", more)
	r.dev = device.NewDevice(r.plug(), r.spy, device.NewLogger(device.LogLevelSilent, ""))
	t.Cleanup(r.dev.Close)
	if err := r.dev.IpcSet(r.config); err != nil {
		t.Fatal(err)
	}
	if err := r.dev.Up(); err != nil {
		t.Fatal(err)
	}
	text, err := r.dev.IpcGet()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(text) {
		_, _ = fmt.Sscanf(line, "listen_port=%d", &r.port)
	}
	return r
}

func (r *remote) endpoint() string { return fmt.Sprintf("127.0.0.1:%d", r.port) }

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

// packetOf returns an IPv4 packet with a number in it.
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
	end           func() // of sending
	sent          atomic.Uint64
	connected     uint64 // sent when the first had arrived
	mu            sync.Mutex
	arrived       map[uint64]bool
}

// startFlow sends packets as fast as one each so often, until the test ends.
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
func pairFor(t *testing.T, giver, taker *engine) {
	t.Helper()
	a, b, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	if giver.Pair, err = Conn(a); err != nil {
		t.Fatal(err)
	}
	if taker.Pair, err = Conn(b); err != nil {
		t.Fatal(err)
	}
}

func verifyNoLeaks(t *testing.T) {
	t.Helper()
	ignore := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, ignore) })
}

var discardLog = slog.New(slog.DiscardHandler)
