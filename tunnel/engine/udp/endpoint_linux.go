package udp

import (
	"encoding/binary"
	"net/netip"
	"sync/atomic"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
)

// source is the local address of a packet, with the link's index for link-local addresses.
// The zero source is none.
type source struct {
	addr  netip.Addr
	index uint32
}

// endpoint is a remote address, with the local address to send from. Only chosen ever
// changes, so many packets share an endpoint.
type endpoint struct {
	addr    netip.AddrPort
	to      socketAddress // addr in the kernel's form
	from    source
	control []byte      // makes sendmsg send from it
	chosen  atomic.Bool // send from it
}

var _ conn.Endpoint = (*endpoint)(nil)

func newEndpoint(addr netip.AddrPort, from source) *endpoint {
	e := &endpoint{addr: addr, to: socketAddressOf(addr), from: from, control: from.control()}
	e.chosen.Store(e.control != nil)
	return e
}

// ClearSrc implements [conn.Endpoint]: the kernel chooses the source from now on.
func (e *endpoint) ClearSrc() { e.chosen.Store(false) }

// DstToString implements [conn.Endpoint].
func (e *endpoint) DstToString() string { return e.addr.String() }

// DstIP implements [conn.Endpoint].
func (e *endpoint) DstIP() netip.Addr { return e.addr.Addr() }

// DstToBytes implements [conn.Endpoint].
func (e *endpoint) DstToBytes() []byte {
	b, _ := e.addr.MarshalBinary() // never fails
	return b
}

// SrcIP implements [conn.Endpoint].
func (e *endpoint) SrcIP() netip.Addr {
	if !e.chosen.Load() {
		return netip.Addr{}
	}
	return e.from.addr
}

// SrcToString implements [conn.Endpoint].
func (e *endpoint) SrcToString() string { return e.SrcIP().String() }

// controlSize is the size in bytes of all control messages of a sent or received message.
var controlSize = unix.CmsgSpace(unix.SizeofInet6Pktinfo) + unix.CmsgSpace(4)

// control returns the control message that makes sendmsg send from s, nil for the zero
// source.
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

// unmap converts an IPv4-mapped IPv6 address to the IPv4 address.
func unmap(addr netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
}
