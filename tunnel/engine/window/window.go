package window

import (
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/tun"
)

// Window bounds how many packets are inside wireguard-go, which bounds neither its
// queues' sizes in bytes nor its pools: whoever reads packets from a TUN or a socket
// waits while too many of those that it read before haven't left on the other side. So
// the same few buffers are used again and again, which stay in the processor's caches,
// and memory doesn't grow when packets come faster than they can be encrypted. What
// comes meanwhile stays in the kernel's queues.
//
// A packet is in one buffer of the engine's from Read to Send, and from a function that
// receives to Write. Which are inside is marked in the buffers themselves, behind the
// packets, so that one which the engine has thrown away counts no more once its buffer
// is used again. That may be late, or never, and packets to a peer without a session stay
// inside until it has one: a reader waits for patience only when nothing leaves
// meanwhile, then takes all that are inside for lost, and has more room for a while.
type Window struct {
	secret  uint64 // the upper half of all marks
	place   int    // of the mark in a buffer
	readers [maxReaders]reader
	// discard has the engine throw away what waits for sessions, see Config.
	discard func()
}

// Config is what a [Window] needs to know.
type Config struct {
	// MTU is that of the link, in bytes. Packets that are much larger aren't counted.
	MTU int
	// Discard is called by who reads the TUN, between two reads, when what was taken
	// for lost may be as much as there may be altogether. It has the engine throw away
	// packets that wait for sessions. If it is nil, they stay.
	Discard func()
}

const (
	// perProcessor is how many packets keep one processor busy: three of them share the
	// work of a frame of 45, and of the next one.
	perProcessor = 50
	// most is how many packets may be inside that one reader read, when it doesn't know
	// better: each takes 64 KiB of address space, of which 4 to 64 are in memory.
	most = 512
	// patience is how long nothing leaves until what is inside is taken for lost.
	patience = 2 * time.Millisecond
	// wideFor is how long a reader has most for its bound after that.
	wideFor = 100 * time.Millisecond

	// The TUN's, and those of sockets of two address families.
	maxReaders = 3
	ofTUN      = 0

	markSize  = 8
	epochMask = 1<<24 - 1
	// maxGrowth bounds in bytes what encryption adds to a packet: header, padding, tag.
	maxGrowth = 16 + 15 + 16
)

// New returns a window for one device.
func New(cfg Config) *Window {
	const step = 2048
	place := (cfg.MTU+maxGrowth+markSize+step-1)/step*step - markSize
	w := &Window{secret: rand.Uint64() &^ 0xffffffff, place: place, discard: cfg.Discard}
	for i := range w.readers {
		w.readers[i].window, w.readers[i].number = w, uint64(i)
		w.readers[i].narrow = min(perProcessor*int64(runtime.GOMAXPROCS(0)), most)
		w.readers[i].woken = make(chan struct{}, 1)
		w.readers[i].timer = time.NewTimer(patience)
		w.readers[i].timer.Stop()
	}
	return w
}

// Tun returns a device on another one, whose packets the window counts.
func (w *Window) Tun(inner tun.Device) tun.Device { return &tunnel{Device: inner, window: w} }

// Bind returns a bind on another one, whose packets the window counts.
func (w *Window) Bind(inner conn.Bind) conn.Bind { return &bind{Bind: inner, window: w} }

type tunnel struct {
	tun.Device
	window *Window
}

// Read implements [tun.Device].
func (t *tunnel) Read(bufs [][]byte, sizes []int, offset int) (int, error) {
	r := &t.window.readers[ofTUN]
	r.collect(bufs)
	r.wait()
	n, err := t.Device.Read(bufs, sizes, offset)
	r.give(bufs, sizes[:n], offset)
	return n, err
}

// Write implements [tun.Device].
func (t *tunnel) Write(bufs [][]byte, offset int) (int, error) {
	n, err := t.Device.Write(bufs, offset)
	t.window.take(bufs)
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
		if ofTUN+1+i >= maxReaders {
			break // There aren't more families than that.
		}
		// Nobody else uses it: the functions of the last time have ended.
		r := &b.window.readers[ofTUN+1+i]
		r.filled = 0
		functions[i] = func(packets [][]byte, sizes []int, from []conn.Endpoint) (int, error) {
			r.collect(packets)
			r.wait()
			n, err := receive(packets, sizes, from)
			r.give(packets, sizes[:n], 0)
			return n, err
		}
	}
	return functions, actual, err
}

