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

// Sizes in bytes of a socket's buffers. The kernel doubles them for its overhead: a packet
// of 1,452 bytes counts as 2,304. So the receive buffer holds 10,000 of these packets, those
// of a second without processor time at 10,000 packets a second.
const (
	receiveBuffer = 12 << 20
	sendBuffer    = 7 << 20
)

// Config is how a bind gets its sockets and shares them with another process. With the zero
// value they are its own.
type Config struct {
	// Inherited are sockets of a bind of an earlier process, with the packets that have
	// arrived since. The bind owns them. The first Open of a port other than 0 uses those
	// bound to that port instead of new sockets, and closes the others.
	Inherited []*os.File
	// Opened, if not nil, is called before Open returns, with the port and a
	// duplicate of each socket. The function owns the duplicates. As long as one is open,
	// the port is in use and the kernel queues arriving packets.
	Opened func(port uint16, sockets []*os.File)
	// Closed, if not nil, is called before Close of an open bind returns. To free the port,
	// it must close the duplicates of the sockets.
	Closed func()
}

// Bind is a [conn.Bind] of two UDP sockets on one port, or of one on a host with only one
// address family. It differs from [conn.StdNetBind] in what a mesh over unknown networks
// needs:
//
//   - Packets larger than the path MTU arrive, as fragments, like those of kernel
//     WireGuard. Routers may fragment IPv4 packets, so that this doesn't depend on ICMP
//     errors; IPv6 packets are fragmented by this host. UDP_SEGMENT never fragments, so
//     after it has failed, packets to that address are sent one by one for a while.
//   - A message that the kernel refuses doesn't prevent sending the rest of its batch.
//   - The port that Open returns is the real one, also on a host without IPv6.
//   - wireguard-go gets handshake messages one at a time, see [serializer].
//   - Packets are answered from the address that they were sent to, as long as this host
//     has it. The route chooses the link: wireguard-go monitors routes only for its own
//     bind, so no link is pinned here.
//
// A wrapper of StdNetBind couldn't do the last two, nor let routers fragment: its sockets
// and the source addresses of its endpoints are private.
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
		inherited = inheritedSockets(b.cfg.Inherited, port)
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
			_ = file.Close() // a duplicate, so nothing is lost
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

// Pause makes the receive functions return os.ErrDeadlineExceeded without waiting, after the packets
// that the sockets have: a busy machine may not have read for a while. Packets that arrive later
// stay in the sockets.
func (b *Bind) Pause() {
	for _, s := range []*socket{b.four.Load(), b.six.Load()} {
		if s != nil {
			s.serializer.pause()
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
