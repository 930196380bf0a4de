package resume

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

// Tun is a tun.Device that reads packets from Start to Stop. Until Start it holds back its link's
// events, too.
type Tun struct {
	tun.Device
	events            chan tun.Event
	started, closed   chan struct{}
	starting, closing sync.Once

	stopping atomic.Bool
	stopped  chan struct{} // closed when Read reads no more after Stop
	stop     sync.Once
}

// NewTun wraps a device. For Stop, the device or its file needs SetReadDeadline, and its Read must
// return os.ErrDeadlineExceeded after the deadline, once all packets that it had read already
// have been returned.
func NewTun(inner tun.Device) *Tun {
	t := &Tun{Device: inner, events: make(chan tun.Event), started: make(chan struct{}), closed: make(chan struct{}), stopped: make(chan struct{})}
	go t.forward()
	return t
}

// Events implements [tun.Device].
func (t *Tun) Events() <-chan tun.Event { return t.events }

// maxEvents bounds the events that are held back; the oldest are dropped.
const maxEvents = 16

// forward forwards the link's events after Start. It returns at their end.
func (t *Tun) forward() {
	defer close(t.events)
	var (
		held    []tun.Event
		out     chan tun.Event
		next    tun.Event
		started = t.started
	)
	for {
		if out = nil; started == nil && len(held) > 0 {
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
		case <-started:
			started = nil
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
	select {
	case <-t.started:
	case <-t.closed:
		return 0, os.ErrClosed
	}
	for {
		n, err := t.Device.Read(bufs, sizes, offset)
		switch {
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return n, err
		case n > 0:
			return n, nil
		case t.stopping.Load():
			t.stop.Do(func() { close(t.stopped) })
			<-t.closed
			return 0, os.ErrClosed
		}
	}
}

// Start lets Read read.
func (t *Tun) Start() { t.starting.Do(func() { close(t.started) }) }

// Stop makes Read read no further packets, and returns when its caller has all packets that were
// read before.
func (t *Tun) Stop(ctx context.Context) error {
	t.stopping.Store(true)
	err := t.expire()
	if err == nil {
		select {
		case <-t.started:
		default:
			return nil // Read has read nothing, and won't.
		}
		select {
		case <-t.stopped:
			return nil
		case <-t.closed:
			return nil
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	return fmt.Errorf("stop reading the TUN: %w", err)
}

// expire ends Read's wait.
func (t *Tun) expire() error {
	past := time.Unix(1, 0)
	if d, ok := t.Device.(interface{ SetReadDeadline(time.Time) error }); ok {
		return d.SetReadDeadline(past)
	}
	if file := t.File(); file != nil {
		return file.SetReadDeadline(past)
	}
	return os.ErrNoDeadline
}

// Close implements [tun.Device].
func (t *Tun) Close() error {
	t.closing.Do(func() { close(t.closed) })
	return t.Device.Close()
}
