//go:build unix

package run

import (
	"net"
	"syscall"
)

// setBacklog has the kernel keep as many connections as backlog says.
func setBacklog(listener *net.TCPListener) {
	// On a socket that listens already it sets the backlog alone; without it there is
	// another one.
	if conn, err := listener.SyscallConn(); err == nil {
		_ = conn.Control(func(fd uintptr) { _ = syscall.Listen(int(fd), backlog) })
	}
}
