package resume

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
)

// Sockets is the bind that a [Bind] wraps.
type Sockets interface {
	conn.Bind
	// Pause makes the receive functions return os.ErrDeadlineExceeded without waiting, after
	// the packets that the sockets have. Sending continues.
	Pause()
}

// Bind is a conn.Bind that reads its sockets, open or not, from Start to Stop. Otherwise it costs
// a few atomic loads in each call.
type Bind struct {
	Sockets
	initiations atomic.Pointer[initiations] // not nil during Initiate
	started     chan struct{}
	starting    sync.Once
	stopping    atomic.Bool

	mu     sync.Mutex
	closed chan struct{}
	open   sync.WaitGroup // receive functions that may read
}

var _ conn.Bind = (*Bind)(nil)

// NewBind wraps a bind.
func NewBind(sockets Sockets) *Bind { return &Bind{Sockets: sockets, started: make(chan struct{})} }

// Start lets the receive functions read.
func (b *Bind) Start() { b.starting.Do(func() { close(b.started) }) }

// Open implements [conn.Bind].
func (b *Bind) Open(port uint16) ([]conn.ReceiveFunc, uint16, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopping.Load() {
		return nil, 0, net.ErrClosed
	}
	functions, actual, err := b.Sockets.Open(port)
	if err != nil {
		return nil, 0, err
	}
	closed := make(chan struct{})
	b.closed = closed
	for i, receive := range functions {
		b.open.Add(1)
		over := sync.OnceFunc(b.open.Done)
		functions[i] = func(packets [][]byte, sizes []int, from []conn.Endpoint) (int, error) {
			select {
			case <-b.started:
			case <-closed:
				over()
				return 0, net.ErrClosed
			}
			n, err := b.receive(receive, packets, sizes, from)
			switch {
			case errors.Is(err, errStopped):
				over()
				<-closed
				return 0, net.ErrClosed
			case errors.Is(err, net.ErrClosed):
				over()
			}
			return n, err
		}
	}
	return functions, actual, nil
}

var errStopped = errors.New("stopped")

func (b *Bind) receive(receive conn.ReceiveFunc, packets [][]byte, sizes []int, from []conn.Endpoint) (int, error) {
	for {
		n, err := receive(packets, sizes, from)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			if n == 0 && b.stopping.Load() {
				return 0, errStopped
			}
			if n == 0 {
				continue
			}
			err = nil
		}
		if i := b.initiations.Load(); i != nil {
			i.arrived(packets, sizes[:n])
		}
		return n, err
	}
}

// Send implements [conn.Bind].
func (b *Bind) Send(packets [][]byte, to conn.Endpoint) error {
	if i := b.initiations.Load(); i != nil {
		i.sent(packets)
	}
	if b.stopping.Load() && len(packets) == 1 { // as wireguard-go sends handshake messages
		switch messageType(packets[0]) {
		case device.MessageInitiationType, device.MessageResponseType:
			return nil // The session would replace that of the new process, which gets the answer.
		}
	}
	return b.Sockets.Send(packets, to)
}

// Stop makes the bind read no packets but those that have arrived, and send no handshake messages.
// It returns when the device has these. The sockets stay open until Close.
func (b *Bind) Stop(ctx context.Context) error {
	b.mu.Lock()
	b.stopping.Store(true)
	b.Pause()
	b.mu.Unlock()
	b.Start() // so that waiting functions find out
	stopped := make(chan struct{})
	go func() {
		b.open.Wait() // until Close at the latest
		close(stopped)
	}()
	select {
	case <-stopped:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop reading the sockets: %w", ctx.Err())
	}
}

// Close implements [conn.Bind].
func (b *Bind) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed != nil {
		close(b.closed)
		b.closed = nil
	}
	return b.Sockets.Close()
}
