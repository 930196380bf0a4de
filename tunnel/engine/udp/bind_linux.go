package udp

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
)

// Sizes in bytes of a socket's buffers. The kernel takes twice as much for what a packet
// takes besides: one of 1,452 bytes counts as 2,304. So there is room for what comes in a
// second at 10,000 of these a second, while this process doesn't get to run.
const (
	receiveBuffer = 12 << 20
	sendBuffer    = 7 << 20
)

// Config says where a bind's sockets come from and who else has them. Its zero value
// is that of a bind whose sockets live and end with it.
type Config struct {
	// Inherited are sockets that a bind of an earlier process had opened, with what
	// arrived meanwhile in them. The bind owns them: those that are bound to the
	// port that it opens are used, instead of new ones, and the others are closed.
	// A bind that opens any port, 0, leaves them for the next time.
	Inherited []*os.File
	// Opened, if not nil, is called before Open returns, with the port and a
	// duplicate of each socket, which belong to the function. As long as a
	// duplicate is open the port is taken and the kernel keeps what arrives.
	Opened func(port uint16, sockets []*os.File)
	// Closed, if not nil, is called before Close returns when there was something
	// to close. Whoever has duplicates of the sockets has to close them by then for
	// the port to be free.
	Closed func()
}

// Bind is how a userspace device sends and receives: two UDP sockets on one port,
// or one on a host that has only one address family. It differs from
// [conn.StdNetBind] in what a mesh over unknown networks needs:
//
//   - Packets larger than the path's MTU arrive, fragmented, as those of kernel
//     WireGuard do. IPv4 packets may be fragmented by routers, so that nothing
//     depends on their answers; IPv6 packets only by this host. A batch that
//     UDP_SEGMENT can't send, because it never fragments, is sent as single
//     packets, and others to that address as well for a while.
//   - A message that is refused takes no other of its batch with it.
//   - The port that Open reports is the real one, also where there is no IPv6.
//   - wireguard-go gets one handshake message after the other, see [turns].
//   - What arrives is answered from the address that it was sent to, by whatever
//     link the routes lead to, until this host doesn't have that address any
//     more. wireguard-go follows routes only for its own bind, so no link is
//     chosen here.
//
// Wrapping StdNetBind can't do the last two, nor let routers fragment: its sockets
// and its endpoints' sources are out of reach.
type Bind struct {
	cfg       Config
	four, six atomic.Pointer[socket] // nil: closed, or no such family here
	batches   sync.Pool              // of *batch
	paths     paths
	now       func() time.Time
}

var _ conn.Bind = (*Bind)(nil)

// New returns a bind without sockets, see [Bind.Open].
func New(cfg Config) *Bind {
	return &Bind{cfg: cfg, now: time.Now, batches: sync.Pool{New: func() any { return newBatch() }}}
}

// Open implements [conn.Bind].
func (b *Bind) Open(port uint16) ([]conn.ReceiveFunc, uint16, error) {
	if b.four.Load() != nil || b.six.Load() != nil {
		return nil, 0, conn.ErrBindAlreadyOpen
	}
	var inherited []*net.UDPConn
	if port != 0 {
		inherited = adopt(b.cfg.Inherited, port)
		b.cfg.Inherited = nil
	}
	four, six, err := openPair(port, inherited)
	if err != nil {
		return nil, 0, err
	}
	var (
		receive []conn.ReceiveFunc
		shared  []*os.File
	)
	for _, s := range []*socket{four, six} {
		if s == nil {
			continue
		}
		receive = append(receive, newReceiver(s).receive)
		port = s.port()
		if b.cfg.Opened != nil {
			file, dupErr := s.duplicate()
			err = errors.Join(err, dupErr)
			shared = append(shared, file)
		}
	}
	if err != nil {
		for _, file := range shared {
			_ = file.Close() // There is no more in it than in the socket.
		}
		return nil, 0, errors.Join(err, closeSockets(four, six))
	}
	if b.cfg.Opened != nil {
		b.cfg.Opened(port, shared)
	}
	b.four.Store(four)
	b.six.Store(six)
	return receive, port, nil
}

// Close implements [conn.Bind].
func (b *Bind) Close() error {
	four, six := b.four.Swap(nil), b.six.Swap(nil)
	if four == nil && six == nil {
		return nil
	}
	err := closeSockets(four, six)
	if b.cfg.Closed != nil {
		b.cfg.Closed()
	}
	return err
}

// SetMark implements [conn.Bind].
func (b *Bind) SetMark(mark uint32) error {
	var errs []error
	for _, s := range []*socket{b.four.Load(), b.six.Load()} {
		if s == nil {
			continue
		}
		errs = append(errs, control(s.conn, func(fd int) error {
			return optional("SO_MARK", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(mark)))
		}))
	}
	return errors.Join(errs...)
}

// Pause makes the functions that receive return os.ErrDeadlineExceeded, at once and
// each time, when they have nothing left that they had read before, or makes them read
// again. What arrives meanwhile stays in the sockets. A bind that is opened reads.
func (b *Bind) Pause(paused bool) {
	for _, s := range []*socket{b.four.Load(), b.six.Load()} {
		if s != nil {
			s.turns.pause(paused)
		}
	}
}

// BatchSize implements [conn.Bind].
func (*Bind) BatchSize() int { return atOnce }

// ParseEndpoint implements [conn.Bind].
func (*Bind) ParseEndpoint(text string) (conn.Endpoint, error) {
	addr, err := netip.ParseAddrPort(text)
	if err != nil {
		return nil, err
	}
	return newEndpoint(unmap(addr), source{}), nil
}
