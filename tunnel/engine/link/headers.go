package link

import "encoding/binary"

// Sizes in bytes of headers, and offsets of their fields (RFC 791, RFC 8200, RFC 9293,
// RFC 768).
const (
	ipv4Size, ipv6Size = 20, 40
	tcpSize, udpSize   = 20, 8

	ipv4Length, ipv4ID, ipv4Fragment = 2, 4, 6
	ipv4TTL, ipv4Protocol            = 8, 9
	ipv4Checksum, ipv4Source         = 10, 12
	ipv6Length, ipv6Next, ipv6Source = 4, 6, 8

	tcpSequence, tcpAck, tcpOffset = 4, 8, 12
	tcpFlags, tcpWindow            = 13, 14
	tcpChecksum, tcpUrgent         = 16, 18
	udpLength, udpChecksum         = 4, 6

	protocolTCP, protocolUDP = 6, 17
)

// Flags of TCP.
const (
	flagFIN = 1 << iota
	flagSYN
	flagRST
	flagPSH
	flagACK
	flagURG
	flagECE
	flagCWR
)

const dontFragment = 0x4000 // of ipv4Fragment

func get16(b []byte, at int) uint16 { return binary.BigEndian.Uint16(b[at:]) }
func get32(b []byte, at int) uint32 { return binary.BigEndian.Uint32(b[at:]) }

func put16(b []byte, at int, n uint16) { binary.BigEndian.PutUint16(b[at:], n) }
func put32(b []byte, at int, n uint32) { binary.BigEndian.PutUint32(b[at:], n) }

// putSum stores the checksum of a sum. It stores 0 as 0xffff, because 0 means "no checksum"
// in UDP.
func putSum(b []byte, at int, total uint64) {
	checksum := ^fold(total)
	if checksum == 0 {
		checksum = 0xffff
	}
	binary.NativeEndian.PutUint16(b[at:], checksum)
}

// addressSum is the sum of a pseudo header (RFC 9293, 3.1; RFC 8200, 8.1) without the
// length, the only field that differs between packets of a flow.
func addressSum(packet []byte, protocol byte) uint64 {
	if packet[0]>>4 == 4 {
		return sum(packet[ipv4Source:ipv4Size], word(uint16(protocol)))
	}
	return sum(packet[ipv6Source:ipv6Size], word(uint16(protocol)))
}
