package handover

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// pairBuffer is the pair's buffer in bytes: a writer doesn't wait while the reader is briefly
// without processor time.
const pairBuffer = 4 << 20

// Pair returns both ends of a new SEQPACKET pair, one for each engine.
func Pair() (old, fresh *os.File, err error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a pair of sockets: %w", err)
	}
	for _, end := range ends {
		// More than net.core.wmem_max needs CAP_NET_ADMIN. A smaller buffer works, too.
		_ = unix.SetsockoptInt(end, unix.SOL_SOCKET, unix.SO_SNDBUF, pairBuffer)
		_ = unix.SetsockoptInt(end, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, pairBuffer)
	}
	return os.NewFile(uintptr(ends[0]), "old engine"), os.NewFile(uintptr(ends[1]), "new engine"), nil
}

// socketEnd is an [End] on a socket.
type socketEnd struct{ *net.UnixConn }

// try implements [End].
func (e socketEnd) try(message []byte) (wrote bool, err error) {
	err = e.control(func(fd int) error {
		room, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
		if err != nil {
			return err
		}
		used, err := unix.IoctlGetInt(fd, unix.SIOCOUTQ)
		if err != nil || used > room/2 {
			return err
		}
		err = unix.Send(fd, message, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if wrote = err == nil; errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOBUFS) {
			return nil
		}
		return err
	})
	return wrote, err
}

// unread implements [End].
func (e socketEnd) unread() bool {
	n := 0
	err := e.control(func(fd int) (err error) {
		n, err = unix.IoctlGetInt(fd, unix.SIOCINQ)
		return err
	})
	return err == nil && n > 0
}

// control calls f with this end's descriptor.
func (e socketEnd) control(f func(fd int) error) error {
	raw, err := e.SyscallConn()
	if err != nil {
		return err
	}
	controlErr := raw.Control(func(fd uintptr) { err = f(int(fd)) })
	return errors.Join(controlErr, err)
}

// Conn returns the connection that an end of a pair is, and closes the file.
func Conn(end *os.File) (End, error) {
	defer func() { _ = end.Close() }() // The connection has a descriptor of its own.
	c, err := net.FileConn(end)
	if err != nil {
		return nil, fmt.Errorf("use an end of a pair: %w", err)
	}
	if u, ok := c.(*net.UnixConn); ok {
		return socketEnd{u}, nil
	}
	return nil, errors.Join(fmt.Errorf("an end of a pair is a %T", c), c.Close())
}
