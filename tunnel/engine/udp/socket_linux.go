package udp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// socket is the socket of one address family.
type socket struct {
	conn       *net.UDPConn
	raw        syscall.RawConn // the same
	maxPayload int
	segment    atomic.Bool // UDP_SEGMENT works
	coalesce   bool        // UDP_GRO is on
	serializer *serializer
}

// openAttempts bounds the attempts to find a port that is free in both families.
const openAttempts = 100

// openPair opens the sockets of both families on one port; 0 is any. It uses the inherited
// sockets, bound to that port, instead of new ones. The socket of a family that this host
// lacks is nil. On error it closes all inherited sockets.
func openPair(port uint16, inherited []*net.UDPConn) (four, six *socket, err error) {
	for range openAttempts {
		if four, six, err = tryPair(port, inherited); port != 0 || !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}
	return four, six, err
}

func tryPair(port uint16, inherited []*net.UDPConn) (four, six *socket, err error) {
	find := func(network string) (found *net.UDPConn) {
		for i, c := range inherited {
			if c != nil && networkOf(c) == network && found == nil {
				found, inherited[i] = c, nil
			}
		}
		return found
	}
	defer func() {
		for _, c := range inherited {
			if c != nil {
				_ = c.Close() // a second one of a family, or one of a family that wasn't opened
			}
		}
	}()
	four, err = openSocket("udp4", port, find("udp4"))
	if err != nil && !errors.Is(err, unix.EAFNOSUPPORT) {
		return nil, nil, err
	}
	if four != nil {
		port = four.port()
	}
	six, err6 := openSocket("udp6", port, find("udp6"))
	switch {
	case err6 == nil, four != nil && errors.Is(err6, unix.EAFNOSUPPORT):
		return four, six, nil
	case four != nil:
		return nil, nil, errors.Join(err6, four.conn.Close())
	}
	return nil, nil, err6
}

// openSocket opens a socket, or uses the inherited one if that isn't nil.
func openSocket(network string, port uint16, inherited *net.UDPConn) (*socket, error) {
	s := &socket{conn: inherited}
	// The error is that of a closed socket, which needs no alarm.
	s.serializer = newSerializer(time.Now, func(at time.Time) { _ = s.conn.SetReadDeadline(at) })
	if inherited == nil {
		if err := s.listen(network, port); err != nil {
			return nil, err
		}
	} else if err := control(inherited, s.prepare); err != nil {
		return nil, errors.Join(err, inherited.Close())
	}
	s.maxPayload = maxPayload6
	if network == "udp4" {
		s.maxPayload = maxPayload4
	}
	var err error
	if s.raw, err = s.conn.SyscallConn(); err != nil {
		return nil, errors.Join(err, s.conn.Close())
	}
	return s, nil
}

func (s *socket) listen(network string, port uint16) error {
	cfg := net.ListenConfig{Control: func(network, _ string, raw syscall.RawConn) error {
		var err error
		controlErr := raw.Control(func(fd uintptr) {
			err = errors.Join(s.prepare(int(fd)), restrict(network, int(fd)))
		})
		return errors.Join(controlErr, err)
	}}
	listening, err := cfg.ListenPacket(context.Background(), network, ":"+strconv.Itoa(int(port)))
	if err != nil {
		return err
	}
	udp, ok := listening.(*net.UDPConn)
	if !ok {
		return errors.Join(fmt.Errorf("listen: %T is not a UDP socket", listening), listening.Close())
	}
	s.conn = udp
	return nil
}

// prepare sets optional socket options for performance.
func (s *socket) prepare(fd int) error {
	for _, buffer := range []struct{ option, size int }{
		{unix.SO_RCVBUF, receiveBuffer},
		{unix.SO_SNDBUF, sendBuffer},
		// These may exceed net.core.*mem_max, and need CAP_NET_ADMIN.
		{unix.SO_RCVBUFFORCE, receiveBuffer},
		{unix.SO_SNDBUFFORCE, sendBuffer},
	} {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, buffer.option, buffer.size)
	}
	_, err := unix.GetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT)
	s.segment.Store(err == nil)
	if unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_GRO, 1) == nil {
		// UDP_GRO has faults in kernels before 5.12, which are recognized by this error.
		on, err := unix.GetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_GRO)
		if s.coalesce = err == nil && on == 1; !s.coalesce {
			_ = unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_GRO, 0)
		}
	}
	return nil
}

// restrict sets the required options of a socket, before it is bound.
func restrict(network string, fd int) error {
	if network == "udp4" {
		return errors.Join(
			optional("IP_PKTINFO", unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1)),
			// No DF bit: routers may fragment.
			optional("IP_MTU_DISCOVER", unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT)))
	}
	return errors.Join(
		optional("IPV6_RECVPKTINFO", unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)),
		optional("IPV6_V6ONLY", unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1)),
		// Fragment on this host, by the path MTU.
		optional("IPV6_MTU_DISCOVER", unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_WANT)))
}

func optional(option string, err error) error {
	if err != nil {
		return fmt.Errorf("set %s: %w", option, err)
	}
	return nil
}

// control calls f with the socket's descriptor.
func control(c *net.UDPConn, f func(fd int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	controlErr := raw.Control(func(fd uintptr) { err = f(int(fd)) })
	return errors.Join(controlErr, err)
}

// inheritedSockets returns the UDP sockets among the files that are bound to a port, and
// closes the others and the files.
func inheritedSockets(files []*os.File, port uint16) (sockets []*net.UDPConn) {
	for _, file := range files {
		packets, err := net.FilePacketConn(file)
		_ = file.Close() // The socket has a descriptor of its own.
		if err != nil {
			continue
		}
		c, ok := packets.(*net.UDPConn)
		if !ok || portOf(c) != port {
			_ = packets.Close() // The device no longer uses its port.
			continue
		}
		sockets = append(sockets, c)
	}
	return sockets
}

// duplicate returns another descriptor of the socket.
func (s *socket) duplicate() (file *os.File, err error) {
	err = control(s.conn, func(fd int) error {
		// Not UDPConn.File: its Fd makes the socket blocking for all processes that share
		// it.
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("duplicate socket: %w", err)
		}
		file = os.NewFile(uintptr(dup), "udp")
		return nil
	})
	return file, err
}

func (s *socket) port() uint16 { return portOf(s.conn) }

func portOf(c *net.UDPConn) uint16 {
	if local, ok := c.LocalAddr().(*net.UDPAddr); ok {
		return uint16(local.Port)
	}
	return 0
}

// networkOf returns udp4 or udp6.
func networkOf(c *net.UDPConn) string {
	if local, ok := c.LocalAddr().(*net.UDPAddr); ok && local.IP.To4() != nil {
		return "udp4"
	}
	return "udp6"
}

// closeSockets closes those that aren't nil.
func closeSockets(sockets ...*socket) error {
	var errs []error
	for _, s := range sockets {
		if s != nil {
			errs = append(errs, s.conn.Close())
		}
	}
	return errors.Join(errs...)
}
