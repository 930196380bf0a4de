//go:build unix

package run

import (
	"net"
	"syscall"
)

// setBacklog sets the listen backlog of a socket.
func setBacklog(listener *net.TCPListener) {
	// listen(2) on a listening socket only changes the backlog. An error leaves the default.
	if conn, err := listener.SyscallConn(); err == nil {
		_ = conn.Control(func(fd uintptr) { _ = syscall.Listen(int(fd), backlog) })
	}
}
