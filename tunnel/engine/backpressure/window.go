package backpressure

import (
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"
)

// Window limits the number of packets in flight in wireguard-go, which limits neither its
// queues in bytes nor its buffer pools. Reads from the TUN and the sockets block while too
// many packets of earlier reads haven't left on the other side. So the same few buffers are
// reused and stay in the processor's caches, memory doesn't grow when packets arrive faster
// than they can be encrypted, and the excess stays in the kernel's queues.
//
// A packet stays in one of wireguard-go's buffers from Read to Send, or from receive to
// Write. A mark in that buffer, behind the packet, says that it is in flight. A packet that
// wireguard-go dropped is uncounted when its buffer is reused, which may be late or never,
// and packets to a peer without a session stay in flight until it has one. So after
// stallTimeout without progress, a reader counts all packets in flight as dropped and has a
// higher limit for widePeriod.
type Window struct {
	secret     uint64       // the upper half of all marks
	markOffset atomic.Int64 // in a buffer, in bytes
	readers    [maxReaders]reader
	discard    func() // see New
}

const (
	// perProcessor is the number of packets that keep one processor busy: three processors
	// share the work of a frame of 45 packets, and of the next frame.
	perProcessor = 50
	// maxInflight is the higher limit of one reader's packets: each takes 64 KiB of address
	// space, of which 4 to 64 KiB are resident.
	maxInflight = 512
	// stallTimeout is the time without progress after which the packets in flight count as
	// dropped.
	stallTimeout = 2 * time.Millisecond
	// widePeriod is how long maxInflight is a reader's limit after that.
	widePeriod = 100 * time.Millisecond

	// One for the TUN, and one for the socket of each address family.
	maxReaders = 3
	tunReader  = 0

	markSize  = 8
	epochMask = 1<<24 - 1
	// maxGrowth is the number of bytes that encryption adds to a packet at most: header,
	// padding, tag.
	maxGrowth = 16 + 15 + 16
)

// New returns a window for one device. Discard discards the packets that wireguard-go has staged for sessions.
// It is called on the goroutine that reads the TUN, between two reads, when the packets counted as dropped may
// be as many as the limit. Optional.
func New(discard func()) *Window {
	w := &Window{secret: rand.Uint64() &^ 0xffffffff, discard: discard}
	w.fit(0)
	for i := range w.readers {
		w.readers[i].window, w.readers[i].number = w, uint64(i)
		w.readers[i].limit = min(perProcessor*int64(runtime.GOMAXPROCS(0)), maxInflight)
		w.readers[i].woken = make(chan struct{}, 1)
		w.readers[i].timer = time.NewTimer(stallTimeout)
		w.readers[i].timer.Stop()
	}
	return w
}

// fit makes the window count packets of an MTU, in bytes; larger ones aren't counted. Those that are in flight
// when it grows count as dropped.
func (w *Window) fit(mtu int) {
	const step, last = 2048, device.MaxMessageSize - markSize
	w.markOffset.Store(max(w.markOffset.Load(), min((int64(mtu)+maxGrowth+markSize+step-1)/step*step-markSize, last)))
}

// Tun wraps a device, so that the window counts its packets.
func (w *Window) Tun(inner tun.Device) tun.Device { return &tunnel{Device: inner, window: w} }

// Bind wraps a bind, so that the window counts its packets.
func (w *Window) Bind(inner conn.Bind) conn.Bind { return &bind{Bind: inner, window: w} }

type tunnel struct {
	tun.Device
	window *Window
}

// MTU implements [tun.Device]. wireguard-go calls it at first, and when the link's MTU has changed.
func (t *tunnel) MTU() (int, error) {
	mtu, err := t.Device.MTU()
	if err == nil {
		t.window.fit(mtu)
	}
	return mtu, err
}

// Read implements [tun.Device].
func (t *tunnel) Read(bufs [][]byte, sizes []int, offset int) (int, error) {
	r := &t.window.readers[tunReader]
	r.reclaim(bufs)
	r.wait()
	n, err := t.Device.Read(bufs, sizes, offset)
	r.mark(bufs, sizes[:n], offset)
	return n, err
}

// Write implements [tun.Device].
func (t *tunnel) Write(bufs [][]byte, offset int) (int, error) {
	n, err := t.Device.Write(bufs, offset)
	t.window.countLeft(bufs)
	return n, err
}

type bind struct {
	conn.Bind
	window *Window
}

