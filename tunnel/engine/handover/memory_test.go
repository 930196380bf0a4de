package handover

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
)

// inBubble runs a test in a bubble of testing/synctest: its time passes when all of its
// goroutines wait, so a busy machine makes no packet late. Sockets, links and pairs are in
// memory there: the tests of TestEnds and TestSockets hold them against the kernel's.
func inBubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, f)
}

// runInBubble runs a subtest in a bubble.
func runInBubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Helper()
		inBubble(t, f)
	})
}

// reachable has all peers of devices that ran in a bubble. wireguard-go drains their queues
// in finalizers, which run outside, where no channel of a bubble may be used.
var reachable struct {
	sync.Mutex
	peers []*device.Peer
}

// keepReachable adds the peers that a device has now.
func keepReachable(t *testing.T, d *device.Device) {
	t.Helper()
	have, err := peersOf(d)
	if err != nil {
		t.Fatal(err)
	}
	reachable.Lock()
	defer reachable.Unlock()
	for key := range have {
		reachable.peers = append(reachable.peers, d.LookupPeer(key))
	}
}

// latency is what each message takes in a lan.
const latency = time.Millisecond

// lan is a network in memory. It delivers messages that are sent at the same time in the
// order of sending.
type lan struct {
	mu     sync.Mutex
	ports  map[netip.AddrPort]*port
	last   uint16    // port that was given
	sent   []transit // in the order in which they arrive
	number uint64
}

// transit is a message on its way.
type transit struct {
	due      time.Time
	number   uint64
	from, to netip.AddrPort
	message  []byte
}

// datagram is a message that has arrived.
type datagram struct {
	from    netip.AddrPort
	message []byte
}

// portRoom is how many datagrams wait at a port. Others are lost, as in the kernel.
const portRoom = 1024

// port is a UDP socket in a lan. As of the kernel's, several binds may have it.
type port struct {
	lan     *lan
	arrived chan datagram
	// Of lan.mu:
	addr netip.AddrPort
	path *path // to the port, and from it; nil: nothing happens there
}

func newLAN() *lan { return &lan{ports: make(map[netip.AddrPort]*port)} }

// listen makes a port.
func (l *lan) listen() *port {
	p := &port{lan: l, arrived: make(chan datagram, portRoom)}
	l.move(p)
	return p
}

// move gives a port another address. Nothing arrives at the one before any more.
func (l *lan) move(p *port) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.ports, p.addr)
	l.last++
	p.addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, 1}), l.last)
	l.ports[p.addr] = p
}

func (p *port) addrPort() netip.AddrPort {
	p.lan.mu.Lock()
	defer p.lan.mu.Unlock()
	return p.addr
}

func (p *port) send(m []byte, to netip.AddrPort) {
	l := p.lan
	l.mu.Lock()
	defer l.mu.Unlock()
	after := latency
	way, toRemote := p.path, false
	if way == nil && l.ports[to] != nil {
		way, toRemote = l.ports[to].path, true
	}
	if way != nil {
		more := way.take(toRemote, m)
		if more < 0 {
			return
		}
		after += more
	}
	l.number++
	l.sent = append(l.sent, transit{time.Now().Add(after), l.number, p.addr, to, bytes.Clone(m)})
	slices.SortFunc(l.sent, func(a, b transit) int { return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.number, b.number)) })
	time.AfterFunc(after, l.deliver)
}

// deliver delivers what is due.
func (l *lan) deliver() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.sent) > 0 && !l.sent[0].due.After(time.Now()) {
		m := l.sent[0]
		l.sent = l.sent[1:]
		if p := l.ports[m.to]; p != nil {
			select {
			case p.arrived <- datagram{m.from, m.message}:
			default:
			}
		}
	}
}

// path is the way between a remote and the node. It delays, loses and keeps messages.
type path struct {
	node, remote *port
	// Of lan.mu:
	delay func(toRemote bool, m []byte) time.Duration // negative: it is lost; nil: at once
	kept  map[bool][][]byte                           // the first messages, by whether to the remote
}

