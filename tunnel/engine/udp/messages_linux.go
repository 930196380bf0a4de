package udp

import (
	"encoding/binary"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// message is struct mmsghdr of recvmmsg(2) and sendmmsg(2).
type message struct {
	header unix.Msghdr
	length uint32
}

// exchange calls sendmmsg or recvmmsg without blocking, and returns the number of messages
// sent or received. It bypasses Go's scheduler, which would retake the processor from a call
// of more than 20 µs, as for a message of 64 KiB, which costs more than it gains.
func exchange(call, fd uintptr, messages []message) (int, syscall.Errno) {
	for {
		n, _, errno := unix.RawSyscall6(call, fd, uintptr(unsafe.Pointer(unsafe.SliceData(messages))), uintptr(len(messages)), unix.MSG_DONTWAIT, 0, 0)
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

func vector(b []byte) (v unix.Iovec) {
	v.Base = unsafe.SliceData(b)
	v.SetLen(len(b))
	return v
}

// socketAddress is struct sockaddr_in or sockaddr_in6 (ip(7), ipv6(7)).
type socketAddress [unix.SizeofSockaddrInet6]byte

// size returns the length of the address for the kernel, in bytes.
func (a *socketAddress) size() uint32 {
	if binary.NativeEndian.Uint16(a[:]) == unix.AF_INET {
		return unix.SizeofSockaddrInet4
	}
	return unix.SizeofSockaddrInet6
}

func socketAddressOf(addr netip.AddrPort) (a socketAddress) {
	binary.BigEndian.PutUint16(a[2:], addr.Port())
	if addr.Addr().Is4() {
		binary.NativeEndian.PutUint16(a[:], unix.AF_INET)
		four := addr.Addr().As4()
		copy(a[4:], four[:])
		return a
	}
	binary.NativeEndian.PutUint16(a[:], unix.AF_INET6)
	six := addr.Addr().As16()
	copy(a[8:], six[:])
	binary.NativeEndian.PutUint32(a[24:], zoneIndex(addr.Addr().Zone()))
	return a
}

// addrPort returns the zero AddrPort if a isn't an IP address.
func (a *socketAddress) addrPort() netip.AddrPort {
	port := binary.BigEndian.Uint16(a[2:])
	switch binary.NativeEndian.Uint16(a[:]) {
	case unix.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(a[4:8])), port)
	case unix.AF_INET6:
		addr := netip.AddrFrom16([16]byte(a[8:24])).Unmap()
		if index := binary.NativeEndian.Uint32(a[24:]); index != 0 && addr.Is6() {
			addr = addr.WithZone(strconv.FormatUint(uint64(index), 10))
		}
		return netip.AddrPortFrom(addr, port)
	}
	return netip.AddrPort{}
}

// zoneIndex returns the index of a zone's link, 0 for no zone. A name costs a dump of all links.
func zoneIndex(zone string) uint32 {
	if index, err := strconv.ParseUint(zone, 10, 32); err == nil {
		return uint32(index) // Sending fails if there is no such link.
	}
	if l, err := net.InterfaceByName(zone); err == nil {
		return uint32(l.Index)
	}
	return 0
}

// parseControl returns the address that a message was sent to, and the size of its
// datagrams, 0 for a single datagram.
func parseControl(control []byte) (local source, size int) {
	for len(control) >= unix.CmsgSpace(0) {
		header, data, rest, err := unix.ParseOneSocketControlMessage(control)
		if err != nil {
			return local, size
		}
		control = rest
		switch {
		case header.Level == unix.IPPROTO_UDP && header.Type == unix.UDP_GRO && len(data) >= 4:
			size = int(binary.NativeEndian.Uint32(data))
		case header.Level == unix.IPPROTO_IP && header.Type == unix.IP_PKTINFO && len(data) >= unix.SizeofInet4Pktinfo:
			local.addr = netip.AddrFrom4([4]byte(data[4:8])) // ipi_spec_dst
		case header.Level == unix.IPPROTO_IPV6 && header.Type == unix.IPV6_PKTINFO && len(data) >= unix.SizeofInet6Pktinfo:
			local.addr = netip.AddrFrom16([16]byte(data[:16]))
			if local.addr.IsLinkLocalUnicast() {
				local.index = binary.NativeEndian.Uint32(data[16:])
			}
		}
	}
	return local, size
}

// appendSegmentSize appends the control message with the size of datagrams (UDP_SEGMENT).
func appendSegmentSize(control []byte, size int) []byte {
	var data [2]byte
	binary.NativeEndian.PutUint16(data[:], uint16(size))
	return appendControl(control, unix.IPPROTO_UDP, unix.UDP_SEGMENT, data[:])
}

// appendControl appends a control message to complete control messages.
func appendControl(control []byte, level, kind int32, data []byte) []byte {
	start := len(control)
	for range unix.CmsgSpace(len(data)) {
		control = append(control, 0)
	}
	var header unix.Cmsghdr
	header.Level, header.Type = level, kind
	header.SetLen(unix.CmsgLen(len(data)))
	copy(control[start:], unsafe.Slice((*byte)(unsafe.Pointer(&header)), unix.SizeofCmsghdr))
	copy(control[start+unix.CmsgLen(0):], data)
	return control
}
