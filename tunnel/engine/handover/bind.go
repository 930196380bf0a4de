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

// Sockets is the bind that a [Bind] is made on.
type Sockets interface {
	conn.Bind
	// Pause makes the functions that receive return os.ErrDeadlineExceeded, at once
	// and each time, when they have nothing left that they read before; or makes
	// them read again. Sending goes on.
	Pause(paused bool)
}

// Bind is a conn.Bind that can get its messages from another process instead of from
// its sockets, or pass those on to another process that are that one's. While it does
// neither, it adds a few atomic loads to each call.
type Bind struct {
	Sockets
	// muted drops initiations that arrive, and initiations and responses instead of
	// sending them; deaf drops responses that arrive. shook is when one of these was sent
	// last, or a response arrived while it was muted, in Unix nanoseconds.
	muted, deaf atomic.Bool
	shook       atomic.Int64
	held        atomic.Pointer[hold]  // gets what another process relays
	relay       atomic.Pointer[relay] // passes on to another process

	// answers is there while handshakes are made with many peers.
	answers atomic.Pointer[answers]

	mu      sync.Mutex
	receive int // functions that receive
	closed  chan struct{}
}

var _ conn.Bind = (*Bind)(nil)

// NewBind returns a bind on another one.
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
				if b.deaf.Load() {
					sizes[i] = 0
				} else {
					b.shook.Store(time.Now().UnixNano())
				}
			}
		}
	}
	if r := b.relay.Load(); r != nil {
		r.pass(packets, sizes, from)
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
			// wireguard-go begins again what was answered in the moment of sending, after
			// five seconds. The remote would forget the giver's session.
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
			b.shook.Store(time.Now().UnixNano())
		}
	}
	return b.Sockets.Send(packets, to)
}

// mute has the bind take part in no new handshakes, and returns when those that had begun
// have had their time. One that is answered late in it has it again, because the remote
// forgets its session when it gets an initiation before anything in that; but who makes up
// answers gets no more than that. release ends it.
func (b *Bind) mute(ctx context.Context) error {
	b.muted.Store(true)
	for last := time.Now().Add(2 * handshakeTime); ; {
		wait := min(time.Until(time.Unix(0, b.shook.Load()).Add(handshakeTime)), time.Until(last))
		if wait <= 0 {
			b.deaf.Store(true)
			return nil
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return errEnded
		}
	}
}

// hold makes the bind send no handshake messages and receive what comes through a
// channel instead of its sockets. It returns when the device has all that was read of
// them.
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

// idle reports whether the device has taken all that came through the channel of hold.
func (b *Bind) idle() bool {
	h := b.held.Load()
	return h == nil || len(h.relayed) == 0 && !h.busy.Load()
}

// release is the end of hold. What was relayed is received before, when the channel has
// been closed and the device goes on receiving.
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
	b.deaf.Store(false)
	b.muted.Store(false)
}

// hold is what a bind receives from another process.
type hold struct {
	relayed   <-chan []byte
	over      chan struct{}
	drained   chan struct{}            // closed when relayed is, and nothing is left of it
	empty     func()                   // closes drained
	rest      []byte                   // of what was relayed, of the first function
	busy      atomic.Bool              // that has a frame, or the device has what was in it
	endpoints map[string]conn.Endpoint // seen in it, likewise

	mu      sync.Mutex
	in      map[int]bool // functions that receive from here
	missing int
	all     chan struct{} // closed when none is missing
}

// maxEndpoints bounds the endpoints of relayed messages that are remembered.
const maxEndpoints = 1 << 12

// receive is what a function that receives does meanwhile: the first gets what is
// relayed, and the others wait. It returns nothing when it is over.
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
					continue // None that it could have come from.
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

// enter notes that a function is here.
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
