package nstest

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// ReportDrops has writing to a UDP socket of IPv4 fail with ENOBUFS where the kernel
// throws the packet away before it is in the queue of a link, which it doesn't say
// otherwise (udp(7), ip(7): IP_RECVERR). One reason for that has nothing to do with the
// namespaces of a test: they share the table of neighbours with all others of the machine
// (arp(7): gc_thresh3), and where that is full, a link without addresses of its own kind,
// as a TUN link, has no place in it.
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
		return fmt.Errorf("have drops reported: %w", err)
	}
	return nil
}