// newPath watches what is sent between two ports.
func newPath(node, remote *port) *path {
	w := &path{node: node, remote: remote, kept: make(map[bool][][]byte)}
	node.lan.mu.Lock()
	defer node.lan.mu.Unlock()
	remote.path = w
	return w
}

func (w *path) take(toRemote bool, m []byte) time.Duration {
	if messageType(m) != device.MessageTransportType || len(w.kept[toRemote]) < 1000 {
		w.kept[toRemote] = append(w.kept[toRemote], bytes.Clone(m))
	}
	if w.delay == nil {
		return 0
	}
	return w.delay(toRemote, m)
}

// behave makes the path delay and lose messages.
func (w *path) behave(delay func(toRemote bool, m []byte) time.Duration) {
	w.node.lan.mu.Lock()
	defer w.node.lan.mu.Unlock()
	w.delay = delay
}

// roam gives the remote another address.
func (w *path) roam() { w.node.lan.move(w.remote) }

// of returns the messages of a type that the node sent.
func (w *path) of(kind uint32) (found [][]byte) {
	for _, m := range w.recorded(true) {
		if messageType(m) == kind {
			found = append(found, m)
		}
	}
	return found
}

// recorded returns what was sent first.
func (w *path) recorded(toRemote bool) [][]byte {
	w.node.lan.mu.Lock()
	defer w.node.lan.mu.Unlock()
	return slices.Clone(w.kept[toRemote])
}

// portBind is a bind on a port.
type portBind struct {
	*port
	mu     sync.Mutex
	closed chan struct{} // nil: it isn't open
	past   chan struct{} // closed while it is paused
}

var _ Sockets = (*portBind)(nil)

func newPortBind(p *port) *portBind { return &portBind{port: p} }

// Open implements [conn.Bind]. Nothing arrives for the second function, as for IPv6 in a
// network without it.
func (b *portBind) Open(uint16) ([]conn.ReceiveFunc, uint16, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed != nil {
		return nil, 0, conn.ErrBindAlreadyOpen
	}
	closed := make(chan struct{})
	b.closed, b.past = closed, make(chan struct{})
	var functions []conn.ReceiveFunc
	for _, arrived := range []chan datagram{b.arrived, nil} {
		functions = append(functions, func(packets [][]byte, sizes []int, from []conn.Endpoint) (int, error) {
			return b.receive(arrived, closed, packets, sizes, from)
		})
	}
	return functions, b.addrPort().Port(), nil
}

func (b *portBind) receive(arrived <-chan datagram, closed <-chan struct{}, packets [][]byte, sizes []int, from []conn.Endpoint) (n int, err error) {
	b.mu.Lock()
	past := b.past
	b.mu.Unlock()
	select {
	case <-closed:
		return 0, net.ErrClosed
	default:
	}
	select {
	case <-past:
		return 0, fmt.Errorf("receive: %w", os.ErrDeadlineExceeded)
	default:
	}
	take := func(d datagram) {
		sizes[n], from[n] = copy(packets[n], d.message), &conn.StdNetEndpoint{AddrPort: d.from}
		n++
	}
	select {
	case <-closed:
		return 0, net.ErrClosed
	case <-past:
		return 0, fmt.Errorf("receive: %w", os.ErrDeadlineExceeded)
	case d := <-arrived:
		take(d)
	}
	for n < len(packets) {
		select {
		case d := <-arrived:
			take(d)
		default:
			return n, nil
		}
	}
	return n, nil
}

// Pause implements [Sockets].
func (b *portBind) Pause(paused bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed == nil {
		return
	}
	select {
	case <-b.past:
		if !paused {
			b.past = make(chan struct{})
		}
	default:
		if paused {
			close(b.past)
		}
	}
}

// Close implements [conn.Bind].
func (b *portBind) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed != nil {
		close(b.closed)
		b.closed = nil
	}
	return nil
}

// Send implements [conn.Bind].
func (b *portBind) Send(packets [][]byte, to conn.Endpoint) error {
	b.mu.Lock()
	closed := b.closed == nil
	b.mu.Unlock()
	if closed {
		return net.ErrClosed
	}
	for _, m := range packets {
		b.send(m, to.(*conn.StdNetEndpoint).AddrPort)
	}
	return nil
}

