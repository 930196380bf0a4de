package nstest

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// ReportDrops makes writes to an IPv4 UDP socket fail with ENOBUFS if the kernel drops the
// packet before the queue of a link, which it doesn't report by default (udp(7), ip(7):
// IP_RECVERR). One cause is outside of a test: all network namespaces of a machine share
// the size of the neighbour table (arp(7): gc_thresh3), and if it is full, packets to links
// such as TUN are dropped.
func ReportDrops(socket syscall.Conn) error {
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	var setErr error
	err = raw.Control(func(fd uintptr) {
		setErr = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_RECVERR, 1)
	})
	if err == nil {
		err = setErr
	}
	if err != nil {
		return fmt.Errorf("set IP_RECVERR: %w", err)
	}
	return nil
}
