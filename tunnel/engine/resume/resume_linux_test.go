package resume

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/udp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// numbers are the numbered packets that arrived.
type numbers struct {
	mu   sync.Mutex
	seen map[uint32]int
}

// readAll reads from the functions of a bind until it is closed.
func (n *numbers) readAll(functions []conn.ReceiveFunc) (ended func()) {
	var reading sync.WaitGroup
	for _, receive := range functions {
		reading.Go(func() {
			packets, sizes, from := make([][]byte, 8), make([]int, 8), make([]conn.Endpoint, 8)
			for i := range packets {
				packets[i] = make([]byte, 2048)
			}
			for {
				count, err := receive(packets, sizes, from)
				if err != nil {
					return
				}
				n.mu.Lock()
				for i := range count {
					if sizes[i] == 4 {
						n.seen[binary.BigEndian.Uint32(packets[i])]++
					}
				}
				n.mu.Unlock()
			}
		})
	}
	return reading.Wait
}

// Binds pass sockets on: each packet is read by exactly one of them.
func TestPacketsWaitInTheSockets(t *testing.T) {
	var sockets []*os.File
	config := udp.Config{Opened: func(_ uint16, s []*os.File) {
		for _, old := range sockets {
			_ = old.Close()
		}
		sockets = s
	}}
	t.Cleanup(func() {
		for _, s := range sockets {
			_ = s.Close()
		}
	})
	bind := NewBind(udp.New(config))
	functions, port, err := bind.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	n := &numbers{seen: make(map[uint32]int)}
	ended := n.readAll(functions)
	bind.Start()
	sender, err := net.DialUDP("udp4", nil, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(port)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sender.Close() }()
	var sent uint32
	send := func() {
		for range 50 {
			if _, err := sender.Write(binary.BigEndian.AppendUint32(nil, sent)); err != nil {
				t.Fatal(err)
			}
			sent++
		}
	}
	for range 5 {
		send()
		if err := bind.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		send()
		inherited := udp.Config{Inherited: sockets, Opened: config.Opened}
		sockets = nil
		next := NewBind(udp.New(inherited))
		functions, _, err := next.Open(port)
		if err != nil {
			t.Fatal(err)
		}
		nextEnded := n.readAll(functions)
		send()
		next.Start()
		if err := bind.Close(); err != nil {
			t.Error(err)
		}
		ended()
		bind, ended = next, nextEnded
	}
	polltest.Until(t, time.Minute, "all packets to arrive", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return len(n.seen) == int(sent)
	})
	for number, times := range n.seen {
		if times != 1 {
			t.Errorf("packet %d arrived %d times", number, times)
		}
	}
	if err := bind.Close(); err != nil {
		t.Error(err)
	}
	ended()
}

// A bind can be stopped or closed before it reads, and stopped while it is closed.
func TestBindsThatDoNotRead(t *testing.T) {
	for name, end := range map[string]func(b *Bind) error{
		"stopped": func(b *Bind) error { return b.Stop(t.Context()) },
		"closed":  func(*Bind) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			bind := NewBind(udp.New(udp.Config{}))
			functions, _, err := bind.Open(0)
			if err != nil {
				t.Fatal(err)
			}
			n := &numbers{seen: make(map[uint32]int)}
			ended := n.readAll(functions)
			if err := errors.Join(end(bind), bind.Close()); err != nil {
				t.Error(err)
			}
			ended()
		})
	}
	bind := NewBind(udp.New(udp.Config{}))
	if err := bind.Stop(t.Context()); err != nil {
		t.Errorf("stop a bind without sockets: %v", err)
	}
	if _, _, err := bind.Open(0); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a stopped bind opens: %v", err)
	}
}

// sink is a bind that records what is sent.
type sink struct {
	Sockets
	sent []uint32 // types of messages
}

func (*sink) Pause() {}

func (s *sink) Send(packets [][]byte, _ conn.Endpoint) error {
	for _, p := range packets {
		s.sent = append(s.sent, messageType(p))
	}
	return nil
}