// ParseEndpoint implements [conn.Bind].
func (*portBind) ParseEndpoint(text string) (conn.Endpoint, error) {
	addr, err := netip.ParseAddrPort(text)
	return &conn.StdNetEndpoint{AddrPort: addr}, err
}

// BatchSize implements [conn.Bind].
func (*portBind) BatchSize() int { return 8 }

// SetMark implements [conn.Bind].
func (*portBind) SetMark(uint32) error { return nil }

// memoryEnd is an [End] in memory.
type memoryEnd struct {
	*memoryPair
	other *memoryEnd
	// Of the pair's mu:
	inbox  [][]byte // not read yet
	bytes  int      // of inbox
	closed bool
	shut   bool // for reading
	reset  bool // the other end was closed before it had read everything
	until  time.Time
}

// memoryPair is what both ends share.
type memoryPair struct {
	mu      sync.Mutex
	changed sync.Cond
}

// memoryRoom is how many bytes wait at an end, as at one that [Pair] makes.
const memoryRoom = pairBuffer

// newMemoryPair is [Pair] in memory.
func newMemoryPair() (oldEnd, newEnd *memoryEnd) {
	both := new(memoryPair)
	both.changed.L = &both.mu
	oldEnd, newEnd = &memoryEnd{memoryPair: both}, &memoryEnd{memoryPair: both}
	oldEnd.other, newEnd.other = newEnd, oldEnd
	return oldEnd, newEnd
}

// Read implements [End].
func (e *memoryEnd) Read(message []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for {
		switch {
		case e.closed:
			return 0, net.ErrClosed
		case e.reset:
			e.reset = false
			return 0, syscall.ECONNRESET
		case len(e.inbox) > 0:
			first := e.inbox[0]
			e.inbox, e.bytes = e.inbox[1:], e.bytes-len(first)
			e.changed.Broadcast()
			return copy(message, first), nil
		case e.shut || e.other.closed:
			return 0, io.EOF
		}
		e.changed.Wait()
	}
}

// Write implements [End].
func (e *memoryEnd) Write(message []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if wait := time.Until(e.until); !e.until.IsZero() && e.other.bytes+len(message) > memoryRoom {
		defer time.AfterFunc(wait, e.changed.Broadcast).Stop()
	}
	for {
		switch err := e.refused(); {
		case err != nil:
			return 0, err
		case e.other.bytes+len(message) <= memoryRoom:
			e.put(message)
			return len(message), nil
		case !e.until.IsZero() && time.Until(e.until) <= 0:
			return 0, os.ErrDeadlineExceeded
		}
		e.changed.Wait()
	}
}

// refused returns why nothing can be written.
func (e *memoryEnd) refused() error {
	switch {
	case e.closed:
		return net.ErrClosed
	case e.reset:
		e.reset = false
		return syscall.ECONNRESET
	case e.other.closed || e.other.shut:
		return syscall.EPIPE
	}
	return nil
}

func (e *memoryEnd) put(message []byte) {
	e.other.inbox, e.other.bytes = append(e.other.inbox, bytes.Clone(message)), e.other.bytes+len(message)
	e.changed.Broadcast()
}

// SetWriteDeadline implements [End].
func (e *memoryEnd) SetWriteDeadline(at time.Time) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return net.ErrClosed
	}
	e.until = at
	return nil
}

// CloseRead implements [End].
func (e *memoryEnd) CloseRead() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.shut = true
	e.changed.Broadcast()
	return nil
}

// Close implements [End].
func (e *memoryEnd) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return net.ErrClosed
	}
	e.closed = true
	if len(e.inbox) > 0 {
		e.other.reset = true
	}
	e.inbox = nil
	e.changed.Broadcast()
	return nil
}

func (e *memoryEnd) try(message []byte) (wrote bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.refused(); err != nil {
		return false, err
	}
	if e.other.bytes > memoryRoom/2 {
		return false, nil
	}
	e.put(message)
	return true, nil
}

func (e *memoryEnd) unread() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.inbox) > 0
}
