package testbed

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// Protocol and type numbers of IANA that the classification needs.
const (
	etherIPv4 = 0x0800
	etherIPv6 = 0x86dd
	// etherMarker is the first of the types for local experiments (IEEE 802).
	etherMarker = 0x88b5

	protocolTCP      = 6
	protocolUDP      = 17
	protocolFragment = 44
)

const etherHeader = 14

// packet is the headers of a frame. Ports are zero for other protocols than TCP and UDP, and
// for later fragments.
type packet struct {
	ether uint16
	// sender and receiver are the numbers of machines on the underlay.
	sender, receiver uint16
	src, dst         netip.AddrPort
	protocol         uint8
	payload          []byte // of TCP and UDP: for TCP its header from the ports on
}

// parse reads the headers of an Ethernet frame, which may be cut short. ok is
// false for what isn't IP or is malformed.
func parse(frame []byte) (p packet, ok bool) {
	if len(frame) < etherHeader {
		return packet{}, false
	}
	p.receiver, p.sender = binary.BigEndian.Uint16(frame[2:]), binary.BigEndian.Uint16(frame[8:])
	p.ether = binary.BigEndian.Uint16(frame[12:])
	switch p.ether {
	case etherIPv4:
		return parseIPv4(p, frame[etherHeader:])
	case etherIPv6:
		return parseIPv6(p, frame[etherHeader:])
	default:
		return p, false
	}
}

// parseIPv4 follows RFC 791.
func parseIPv4(p packet, b []byte) (packet, bool) {
	if len(b) < 20 {
		return p, false
	}
	header := int(b[0]&0x0f) * 4
	if header < 20 || len(b) < header {
		return p, false
	}
	src, _ := netip.AddrFromSlice(b[12:16])
	dst, _ := netip.AddrFromSlice(b[16:20])
	p.src, p.dst = netip.AddrPortFrom(src, 0), netip.AddrPortFrom(dst, 0)
	p.protocol = b[9]
	if binary.BigEndian.Uint16(b[6:])&0x1fff != 0 {
		return p, true
	}
	return p.transport(b[header:]), true
}

// parseIPv6 follows RFC 8200. Of the extension headers it knows the fragment
// header, the only one that Linux puts on the packets in question.
func parseIPv6(p packet, b []byte) (packet, bool) {
	if len(b) < 40 {
		return p, false
	}
	src, _ := netip.AddrFromSlice(b[8:24])
	dst, _ := netip.AddrFromSlice(b[24:40])
	p.src, p.dst = netip.AddrPortFrom(src, 0), netip.AddrPortFrom(dst, 0)
	p.protocol = b[6]
	b = b[40:]
	if p.protocol == protocolFragment {
		if len(b) < 8 {
			return p, true
		}
		p.protocol = b[0]
		if binary.BigEndian.Uint16(b[2:])&0xfff8 != 0 {
			return p, true
		}
		b = b[8:]
	}
	return p.transport(b), true
}

// transport reads the ports of TCP (RFC 9293) and UDP (RFC 768), which stand in
// the same place.
func (p packet) transport(b []byte) packet {
	if p.protocol != protocolTCP && p.protocol != protocolUDP || len(b) < 8 {
		return p
	}
	p.src = netip.AddrPortFrom(p.src.Addr(), binary.BigEndian.Uint16(b))
	p.dst = netip.AddrPortFrom(p.dst.Addr(), binary.BigEndian.Uint16(b[2:]))
	p.payload = b
	if p.protocol == protocolUDP {
		p.payload = b[8:]
	}
	return p
}

// wireguard says whether a UDP payload is a WireGuard message: a type from 1 to
// 4 and three zero bytes (section 5.4 of the WireGuard paper).
func (p packet) wireguard() bool {
	b := p.payload
	return p.protocol == protocolUDP && len(b) >= 4 &&
		b[0] >= 1 && b[0] <= 4 && b[1] == 0 && b[2] == 0 && b[3] == 0
}

func (p packet) String() string {
	protocol := fmt.Sprintf("protocol %d", p.protocol)
	switch p.protocol {
	case protocolTCP:
		protocol = "tcp"
	case protocolUDP:
		protocol = "udp"
	case 1, 58:
		protocol = "icmp"
	}
	return fmt.Sprintf("%s > %s %s", p.src, p.dst, protocol)
}
