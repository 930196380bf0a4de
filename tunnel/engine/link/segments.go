package link

import (
	"encoding/binary"
	"errors"
)

// maxHeaders bounds the headers of a frame, in bytes. IPv4's and TCP's have at most 60 each;
// the rest is enough for IPv6 extension headers.
const maxHeaders = 256

var errMalformed = errors.New("malformed frame")

// segmentation splits a frame that the kernel didn't segment (TSO, USO). Each packet has
// the frame's headers, except these fields:
//
//	IPv4 length, IPv6 length, UDP length  of this packet
//	IPv4 identification                   of the previous packet, plus 1
//	TCP sequence number                   of the previous packet, plus its payload's length
//	TCP FIN, PSH                          only in the last packet
//	TCP CWR                               only in the first packet (RFC 3168, 6.1.2)
//	checksums                             of this packet
type segmentation struct {
	headers   [maxHeaders]byte
	size      int // of headers
	transport int // where TCP's or UDP's header begins
	segment   int // bytes of payload in each packet but the last
	udp, six  bool
	checksums bool   // of UDP; TCP always has them
	ipSum     uint64 // of the IPv4 header, without the fields that differ
	sum       uint64 // of pseudo header and transport header, without the fields that differ
	sequence  uint32
	id        uint16
	flags     byte
	count     int // packets so far
}

// begin parses the headers of a frame of length bytes. frame has at least its headers.
func (s *segmentation) begin(v virtio, frame []byte, length int) error {
	if len(frame) < ipv4Size || v.segment == 0 {
		return errMalformed
	}
	kind := v.kind &^ gsoECN
	s.six = frame[0]>>4 == 6
	switch {
	case frame[0]>>4 == 4 && (kind == gsoTCP4 || kind == gsoUDP):
		s.transport = int(frame[0]&0xf) * 4
	case s.six && (kind == gsoTCP6 || kind == gsoUDP):
		s.transport = ipv6Size
	default:
		return errMalformed
	}
	s.udp = kind == gsoUDP
	partial := v.flags&needsChecksum != 0
	if partial {
		// IPv6 extension headers.
		s.transport = max(s.transport, v.checksumStart)
	}
	least, protocol, checksumAt := tcpSize, byte(protocolTCP), tcpChecksum
	if s.udp {
		least, protocol, checksumAt = udpSize, protocolUDP, udpChecksum
	}
	s.size = s.transport + least
	if s.transport < ipv4Size || s.six && s.transport < ipv6Size || s.size > len(frame) ||
		partial && (v.checksumStart != s.transport || v.checksumOffset != checksumAt) {
		return errMalformed
	}
	if !s.udp {
		offset := int(frame[s.transport+tcpOffset]>>4) * 4
		s.size = s.transport + offset
		if offset < tcpSize || s.size > len(frame) {
			return errMalformed
		}
	}
	if s.size > maxHeaders || s.size >= length {
		return errMalformed
	}
	copy(s.headers[:s.size], frame)
	s.segment, s.count = v.segment, 0
	s.prepare(partial, protocol, checksumAt, length)
	return nil
}

// prepare sums the fields that are the same in all packets, and clears the others.
func (s *segmentation) prepare(partial bool, protocol byte, checksumAt, length int) {
	transport := s.headers[s.transport:s.size]
	stored := uint64(binary.NativeEndian.Uint16(transport[checksumAt:]))
	s.checksums = !s.udp || partial || stored != 0
	if partial {
		// stored is the sum of the whole frame's pseudo header.
		s.sum = stored + uint64(^fold(word(uint16(length-s.transport))))
	} else {
		s.sum = addressSum(s.headers[:s.size], protocol)
	}
	binary.NativeEndian.PutUint16(transport[checksumAt:], 0)
	if s.udp {
		put16(transport, udpLength, 0)
	} else {
		s.sequence = get32(transport, tcpSequence)
		s.flags = transport[tcpFlags]
		put32(transport, tcpSequence, 0)
		transport[tcpFlags] = 0
	}
	s.sum = uint64(fold(sum(transport, s.sum)))
	if !s.six {
		s.id = get16(s.headers[:], ipv4ID)
		put16(s.headers[:], ipv4Length, 0)
		put16(s.headers[:], ipv4ID, 0)
		put16(s.headers[:], ipv4Checksum, 0)
		s.ipSum = uint64(fold(sum(s.headers[:s.transport], 0)))
	}
}

// put writes the headers of the next packet before its payload.
func (s *segmentation) put(packet []byte, last bool) {
	copy(packet, s.headers[:s.size])
	if s.six {
		put16(packet, ipv6Length, uint16(len(packet)-ipv6Size))
	} else {
		id := s.id + uint16(s.count)
		put16(packet, ipv4Length, uint16(len(packet)))
		put16(packet, ipv4ID, id)
		checksum := ^fold(s.ipSum + word(uint16(len(packet))) + word(id))
		binary.NativeEndian.PutUint16(packet[ipv4Checksum:], checksum)
	}
	transport, length := packet[s.transport:], uint16(len(packet)-s.transport)
	total := s.sum + word(length)
	if s.udp {
		put16(transport, udpLength, length)
		if s.checksums {
			putSum(transport, udpChecksum, sum(packet[s.size:], total+word(length)))
		}
	} else {
		flags := s.flags
		if s.count > 0 {
			flags &^= flagCWR
		}
		if !last {
			flags &^= flagFIN | flagPSH
		}
		put32(transport, tcpSequence, s.sequence)
		transport[tcpFlags] = flags
		s.sequence += uint32(len(packet) - s.size)
		total += long(get32(transport, tcpSequence)) + word(uint16(flags))
		putSum(transport, tcpChecksum, sum(packet[s.size:], total))
	}
	s.count++
}

// finish completes a packet's checksum that the kernel left partial. It ignores a virtio
// header that doesn't fit the packet.
func finish(v virtio, packet []byte) {
	at := v.checksumStart + v.checksumOffset
	if v.flags&needsChecksum == 0 || at+2 > len(packet) {
		return
	}
	// The checksum's field has the pseudo header's sum.
	putSum(packet, at, sum(packet[v.checksumStart:], 0))
}
