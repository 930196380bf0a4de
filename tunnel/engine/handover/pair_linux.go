package handover

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// pairBuffer is the size in bytes of what may be in the pair, so that the one doesn't
// wait when the other one is put aside for a moment.
const pairBuffer = 4 << 20

// Pair returns both ends of a new SEQPACKET pair, to be given to two engines.
func Pair() (giver, taker *os.File, err error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a pair of sockets: %w", err)
	}
	for _, end := range ends {
		// Beyond net.core.wmem_max it takes NET_ADMIN; with less it works, too.
		_ = unix.SetsockoptInt(end, unix.SOL_SOCKET, unix.SO_SNDBUF, pairBuffer)
		_ = unix.SetsockoptInt(end, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, pairBuffer)
	}
	return os.NewFile(uintptr(ends[0]), "giver"), os.NewFile(uintptr(ends[1]), "taker"), nil
}

// Conn returns the connection that an end of a pair is, and closes the file.
func Conn(end *os.File) (*net.UnixConn, error) {
	defer func() { _ = end.Close() }() // The connection has a descriptor of its own.
	c, err := net.FileConn(end)
	if err != nil {
		return nil, fmt.Errorf("use an end of a pair: %w", err)
	}
	if u, ok := c.(*net.UnixConn); ok {
		return u, nil
	}
	return nil, errors.Join(fmt.Errorf("an end of a pair is a %T", c), c.Close())
}