// Send implements [conn.Bind].
func (b *bind) Send(packets [][]byte, to conn.Endpoint) error {
	err := b.Bind.Send(packets, to)
	b.window.take(packets)
	return err
}

// reader reads packets. One goroutine uses it, but for what is atomic.
type reader struct {
	window *Window
	number uint64
	narrow int64 // bound of inside

	inside  atomic.Int64
	epoch   atomic.Uint32 // of what is inside: what has another one was taken for lost
	waiting atomic.Int64  // for inside to be less than that; 0: nobody waits
	woken   chan struct{}
	timer   *time.Timer

	filled int       // buffers of the last read
	until  time.Time // bound is most
	// Since the engine was last made to discard.
	lost  int64 // taken for lost
	given int64
}

// collect finds out what the engine has done with the buffers of the last read: those that
// it had no use for are here still, others have been replaced, maybe by one whose packet it
// threw away.
func (r *reader) collect(bufs [][]byte) {
	r.window.take(bufs[:min(r.filled, len(bufs))])
	r.filled = 0
}

// give marks the packets that the engine gets.
func (r *reader) give(bufs [][]byte, sizes []int, offset int) {
	mark := r.window.secret | r.number<<24 | uint64(r.epoch.Load()&epochMask)
	var count int64
	for i, size := range sizes {
		if size > 0 && offset+size+maxGrowth <= r.window.place && r.window.place+markSize <= len(bufs[i]) {
			binary.NativeEndian.PutUint64(bufs[i][r.window.place:], mark)
			count++
		}
	}
	r.filled = len(sizes)
	r.given += count
	r.inside.Add(count)
}

// take takes the marks from buffers, whose packets nobody needs any more, and counts those
// as left.
func (w *Window) take(bufs [][]byte) {
	var left [maxReaders]int64
	for _, b := range bufs {
		if cap(b) < w.place+markSize {
			continue // Not one of the buffers that packets are read into.
		}
		place := b[w.place : w.place+markSize : w.place+markSize]
		mark := binary.NativeEndian.Uint64(place)
		if number := mark >> 24 & 0xff; mark>>32 == w.secret>>32 && number < maxReaders {
			clear(place)
			if uint32(mark)&epochMask == w.readers[number].epoch.Load()&epochMask {
				left[number]++
			}
		}
	}
	for i, n := range left {
		if n > 0 {
			w.readers[i].leave(n)
		}
	}
}

func (r *reader) leave(n int64) {
	inside := r.inside.Add(-n)
	if limit := r.waiting.Load(); limit > 0 && inside < limit {
		select {
		case r.woken <- struct{}{}:
		default:
		}
	}
}

// wait waits until there is room for more.
func (r *reader) wait() {
	inside, limit := r.inside.Load(), r.narrow
	if inside < limit {
		return
	}
	if !r.until.IsZero() && time.Now().Before(r.until) {
		limit = most
		if discards := r.number == ofTUN && r.window.discard != nil; discards {
			// What is thrown away is still counted, until its buffers are used again.
			limit = 2 * most
			if inside >= most && r.given >= most/2 {
				r.given = 0
				r.window.discard()
			}
		}
	}
	for {
		r.waiting.Store(limit)
		before := r.inside.Load()
		if before < limit {
			break
		}
		r.timer.Reset(patience)
		select {
		case <-r.woken:
			continue
		case <-r.timer.C:
		}
		if r.inside.Load() == before {
			r.forget()
			break
		}
	}
	r.waiting.Store(0)
	r.timer.Stop()
}

// forget takes all that is inside for lost.
func (r *reader) forget() {
	r.epoch.Add(1)
	r.lost += max(r.inside.Swap(0), 0)
	r.until = time.Now().Add(wideFor)
	if r.lost < most {
		return
	}
	r.lost, r.given = 0, 0
	if r.number == ofTUN && r.window.discard != nil {
		r.window.discard()
	}
}
