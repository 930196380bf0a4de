package backpressure

import (
	"errors"
	"net"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/tun"
)

const testOffset = 16

// From these, packets of 100 bytes can be read endlessly.
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

// engine imitates how wireguard-go uses buffers.
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
	e.w = New(func() { e.discarded++ })
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

// read returns the packets of one Read, and allocates buffers for the next one.
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

func (e *engine) inflight() int64 { return e.w.readers[tunReader].inflight.Load() }

// full reads until the next read has to wait, and returns the packets in flight.
func (e *engine) full() (packets [][]byte) {
	for e.inflight() < e.w.readers[tunReader].limit {
		packets = append(packets, e.read()...)
	}
	return packets
}

func TestReadersWaitUntilPacketsHaveLeft(t *testing.T) {
	for range 100 {
		if readersWait(t) {
			return
		}
		t.Log("the machine had no time for the test within stallTimeout: retrying")
	}
	t.Error("the reader always waits until stallTimeout")
}

// readersWait reports whether the reader waited for packets to leave, and not until
func readersWait(t *testing.T) bool {
	t.Helper()
	e := newEngine(t)
	e.w.readers[tunReader].limit = 100
	packets := e.full()
	if len(packets) != 100 {
		t.Fatalf("%d packets are read without waiting, want 100", len(packets))
	}
	read := make(chan [][]byte)
	go func() { read <- e.read() }()
	for e.w.readers[tunReader].waiting.Load() == 0 && e.w.readers[tunReader].epoch.Load() == 0 {
		time.Sleep(10 * time.Microsecond) // until it waits
	}
	e.send(packets[:50])
	e.send(packets[50:])
	<-read
	if e.w.readers[tunReader].epoch.Load() != 0 {
		return false
	}
	if got := e.inflight(); got != 10 {
		t.Errorf("%d packets in flight, want the 10 of the last read", got)
	}
	return true
}

// No reader waits for packets that the engine rejected, or dropped and reused their buffers.
func TestDroppedPacketsAreNotInFlight(t *testing.T) {
	e := newEngine(t)
	for range 100 {
		before := e.bufs
		e.read()
		e.bufs = before
	}
	if got := e.inflight(); got != 10 {
		t.Errorf("with the same buffers each time: %d packets in flight, want 10", got)
	}
	e = newEngine(t)
	pool := [2][][]byte{buffers(10), buffers(10)}
	for i := range 100 {
		e.bufs = pool[i%2]
		e.read()
		e.bufs = pool[1-i%2]
	}
	if got := e.inflight(); got > 20 {
		t.Errorf("with two sets of buffers: %d packets in flight, want at most 20", got)
	}
	if e.w.readers[tunReader].epoch.Load() != 0 {
		t.Error("a reader waited until stallTimeout")
	}
}

// Packets that don't leave block a reader only briefly, and maxInflight of them make it
// discard staged packets. Packets that leave late aren't counted twice.
func TestStagedPacketsAreDiscarded(t *testing.T) {
	e := newEngine(t)
	var packets [][]byte
	for range 10 * maxInflight / 10 {
		packets = append(packets, e.read()...)
		if got := e.inflight(); got > 2*maxInflight+10 {
			t.Fatalf("%d packets in flight, want at most %d", got, 2*maxInflight)
		}
	}
	if e.discarded < 3 {
		t.Errorf("%d packets that stay: discarded %d times, want at least 3", len(packets), e.discarded)
	}
	e.send(packets)
	if got := e.inflight(); got != 0 {
		t.Errorf("%d packets in flight after all have left, want 0", got)
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
		if got := r.inflight.Load(); got != 10 || e.inflight() != 0 {
			t.Errorf("%d packets in flight, and %d of the TUN, want 10, 0", got, e.inflight())
		}
		if _, err := e.tun.Write(bufs, testOffset); err != nil {
			t.Error(err)
		}
		if got := r.inflight.Load(); got != 0 {
			t.Errorf("%d packets in flight after they were written, want 0", got)
		}
	}
}

// Arbitrary bytes behind a packet are no mark.
func TestBuffersOfOthers(t *testing.T) {
	e := newEngine(t)
	scribbled := buffers(1)
	for i := range scribbled[0] {
		scribbled[0][i] = byte(i)
	}
	e.send(append(scribbled, make([]byte, 148), nil))
	if got := e.inflight(); got != 0 {
		t.Errorf("%d packets in flight, want 0", got)
	}
	// A packet too large for a mark behind it.
	large := New(nil)
	r := &large.readers[tunReader]
	r.mark(buffers(1), []int{int(large.markOffset.Load())}, testOffset)
	if got := r.inflight.Load(); got != 0 {
		t.Errorf("%d packets in flight, want 0", got)
	}
	r.reclaim(nil)
}

// mtuTun is the TUN of a link with an MTU.
type mtuTun struct {
	endlessTun
	mtu int
}

func (t mtuTun) MTU() (int, error) { return t.mtu, nil }

// TestMTUThatGrows: packets of the new MTU are counted, up to those of a whole buffer.
func TestMTUThatGrows(t *testing.T) {
	w := New(nil)
	r := &w.readers[tunReader]
	for i, c := range []struct{ mtu, size, counted int }{{1420, 1420, 1}, {1420, 8921, 1}, {8921, 8921, 2}, {1420, 8921, 3}, {65535, 65000, 4}} {
		if _, err := w.Tun(mtuTun{mtu: c.mtu}).MTU(); err != nil {
			t.Fatal(err)
		}
		if r.mark(buffers(1), []int{c.size}, testOffset); r.inflight.Load() != int64(c.counted) {
			t.Errorf("step %d: %d packets are counted, expected %d", i, r.inflight.Load(), c.counted)
		}
	}
}

type broken struct{ endlessTun }

func (broken) Read([][]byte, []int, int) (int, error) { return 0, net.ErrClosed }

func TestErrorsAreReturned(t *testing.T) {
	w := New(nil)
	if _, err := w.Tun(broken{}).Read(buffers(1), make([]int, 1), 0); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v", err)
	}
}
