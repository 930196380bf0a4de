package handover

import (
	"context"
	"errors"
	"fmt"
	"net"
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
	held          atomic.Pointer[hold]  // receives from another process
	relay         atomic.Pointer[relay] // relays to another process

	// answers isn't nil while handshakes are made with many peers.
	answers atomic.Pointer[answers]

	mu      sync.Mutex
	receive int // number of receive functions
	closed  chan struct{}
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
	if b.held.Load() != nil {
		b.Pause(true)
	}
	closed := make(chan struct{})
	b.receive, b.closed = len(functions), closed
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
		b.receive, b.closed = 0, nil
	}
	return b.Sockets.Close()
}

func (b *Bind) receiveFrom(i int, receive conn.ReceiveFunc, closed <-chan struct{}, packets [][]byte, sizes []int, from []conn.Endpoint) (int, error) {
	for {
		if h := b.held.Load(); h != nil {
			n, err := h.receive(i, b, closed, packets, sizes, from)
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
	if a := b.answers.Load(); a != nil {
		a.arrived(packets, sizes)
	}
}

// Send implements [conn.Bind].
func (b *Bind) Send(packets [][]byte, to conn.Endpoint) error {
	foreign := false
	if a := b.answers.Load(); a != nil {
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
// time. release ends it.
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

// hold makes the bind send no handshake messages, and receive from a channel instead of its
// sockets. It returns when the device has all packets that were read from them.
func (b *Bind) hold(ctx context.Context, relayed <-chan []byte) error {
	b.muted.Store(true)
	b.mu.Lock()
	h := &hold{relayed: relayed, over: make(chan struct{}), drained: make(chan struct{}), missing: b.receive, all: make(chan struct{}), in: make(map[int]bool), endpoints: make(map[string]conn.Endpoint)}
	if h.missing == 0 {
		close(h.all)
	}
	h.empty = sync.OnceFunc(func() { close(h.drained) })
	b.held.Store(h)
	b.Pause(true)
	b.mu.Unlock()
	select {
	case <-h.all:
		return nil
	case <-ctx.Done():
		b.release()
		return fmt.Errorf("stop reading the sockets: %w", ctx.Err())
	}
}

// idle reports whether the device has received all messages of hold's channel.
func (b *Bind) idle() bool {
	h := b.held.Load()
	return h == nil || len(h.relayed) == 0 && !h.busy.Load()
}

// release ends hold. If the channel has been closed, it waits until the device has received
// the relayed messages.
func (b *Bind) release() {
	if h := b.held.Load(); h != nil {
		select {
		case <-h.drained:
		case <-time.After(drainPatience):
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if h := b.held.Load(); h != nil {
		b.Pause(false)
		b.held.Store(nil)
		close(h.over)
	}
	b.dropResponses.Store(false)
	b.muted.Store(false)
}

// hold is the state of a bind that receives from another process.
type hold struct {
	relayed   <-chan []byte
	over      chan struct{}
	drained   chan struct{}            // closed when relayed is closed and empty
	empty     func()                   // closes drained
	rest      []byte                   // of the current frame; only for the first function
	busy      atomic.Bool              // the first function or the device has a frame
	endpoints map[string]conn.Endpoint // by their text; only for the first function

	mu      sync.Mutex
	in      map[int]bool // functions that receive from hold
	missing int
	all     chan struct{} // closed when missing is 0
}

// maxEndpoints bounds the cached endpoints of relayed messages.
const maxEndpoints = 1 << 12

// receive implements receive function i during hold: the first one receives relayed messages,
// and the others wait. It returns 0 at the end of hold.
func (h *hold) receive(i int, b *Bind, closed <-chan struct{}, packets [][]byte, sizes []int, from []conn.Endpoint) (n int, err error) {
	h.enter(i)
	if i > 0 {
		select {
		case <-h.over:
			return 0, nil
		case <-closed:
			return 0, net.ErrClosed
		}
	}
	for relayed := h.relayed; n == 0; {
		if len(h.rest) == 0 {
			h.busy.Store(false)
			select {
			case frame, more := <-relayed:
				h.busy.Store(more)
				if h.rest = frame; !more {
					relayed = nil
					h.empty()
				}
			case <-h.over:
				return 0, nil
			case <-closed:
				return 0, net.ErrClosed
			}
		}
		for n < len(packets) && len(h.rest) > 0 {
			var endpoint string
			var message []byte
			if endpoint, message, h.rest = cutRelayed(h.rest); message == nil {
				break
			}
			known, found := h.endpoints[endpoint]
			if !found {
				if known, err = b.ParseEndpoint(endpoint); err != nil {
					continue // not an endpoint of this bind
				}
				if len(h.endpoints) >= maxEndpoints {
					clear(h.endpoints)
				}
				h.endpoints[endpoint] = known
			}
			sizes[n], from[n] = copy(packets[n], message), known
			n++
		}
	}
	return n, nil
}

// enter records that a function has stopped reading its socket.
func (h *hold) enter(i int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.in[i] {
		h.in[i] = true
		if h.missing--; h.missing == 0 {
			close(h.all)
		}
	}
}
