package reach

import (
	"context"
	"errors"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// whole is a socket whose datagrams aren't fragmented: they are delivered, rejected as too
// large, or lost.
type whole struct {
	*net.UDPConn
	header int // bytes of IP's and UDP's headers
	mtu    func() int
}

// dialWhole makes such a socket (ip(7) and ipv6(7): IP_MTU_DISCOVER, IP_MTU).
func dialWhole(ctx context.Context, address string) (*whole, error) {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return nil, err
	}
	conn, err := new(net.Dialer).DialContext(ctx, "udp", at(address))
	if err != nil {
		return nil, err
	}
	udp := conn.(*net.UDPConn) // always, for the network "udp"
	raw, err := udp.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	level, discover, option, header := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_MTU, 28
	if ip.Is6() {
		level, discover, option, header = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_MTU, 48
	}
	var set error
	err = raw.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), level, discover, unix.IP_PMTUDISC_DO) })
	if err = errors.Join(err, set); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &whole{UDPConn: udp, header: header, mtu: func() (mtu int) {
		_ = raw.Control(func(fd uintptr) { mtu, _ = unix.GetsockoptInt(int(fd), level, option) })
		// The MTU of loopback exceeds the maximum size of a datagram.
		return min(max(mtu, smallest+header), 1<<16-1)
	}}, nil
}
