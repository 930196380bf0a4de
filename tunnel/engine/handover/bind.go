package handover

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
)

// Sockets is the bind that a [Bind] wraps.
type Sockets interface {
	conn.Bind
	// Pause makes the receive functions return os.ErrDeadlineExceeded at once, after the
	// packets that they have read already, or resumes them. Sending continues.
	Pause(paused bool)
}

// Bind is a conn.Bind that can receive from another process instead of its sockets, or relay
// another process's messages to that. While it does neither, it costs a few atomic loads in
// each call.
type Bind struct {
	Sockets
	// muted drops arriving initiations, and sent initiations and responses. dropResponses
	// drops arriving responses.
	muted, dropResponses atomic.Bool
	// lastHandshake is when an initiation or response was last sent, or a response arrived
	// while muted, in Unix nanoseconds.
	lastHandshake atomic.Int64
	receiver      atomic.Pointer[relayReceiver] // receives from another process
	relay         atomic.Pointer[relay]         // relays to another process

	// initiations isn't nil while handshakes are made with many peers.
	initiations atomic.Pointer[initiations]

	mu        sync.Mutex
	functions int // number of receive functions
	closed    chan struct{}
}

var _ conn.Bind = (*Bind)(nil)

// NewBind wraps a bind.
func NewBind(sockets Sockets) *Bind { return &Bind{Sockets: sockets} }

// Open implements [conn.Bind].
func (b *Bind) Open(port uint16) ([]conn.ReceiveFunc, uint16, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	functions, actual, err := b.Sockets.Open(port)
	if err != nil {
		return nil, 0, err
	}
	if b.receiver.Load() != nil {
		b.Pause(true)
	}
	closed := make(chan struct{})
	b.functions, b.closed = len(functions), closed
	for i, receive := range functions {
		functions[i] = func(packets [][]byte, sizes []int, from []conn.Endpoint) (int, error) {
			return b.receiveFrom(i, receive, closed, packets, sizes, from)
		}
	}
	return functions, actual, nil
}

// Close implements [conn.Bind].
func (b *Bind) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed != nil {
		close(b.closed)
		b.functions, b.closed = 0, nil
	}
	return b.Sockets.Close()
}

func (b *Bind) receiveFrom(i int, receive conn.ReceiveFunc, closed <-chan struct{}, packets [][]byte, sizes []int, from []conn.Endpoint) (int, error) {
	for {
		if r := b.receiver.Load(); r != nil {
			n, err := r.receive(i, b, closed, packets, sizes, from)
			if n > 0 || err != nil {
				b.arrived(packets, sizes[:n], from)
				return n, err
			}
			continue
		}
		n, err := receive(packets, sizes, from)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			if n == 0 {
				continue
			}
			err = nil
		}
		b.arrived(packets, sizes[:n], from)
		return n, err
	}
}

func (b *Bind) arrived(packets [][]byte, sizes []int, from []conn.Endpoint) {
	if b.muted.Load() {
		for i, size := range sizes {
			switch messageType(packets[i][:size]) {
			case device.MessageInitiationType:
				sizes[i] = 0
			case device.MessageResponseType:
				if b.dropResponses.Load() {
					sizes[i] = 0
				} else {
					b.lastHandshake.Store(time.Now().UnixNano())
				}
			}
		}
	}
	if r := b.relay.Load(); r != nil {
		r.forward(packets, sizes, from)
	}
	if a := b.initiations.Load(); a != nil {
		a.arrived(packets, sizes)
	}
}

// Send implements [conn.Bind].
func (b *Bind) Send(packets [][]byte, to conn.Endpoint) error {
	foreign := false
	if a := b.initiations.Load(); a != nil {
		foreign = a.sent(packets)
	}
	if r := b.relay.Load(); r != nil {
		if foreign && !r.accept.Load() {
			// wireguard-go repeats an initiation after five seconds if the response
			// arrived while it was sent. The remote would forget the old engine's session.
			return nil
		}
		r.learn(packets)
	}
	if len(packets) == 1 { // as wireguard-go sends handshake messages
		switch messageType(packets[0]) {
		case device.MessageInitiationType, device.MessageResponseType:
			if b.muted.Load() {
				return nil
			}
			b.lastHandshake.Store(time.Now().UnixNano())
		}
	}
	return b.Sockets.Send(packets, to)
}

// mute stops the bind's participation in new handshakes, and returns handshakeTime after the
// last activity of current ones: a remote forgets its session if it receives an initiation
// before any message in that session. Forged responses don't extend this beyond twice the
// time.
func (b *Bind) mute(ctx context.Context) error {
	b.muted.Store(true)
	for last := time.Now().Add(2 * handshakeTime); ; {
		wait := min(time.Until(time.Unix(0, b.lastHandshake.Load()).Add(handshakeTime)), time.Until(last))
		if wait <= 0 {
			b.dropResponses.Store(true)
			return nil
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return errEnded
		}
	}
}

// receiveRelayed makes the bind send no handshake messages, and receive from a channel instead
// of its sockets. It returns when the device has all packets that were read from them.
func (b *Bind) receiveRelayed(ctx context.Context, relayed <-chan []byte) error {
	b.muted.Store(true)
	b.mu.Lock()
	r := &relayReceiver{relayed: relayed, over: make(chan struct{}), drained: make(chan struct{}), missing: b.functions, all: make(chan struct{}), in: make(map[int]bool), endpoints: make(map[string]conn.Endpoint)}
	if r.missing == 0 {
		close(r.all)
	}
	r.empty = sync.OnceFunc(func() { close(r.drained) })
	b.receiver.Store(r)
	b.Pause(true)
	b.mu.Unlock()
	select {
	case <-r.all:
		return nil
	case <-ctx.Done():
		b.release()
		return fmt.Errorf("stop reading the sockets: %w", ctx.Err())
	}
}

// idle reports whether the device has received all messages of receiveRelayed's channel.
func (b *Bind) idle() bool {
	r := b.receiver.Load()
	return r == nil || len(r.relayed) == 0 && !r.busy.Load()
}

// release ends mute and receiveRelayed. If the channel has been closed, it waits until the
// device has received the relayed messages.
func (b *Bind) release() {
	if r := b.receiver.Load(); r != nil {
		select {
		case <-r.drained:
		case <-time.After(drainPatience):
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if r := b.receiver.Load(); r != nil {
		b.Pause(false)
		b.receiver.Store(nil)
		close(r.over)
	}
	b.dropResponses.Store(false)
	b.muted.Store(false)
}