// A stopped device sends what it had read, and no handshake messages.
func TestAStoppedBindSendsNoHandshakes(t *testing.T) {
	message := func(kind uint32) []byte { return binary.LittleEndian.AppendUint32(nil, kind) }
	s := new(sink)
	b := NewBind(s)
	all := func() {
		for _, kind := range []uint32{device.MessageInitiationType, device.MessageResponseType, device.MessageTransportType} {
			if err := b.Send([][]byte{append(message(kind), make([]byte, device.MinMessageSize)...)}, nil); err != nil {
				t.Error(err)
			}
		}
	}
	all()
	if err := b.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	all()
	if diff := cmp.Diff([]uint32{1, 2, 4, 4}, s.sent); diff != "" {
		t.Error(diff)
	}
}

// fakeTUN is a link in memory.
type fakeTUN struct {
	packets chan []byte
	events  chan tun.Event
	past    chan struct{}
	closed  chan struct{}
	left    int // packets of a frame that was read
}

func newFakeTUN() *fakeTUN {
	return &fakeTUN{packets: make(chan []byte, 10), events: make(chan tun.Event, 1), past: make(chan struct{}), closed: make(chan struct{})}
}

func (f *fakeTUN) SetReadDeadline(time.Time) error { close(f.past); return nil }

func (f *fakeTUN) Read(bufs [][]byte, sizes []int, offset int) (int, error) {
	if f.left > 0 {
		f.left--
		sizes[0] = copy(bufs[0][offset:], "left")
		return 1, nil
	}
	select {
	case <-f.past:
		return 0, os.ErrDeadlineExceeded
	default:
	}
	select {
	case p := <-f.packets:
		sizes[0] = copy(bufs[0][offset:], p)
		return 1, nil
	case <-f.past:
		return 0, os.ErrDeadlineExceeded
	case <-f.closed:
		return 0, os.ErrClosed
	}
}

func (*fakeTUN) Write([][]byte, int) (int, error) { return 0, nil }
func (*fakeTUN) File() *os.File                   { return nil }
func (*fakeTUN) MTU() (int, error)                { return 1420, nil }
func (*fakeTUN) Name() (string, error)            { return "memory", nil }
func (f *fakeTUN) Events() <-chan tun.Event       { return f.events }
func (*fakeTUN) BatchSize() int                   { return 1 }
func (f *fakeTUN) Close() error                   { close(f.closed); close(f.events); return nil }

// A TUN is read, and reports its link's events, from Start to Stop.
func TestTUN(t *testing.T) {
	inner := newFakeTUN()
	reads := NewTun(inner)
	inner.events <- tun.EventUp
	inner.packets <- []byte("first")
	read := make(chan string)
	ended := make(chan error, 1)
	go func() {
		for buf, sizes := []byte(strings.Repeat(" ", 100)), []int{0}; ; {
			n, err := reads.Read([][]byte{buf}, sizes, 0)
			if err != nil {
				ended <- err
				return
			}
			if n > 0 {
				read <- string(bytes.Clone(buf[:sizes[0]]))
			}
		}
	}()
	select {
	case got := <-read:
		t.Errorf("%q is read before Start", got)
	case event := <-reads.Events():
		t.Errorf("event %v before Start", event)
	default:
	}
	reads.Start()
	if got, event := <-read, <-reads.Events(); got != "first" || event != tun.EventUp {
		t.Errorf("got %q, %v", got, event)
	}
	if err := reads.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	inner.packets <- []byte("second")
	if err := reads.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, os.ErrClosed) || len(inner.packets) != 1 {
		t.Errorf("read ends with %v, %d packets wait", err, len(inner.packets))
	}
	before := NewTun(newFakeTUN())
	if err := errors.Join(before.Stop(t.Context()), before.Close()); err != nil {
		t.Errorf("stop before Start: %v", err)
	}
}

// The packets of a frame that was read before Stop are returned.
func TestTUNReturnsTheRestOfAFrame(t *testing.T) {
	inner := newFakeTUN()
	inner.left = 2
	reads := NewTun(inner)
	reads.Start()
	stopped := make(chan error, 1)
	go func() { stopped <- reads.Stop(t.Context()) }()
	<-inner.past
	count := make(chan int)
	go func() {
		for n, buf := 0, make([]byte, 100); ; n++ {
			if _, err := reads.Read([][]byte{buf}, []int{0}, 0); err != nil {
				count <- n
				return
			}
		}
	}()
	if err := errors.Join(<-stopped, reads.Close()); err != nil {
		t.Error(err)
	}
	if n := <-count; n != 2 {
		t.Errorf("%d packets are returned, want 2", n)
	}
}
