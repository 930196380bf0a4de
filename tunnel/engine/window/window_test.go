package window

import (
	"errors"
	"net"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/tun"
)

const testOffset = 16

// Of these packets of 100 bytes can be read without end.
type (
	endlessTun  struct{ tun.Device }
	endlessBind struct{ conn.Bind }
)

func (endlessTun) Read(bufs [][]byte, sizes []int, _ int) (int, error) {
	for i := range bufs {
		sizes[i] = 100
	}
	return len(bufs), nil
}

func (endlessTun) Write(bufs [][]byte, _ int) (int, error) { return len(bufs), nil }

func (endlessBind) Send([][]byte, conn.Endpoint) error { return nil }

func (endlessBind) Open(uint16) ([]conn.ReceiveFunc, uint16, error) {
	receive := func(packets [][]byte, sizes []int, _ []conn.Endpoint) (int, error) {
		return endlessTun{}.Read(packets, sizes, 0)
	}
	return []conn.ReceiveFunc{receive, receive}, 1, nil
}

// engine is what wireguard-go does with buffers.
type engine struct {
	t         *testing.T
	w         *Window
	tun       tun.Device
	bind      conn.Bind
	bufs      [][]byte
	discarded int
}

func newEngine(t *testing.T) *engine {
	e := &engine{t: t}
	e.w = New(Config{MTU: 1420, Discard: func() { e.discarded++ }})
	e.tun, e.bind = e.w.Tun(endlessTun{}), e.w.Bind(endlessBind{})
	e.bufs = buffers(10)
	return e
}

func buffers(n int) (bufs [][]byte) {
	for range n {
		bufs = append(bufs, make([]byte, 65535))
	}
	return bufs
}

// read returns the packets of one Read, and has new buffers for the next.
func (e *engine) read() (packets [][]byte) {
	e.t.Helper()
	n, err := e.tun.Read(e.bufs, make([]int, len(e.bufs)), testOffset)
	if err != nil {
		e.t.Fatal(err)
	}
	for _, b := range e.bufs[:n] {
		packets = append(packets, b[:testOffset+100+16])
	}
	e.bufs = buffers(n)
	return packets
}

func (e *engine) send(packets [][]byte) {
	e.t.Helper()
	if err := e.bind.Send(packets, nil); err != nil {
		e.t.Error(err)
	}
}

func (e *engine) inside() int64 { return e.w.readers[ofTUN].inside.Load() }

// full reads until the next read has to wait, and returns what is inside.
func (e *engine) full() (packets [][]byte) {
	for e.inside() < e.w.readers[ofTUN].narrow {
		packets = append(packets, e.read()...)
	}
	return packets
}

func TestReadersWaitUntilPacketsHaveLeft(t *testing.T) {
	for range 100 {
		if readersWait(t) {
			return
		}
		t.Log("the machine had no time for the test within patience: once more")
	}
	t.Error("the reader always waits for the end of its patience")
}

// readersWait reports whether the reader waited for packets, and not for the end of its
// patience.
func readersWait(t *testing.T) bool {
	t.Helper()
	e := newEngine(t)
	e.w.readers[ofTUN].narrow = 100
	packets := e.full()
	if len(packets) != 100 {
		t.Fatalf("%d packets are read without waiting, want 100", len(packets))
	}
	read := make(chan [][]byte)
	go func() { read <- e.read() }()
	for e.w.readers[ofTUN].waiting.Load() == 0 && e.w.readers[ofTUN].epoch.Load() == 0 {
		time.Sleep(10 * time.Microsecond) // until it waits
	}
	e.send(packets[:50])
	e.send(packets[50:])
	<-read
	if e.w.readers[ofTUN].epoch.Load() != 0 {
		return false
	}
	if got := e.inside(); got != 10 {
		t.Errorf("%d are inside, want those of the last read", got)
	}
	return true
}

// Nobody waits for packets that the engine had no use for, or threw away and used their
// buffers again.
func TestPacketsThatAreThrownAwayArentInside(t *testing.T) {
	e := newEngine(t)
	for range 100 {
		before := e.bufs
		e.read()
		e.bufs = before
	}
	if got := e.inside(); got != 10 {
		t.Errorf("with the same buffers each time %d are inside, want 10", got)
	}
	e = newEngine(t)
	pool := [2][][]byte{buffers(10), buffers(10)}
	for i := range 100 {
		e.bufs = pool[i%2]
		e.read()
		e.bufs = pool[1-i%2]
	}
	if got := e.inside(); got > 20 {
		t.Errorf("with two sets of buffers %d are inside, want at most 20", got)
	}
	if e.w.readers[ofTUN].epoch.Load() != 0 {
		t.Error("somebody waited in vain")
	}
}

// Packets that don't leave hold nobody up for long, and as many as most make the engine
// discard what waits for sessions. What leaves late isn't counted twice.
func TestPacketsThatStay(t *testing.T) {
	e := newEngine(t)
	var packets [][]byte
	for range 10 * most / 10 {
		packets = append(packets, e.read()...)
		if got := e.inside(); got > 2*most+10 {
			t.Fatalf("%d are inside, want %d at most", got, 2*most)
		}
	}
	if e.discarded < 3 {
		t.Errorf("of %d packets that stay the engine was made to discard %d times", len(packets), e.discarded)
	}
	e.send(packets)
	if got := e.inside(); got != 0 {
		t.Errorf("%d are inside when all have left, want 0", got)
	}
}

func TestReceivedPacketsLeaveByTheTUN(t *testing.T) {
	e := newEngine(t)
	functions, _, err := e.bind.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	for i, receive := range functions {
		r := &e.w.readers[1+i]
		bufs := buffers(10)
		if n, err := receive(bufs, make([]int, 10), make([]conn.Endpoint, 10)); err != nil || n != 10 {
			t.Fatal(n, err)
		}
		if got := r.inside.Load(); got != 10 || e.inside() != 0 {
			t.Errorf("%d are inside, %d of them of the TUN, want 10, 0", got, e.inside())
		}
		if _, err := e.tun.Write(bufs, testOffset); err != nil {
			t.Error(err)
		}
		if got := r.inside.Load(); got != 0 {
			t.Errorf("%d are inside when they are written, want 0", got)
		}
	}
}

// What comes from the wire can be anything behind a packet, too, but no mark.
func TestBuffersOfOthers(t *testing.T) {
	e := newEngine(t)
	scribbled := buffers(1)
	for i := range scribbled[0] {
		scribbled[0][i] = byte(i)
	}
	e.send(append(scribbled, make([]byte, 148), nil))
	if got := e.inside(); got != 0 {
		t.Errorf("%d are inside", got)
	}
	// Too large for a mark behind it.
	large := New(Config{MTU: 1420})
	r := &large.readers[ofTUN]
	r.give(buffers(1), []int{large.place}, testOffset)
	if got := r.inside.Load(); got != 0 {
		t.Errorf("%d are inside", got)
	}
	r.collect(nil)
}

type broken struct{ endlessTun }

func (broken) Read([][]byte, []int, int) (int, error) { return 0, net.ErrClosed }

func TestErrorsAreHandedOn(t *testing.T) {
	w := New(Config{MTU: 1420})
	if _, err := w.Tun(broken{}).Read(buffers(1), make([]int, 1), 0); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v", err)
	}
}
