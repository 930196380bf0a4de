package tunnel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
)

// socketBuffer is the size in bytes of a socket's buffers.
const socketBuffer = 7 << 20

// bind is how a userspace device sends and receives: two UDP sockets on one port,
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
type bind struct {
	four, six atomic.Pointer[udpSocket] // nil: closed, or no such family here
	batches   sync.Pool                 // of *batch
	paths     paths
	now       func() time.Time
}

var _ conn.Bind = (*bind)(nil)

func newBind() *bind {
	return &bind{now: time.Now, batches: sync.Pool{New: func() any { return newBatch() }}}
}

// udpSocket is the socket of one address family.
type udpSocket struct {
	conn       *net.UDPConn
	batch      batchConn
	maxPayload int
	segment    atomic.Bool // UDP_SEGMENT works
	coalesce   bool        // UDP_GRO is on
	turns      *turns
}

// batchConn is what ipv4.PacketConn and ipv6.PacketConn have in common.
type batchConn interface {
	ReadBatch(messages []ipv6.Message, flags int) (int, error)
	WriteBatch(messages []ipv6.Message, flags int) (int, error)
}

// openAttempts bounds how often a port that is free in one family turns out to be
// taken in the other.
const openAttempts = 100

// Open implements [conn.Bind].
func (b *bind) Open(port uint16) ([]conn.ReceiveFunc, uint16, error) {
	if b.four.Load() != nil || b.six.Load() != nil {
		return nil, 0, conn.ErrBindAlreadyOpen
	}
	var (
		four, six *udpSocket
		err       error
	)
	for range openAttempts {
		if four, six, err = openPair(port); port != 0 || !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}
	if err != nil {
		return nil, 0, err
	}
	var receive []conn.ReceiveFunc
	for _, s := range []*udpSocket{four, six} {
		if s != nil {
			receive = append(receive, (&receiver{socket: s}).receive)
			port = s.port()
		}
	}
	b.four.Store(four)
	b.six.Store(six)
	return receive, port, nil
}

// openPair opens the sockets of both families on one port; 0 is any. A family that
// this host doesn't have has none.
func openPair(port uint16) (four, six *udpSocket, err error) {
	four, err = openSocket("udp4", port)
	if err != nil && !errors.Is(err, unix.EAFNOSUPPORT) {
		return nil, nil, err
	}
	if four != nil {
		port = four.port()
	}
	six, err6 := openSocket("udp6", port)
	switch {
	case err6 == nil, four != nil && errors.Is(err6, unix.EAFNOSUPPORT):
		return four, six, nil
	case four != nil:
		return nil, nil, errors.Join(err6, four.conn.Close())
	}
	return nil, nil, err6
}

func openSocket(network string, port uint16) (*udpSocket, error) {
	s := new(udpSocket)
	// A socket that is closed needs no alarm.
	s.turns = newTurns(time.Now, func(at time.Time) { _ = s.conn.SetReadDeadline(at) })
	cfg := net.ListenConfig{Control: func(network, _ string, raw syscall.RawConn) error {
		var err error
		if controlErr := raw.Control(func(fd uintptr) { err = s.prepare(network, int(fd)) }); controlErr != nil {
			return controlErr
		}
		return err
	}}
	listening, err := cfg.ListenPacket(context.Background(), network, ":"+strconv.Itoa(int(port)))
	if err != nil {
		return nil, err
	}
	udp, ok := listening.(*net.UDPConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("listen: %T is not a UDP socket", listening), listening.Close())
	}
	s.conn = udp
	if network == "udp4" {
		s.batch, s.maxPayload = ipv4.NewPacketConn(udp), maxPayload4
	} else {
		s.batch, s.maxPayload = ipv6.NewPacketConn(udp), maxPayload6
	}
	return s, nil
}

// prepare sets the options of a socket before it gets its port. Those that make it
// only faster may be refused.
func (s *udpSocket) prepare(network string, fd int) error {
	for _, option := range []int{unix.SO_RCVBUF, unix.SO_SNDBUF, unix.SO_RCVBUFFORCE, unix.SO_SNDBUFFORCE} {
		// The latter two go beyond net.core.*mem_max and take NET_ADMIN.
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, socketBuffer)
	}
	_, err := unix.GetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT)
	s.segment.Store(err == nil)
	if unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_GRO, 1) == nil {
		// Kernels before 5.12, where UDP_GRO had faults, can't tell it.
		on, err := unix.GetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_GRO)
		if s.coalesce = err == nil && on == 1; !s.coalesce {
			_ = unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_GRO, 0)
		}
	}
	if network == "udp4" {
		return errors.Join(
			optional("IP_PKTINFO", unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1)),
			// No DF bit: whoever has the narrow link fragments.
			optional("IP_MTU_DISCOVER", unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT)))
	}
	return errors.Join(
		optional("IPV6_RECVPKTINFO", unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)),
		optional("IPV6_V6ONLY", unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1)),
		// Fragment here, by what the link and routers' answers tell.
		optional("IPV6_MTU_DISCOVER", unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_WANT)))
}

