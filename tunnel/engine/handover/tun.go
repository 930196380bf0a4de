package handover

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.zx2c4.com/wireguard/tun"
)

// Tun is a tun.Device that can stop reading without being closed. It adds an atomic
// load to each Read.
type Tun struct {
	tun.Device
	events chan tun.Event
	closed chan struct{}

	shut atomic.Bool // says whether gate does anything

	mu      sync.Mutex
	gate    *gate
	closing sync.Once
}

// gate is what Read waits at.
type gate struct {
	opened  chan struct{}
	reached chan struct{} // closed when Read is there
	once    sync.Once
}

func newGate() *gate { return &gate{opened: make(chan struct{}), reached: make(chan struct{})} }

// NewTun returns a device on another one. A device that is shut reads nothing, and its
// link's events are kept back, until it is opened. To be shut later, the other one must
// have SetReadDeadline, or a file with it, and its Read return os.ErrDeadlineExceeded
// once a deadline has passed and nothing is left that was read before.
func NewTun(inner tun.Device, shut bool) *Tun {
	t := &Tun{Device: inner, events: make(chan tun.Event), closed: make(chan struct{}), gate: newGate()}
	if t.shut.Store(shut); !shut {
		close(t.gate.opened)
	}
	go t.forward(t.gate.opened)
	return t
}

// Events implements [tun.Device].
func (t *Tun) Events() <-chan tun.Event { return t.events }

// maxEvents bounds the events that are kept back; the oldest are forgotten.
const maxEvents = 16

// forward hands on the link's events from the time on that it may. It ends with them.
func (t *Tun) forward(opened <-chan struct{}) {
	defer close(t.events)
	var (
		kept []tun.Event
		out  chan tun.Event
		next tun.Event
	)
	for {
		if out = nil; opened == nil && len(kept) > 0 {
			out, next = t.events, kept[0]
		}
		select {
		case event, more := <-t.Device.Events():
			if !more {
				return
			}
			if kept = append(kept, event); len(kept) > maxEvents {
				kept = kept[1:]
			}
		case <-opened:
			opened = nil
		case out <- next:
			kept = kept[1:]
		case <-t.closed:
			for range t.Device.Events() {
				// Whoever sends them may be waiting.
			}
			return
		}
	}
}

// Read implements [tun.Device].
func (t *Tun) Read(bufs [][]byte, sizes []int, offset int) (int, error) {
	for {
		if t.shut.Load() && !t.wait() {
			return 0, os.ErrClosed
		}
		n, err := t.Device.Read(bufs, sizes, offset)
		if n == 0 && errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		if n > 0 && errors.Is(err, os.ErrDeadlineExceeded) {
			err = nil
		}
		return n, err
	}
}

// wait waits for the gate to be opened, and returns false when the device is closed.
func (t *Tun) wait() bool {
	t.mu.Lock()
	g := t.gate
	t.mu.Unlock()
	g.once.Do(func() { close(g.reached) })
	select {
	case <-g.opened:
		return true
	case <-t.closed:
		return false
	}
}

// Shut makes Read wait, and returns when it does: whatever it had read before has been
// taken over by its caller. That may not happen in time, which is an error.
func (t *Tun) Shut(ctx context.Context) error {
	t.mu.Lock()
	if !t.shut.Load() {
		t.gate = newGate()
		t.shut.Store(true)
	}
	g := t.gate
	err := t.deadline(time.Unix(1, 0))
	t.mu.Unlock()
	if err == nil {
		select {
		case <-g.reached:
			return nil
		case <-t.closed:
			err = os.ErrClosed
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	return fmt.Errorf("stop reading the TUN: %w", err)
}

// Open lets Read go on.
func (t *Tun) Open() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.shut.Load() {
		return
	}
	_ = t.deadline(time.Time{}) // Where it doesn't have that it was never shut.
	t.shut.Store(false)
	close(t.gate.opened)
}

func (t *Tun) deadline(at time.Time) error {
	if d, ok := t.Device.(interface{ SetReadDeadline(time.Time) error }); ok {
		return d.SetReadDeadline(at)
	}
	if file := t.File(); file != nil {
		return file.SetReadDeadline(at)
	}
	return os.ErrNoDeadline
}

// Close implements [tun.Device].
func (t *Tun) Close() error {
	t.closing.Do(func() { close(t.closed) })
	return t.Device.Close()
}
