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

// Tun is a tun.Device whose reading can be stopped without closing it. This costs an atomic
// load in each Read.
type Tun struct {
	tun.Device
	events chan tun.Event
	closed chan struct{}

	shut atomic.Bool // Read waits at gate

	mu      sync.Mutex
	gate    *gate
	closing sync.Once
}

// gate blocks Read while the device is shut.
type gate struct {
	opened  chan struct{}
	reached chan struct{} // closed when Read waits
	once    sync.Once
}

func newGate() *gate { return &gate{opened: make(chan struct{}), reached: make(chan struct{})} }

// NewTun wraps a device. While it is shut, it doesn't read, and holds back the link's events.
// For a later Shut, the inner device or its file needs SetReadDeadline, and its Read must
// return os.ErrDeadlineExceeded after the deadline, once all packets that it had read already
// have been returned.
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

// maxEvents bounds the events that are held back; the oldest are dropped.
const maxEvents = 16

// forward forwards the link's events once opened is closed. It returns at their end.
func (t *Tun) forward(opened <-chan struct{}) {
	defer close(t.events)
	var (
		held []tun.Event
		out  chan tun.Event
		next tun.Event
	)
	for {
		if out = nil; opened == nil && len(held) > 0 {
			out, next = t.events, held[0]
		}
		select {
		case event, more := <-t.Device.Events():
			if !more {
				return
			}
			if held = append(held, event); len(held) > maxEvents {
				held = held[1:]
			}
		case <-opened:
			opened = nil
		case out <- next:
			held = held[1:]
		case <-t.closed:
			for range t.Device.Events() {
				// Unblock the sender.
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

// Shut makes Read wait, and returns when it does: its caller has all packets that were read
// before. It returns an error if ctx ends first.
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

// Open lets Read continue.
func (t *Tun) Open() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.shut.Load() {
		return
	}
	_ = t.deadline(time.Time{}) // It fails only if it also failed in Shut.
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