// Open implements [conn.Bind].
func (b *bind) Open(port uint16) ([]conn.ReceiveFunc, uint16, error) {
	functions, actual, err := b.Bind.Open(port)
	for i, receive := range functions {
		if tunReader+1+i >= maxReaders {
			break // There are two address families.
		}
		// The functions of an earlier Open, which used the reader, have returned.
		r := &b.window.readers[tunReader+1+i]
		r.filled = 0
		functions[i] = func(packets [][]byte, sizes []int, from []conn.Endpoint) (int, error) {
			r.reclaim(packets)
			r.wait()
			n, err := receive(packets, sizes, from)
			r.mark(packets, sizes[:n], 0)
			return n, err
		}
	}
	return functions, actual, err
}

// Send implements [conn.Bind].
func (b *bind) Send(packets [][]byte, to conn.Endpoint) error {
	err := b.Bind.Send(packets, to)
	b.window.countLeft(packets)
	return err
}

// reader is the state of one source of packets. Its atomic fields are for all goroutines,
// the others for the one that reads.
type reader struct {
	window *Window
	number uint64
	limit  int64 // of inflight

	inflight atomic.Int64
	epoch    atomic.Uint32 // of the packets in flight; those of earlier epochs count as dropped
	waiting  atomic.Int64  // the reader waits for inflight to fall below this; 0: it doesn't wait
	woken    chan struct{}
	timer    *time.Timer

	filled    int       // buffers of the last read
	wideUntil time.Time // until then the limit is maxInflight
	// Packets since the last discard.
	presumedLost int64
	marked       int64
}

// reclaim uncounts packets by the buffers for the next read: wireguard-go passes the buffers
// of rejected packets again, and the other ones may be those of packets that it dropped
// earlier.
func (r *reader) reclaim(bufs [][]byte) {
	r.window.countLeft(bufs[:min(r.filled, len(bufs))])
	r.filled = 0
}

// mark marks the packets of a read and counts them as in flight.
func (r *reader) mark(bufs [][]byte, sizes []int, offset int) {
	mark := r.window.secret | r.number<<24 | uint64(r.epoch.Load()&epochMask)
	var count int64
	at := int(r.window.markOffset.Load())
	for i, size := range sizes {
		if size > 0 && offset+size+maxGrowth <= at && at+markSize <= len(bufs[i]) {
			binary.NativeEndian.PutUint64(bufs[i][at:], mark)
			count++
		}
	}
	r.filled = len(sizes)
	r.marked += count
	r.inflight.Add(count)
}

// countLeft removes the marks from buffers whose packets have left wireguard-go, and
// uncounts these packets.
func (w *Window) countLeft(bufs [][]byte) {
	var left [maxReaders]int64
	at := int(w.markOffset.Load())
	for _, b := range bufs {
		if cap(b) < at+markSize {
			continue // Not a buffer that packets are read into.
		}
		marked := b[at : at+markSize : at+markSize]
		mark := binary.NativeEndian.Uint64(marked)
		if number := mark >> 24 & 0xff; mark>>32 == w.secret>>32 && number < maxReaders {
			clear(marked)
			if uint32(mark)&epochMask == w.readers[number].epoch.Load()&epochMask {
				left[number]++
			}
		}
	}
	for i, n := range left {
		if n > 0 {
			w.readers[i].release(n)
		}
	}
}

func (r *reader) release(n int64) {
	inflight := r.inflight.Add(-n)
	if limit := r.waiting.Load(); limit > 0 && inflight < limit {
		select {
		case r.woken <- struct{}{}:
		default:
		}
	}
}

// wait blocks until the number of packets in flight is below the limit.
func (r *reader) wait() {
	inflight, limit := r.inflight.Load(), r.limit
	if inflight < limit {
		return
	}
	if !r.wideUntil.IsZero() && time.Now().Before(r.wideUntil) {
		limit = maxInflight
		if discards := r.number == tunReader && r.window.discard != nil; discards {
			// Discarded packets count until their buffers are reused.
			limit = 2 * maxInflight
			if inflight >= maxInflight && r.marked >= maxInflight/2 {
				r.marked = 0
				r.window.discard()
			}
		}
	}
	for {
		r.waiting.Store(limit)
		before := r.inflight.Load()
		if before < limit {
			break
		}
		r.timer.Reset(stallTimeout)
		select {
		case <-r.woken:
			continue
		case <-r.timer.C:
		}
		if r.inflight.Load() == before {
			r.resetInflight()
			break
		}
	}
	r.waiting.Store(0)
	r.timer.Stop()
}

// resetInflight counts all packets in flight as dropped.
func (r *reader) resetInflight() {
	r.epoch.Add(1)
	r.presumedLost += max(r.inflight.Swap(0), 0)
	r.wideUntil = time.Now().Add(widePeriod)
	if r.presumedLost < maxInflight {
		return
	}
	r.presumedLost, r.marked = 0, 0
	if r.number == tunReader && r.window.discard != nil {
		r.window.discard()
	}
}