func optional(option string, err error) error {
	if err != nil {
		return fmt.Errorf("set %s: %w", option, err)
	}
	return nil
}

func (s *udpSocket) port() uint16 {
	if local, ok := s.conn.LocalAddr().(*net.UDPAddr); ok {
		return uint16(local.Port)
	}
	return 0
}

// Close implements [conn.Bind].
func (b *bind) Close() error {
	var errs []error
	for _, family := range []*atomic.Pointer[udpSocket]{&b.four, &b.six} {
		if s := family.Swap(nil); s != nil {
			errs = append(errs, s.conn.Close())
		}
	}
	return errors.Join(errs...)
}

// SetMark implements [conn.Bind].
func (b *bind) SetMark(mark uint32) error {
	var errs []error
	for _, family := range []*atomic.Pointer[udpSocket]{&b.four, &b.six} {
		s := family.Load()
		if s == nil {
			continue
		}
		raw, err := s.conn.SyscallConn()
		if err == nil {
			err = raw.Control(func(fd uintptr) {
				errs = append(errs, optional("SO_MARK", unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(mark))))
			})
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// BatchSize implements [conn.Bind].
func (*bind) BatchSize() int { return conn.IdealBatchSize }

// ParseEndpoint implements [conn.Bind].
func (*bind) ParseEndpoint(text string) (conn.Endpoint, error) {
	addr, err := netip.ParseAddrPort(text)
	if err != nil {
		return nil, err
	}
	return newBindEndpoint(unmap(addr), source{}), nil
}

// source is the local address of a packet, and its link where the address says
// nothing without. The zero source is none.
type source struct {
	addr  netip.Addr
	index uint32
}

// bindEndpoint is where packets come from and go to. Only whether its source counts
// ever changes, so that it may be handed out for many packets.
type bindEndpoint struct {
	addr    netip.AddrPort
	to      *net.UDPAddr // the same
	from    source
	control []byte // that sends from there, for sendmsg
	chosen  atomic.Bool
}

var _ conn.Endpoint = (*bindEndpoint)(nil)

func newBindEndpoint(addr netip.AddrPort, from source) *bindEndpoint {
	e := &bindEndpoint{addr: addr, to: net.UDPAddrFromAddrPort(addr), from: from, control: from.control()}
	e.chosen.Store(e.control != nil)
	return e
}

// ClearSrc implements [conn.Endpoint]: the kernel chooses the source from now on.
func (e *bindEndpoint) ClearSrc() { e.chosen.Store(false) }

// DstToString implements [conn.Endpoint].
func (e *bindEndpoint) DstToString() string { return e.addr.String() }

// DstIP implements [conn.Endpoint].
func (e *bindEndpoint) DstIP() netip.Addr { return e.addr.Addr() }

// DstToBytes implements [conn.Endpoint].
func (e *bindEndpoint) DstToBytes() []byte {
	b, _ := e.addr.MarshalBinary() // never fails
	return b
}

// SrcIP implements [conn.Endpoint].
func (e *bindEndpoint) SrcIP() netip.Addr {
	if !e.chosen.Load() {
		return netip.Addr{}
	}
	return e.from.addr
}

// SrcToString implements [conn.Endpoint].
func (e *bindEndpoint) SrcToString() string { return e.SrcIP().String() }

// controlRoom is enough for all control messages that are sent or received.
var controlRoom = unix.CmsgSpace(unix.SizeofInet6Pktinfo) + unix.CmsgSpace(4)

// control returns the control message that makes packets leave from s, and nil for
// none.
func (s source) control() []byte {
	switch {
	case s.addr.Is4():
		info := unix.Inet4Pktinfo{Ifindex: int32(s.index), Spec_dst: s.addr.As4()}
		data, _ := binary.Append(nil, binary.NativeEndian, info)
		return appendControl(nil, unix.IPPROTO_IP, unix.IP_PKTINFO, data)
	case s.addr.Is6():
		info := unix.Inet6Pktinfo{Addr: s.addr.As16(), Ifindex: s.index}
		data, _ := binary.Append(nil, binary.NativeEndian, info)
		return appendControl(nil, unix.IPPROTO_IPV6, unix.IPV6_PKTINFO, data)
	}
	return nil
}
