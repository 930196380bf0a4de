package link

import (
	"bytes"
	"encoding/binary"
	"slices"
)

// joined is a frame of one packet, or of several packets of one flow. Segmentation of the
// frame makes the same packets again (see [segmentation]), except the identification of
// IPv4 packets that mustn't be fragmented, which has no meaning (RFC 6864).
type joined struct {
	first   flow
	packets []int // their numbers in the batch, in order
	length  int   // bytes, with the headers of the first
	next    uint32
	id      uint16
	closed  bool // nothing is appended any more
	flags   byte // of the last packet
}

// flow has the header fields that identify a packet's flow. The zero flow is that of a
// packet without a known flow, which isn't joined.
type flow struct {
	addresses [32]byte
	ports     uint32
	headers   int // bytes
	transport int // where TCP's or UDP's header begins
	udp, six  bool
	alone     bool // the packet isn't joined, and later packets of the flow aren't sent before it
}

const (
	// maxOpen bounds the frames that are compared with each packet.
	maxOpen = 8
	// maxDatagrams is UDP_MAX_SEGMENTS in kernels before 6.9.
	maxDatagrams = 64
)

// joining joins the packets of a batch to frames. Packets of one flow stay in order.
type joining struct {
	frames []joined
	open   []int // indices of frames that aren't closed, at most maxOpen
	spare  [][]int
}

// join returns the frames of packets. They are valid until the next call.
func (j *joining) join(packets [][]byte, offset int, joinUDP bool) []joined {
	for _, f := range j.frames {
		j.spare = append(j.spare, f.packets[:0])
	}
	j.frames, j.open = j.frames[:0], j.open[:0]
	for i, buf := range packets {
		packet := buf[offset:]
		f, ok := flowOf(packet)
		if ok && f.udp && !joinUDP {
			ok = false
		}
		if ok && j.add(f, i, packets, offset) {
			continue
		}
		j.begin(f, ok, i, packet)
	}
	return j.frames
}

// add appends a packet to the open frame of its flow, if it continues that. Otherwise it
// closes the frame, so that later packets of the flow don't overtake this one.
func (j *joining) add(f flow, i int, packets [][]byte, offset int) bool {
	for at, number := range j.open {
		frame := &j.frames[number]
		if frame.first.ports != f.ports || frame.first.udp != f.udp || frame.first.addresses != f.addresses {
			continue
		}
		packet := packets[i][offset:]
		if !f.alone && frame.continuedBy(&f, packet, packets[frame.packets[0]][offset:]) {
			frame.append(&f, i, packet, len(packets[frame.packets[0]])-offset)
			if !frame.closed {
				return true
			}
			j.open = slices.Delete(j.open, at, at+1)
			return true
		}
		j.open = slices.Delete(j.open, at, at+1)
		return false
	}
	return false
}

func (j *joining) begin(f flow, ok bool, i int, packet []byte) {
	var numbers []int
	if last := len(j.spare) - 1; last >= 0 {
		numbers, j.spare = j.spare[last], j.spare[:last]
	}
	frame := joined{first: f, packets: append(numbers, i), length: len(packet)}
	if ok && !f.alone {
		frame.note(&f, packet)
	} else {
		frame.closed = true
	}
	j.frames = append(j.frames, frame)
	if !frame.closed {
		if len(j.open) == maxOpen {
			j.open = slices.Delete(j.open, 0, 1)
		}
		j.open = append(j.open, len(j.frames)-1)
	}
}

// continuedBy reports whether a packet of the same flow can be appended to the frame. first
// is the frame's first packet.
func (frame *joined) continuedBy(f *flow, packet, first []byte) bool {
	payload := len(packet) - f.headers
	if f.headers != frame.first.headers || payload > len(first)-f.headers || frame.length+payload > maxFrame {
		return false
	}
	if f.six {
		// Version, class and flow label; hop limit.
		if get32(packet, 0) != get32(first, 0) || packet[7] != first[7] {
			return false
		}
	} else if get16(packet, 0) != get16(first, 0) || get16(packet, ipv4Fragment) != get16(first, ipv4Fragment) ||
		packet[ipv4TTL] != first[ipv4TTL] ||
		get16(packet, ipv4Fragment) != dontFragment && get16(packet, ipv4ID) != frame.id {
		return false
	}
	if f.udp {
		return len(frame.packets) < maxDatagrams
	}
	a, b := packet[f.transport:f.headers], first[f.transport:f.headers]
	return get32(a, tcpSequence) == frame.next &&
		get32(a, tcpAck) == get32(b, tcpAck) &&
		a[tcpOffset] == b[tcpOffset] && a[tcpFlags]&^flagPSH == b[tcpFlags]&^flagPSH &&
		get16(a, tcpWindow) == get16(b, tcpWindow) && get16(a, tcpUrgent) == get16(b, tcpUrgent) &&
		bytes.Equal(a[tcpSize:], b[tcpSize:])
}

func (frame *joined) append(f *flow, i int, packet []byte, first int) {
	frame.packets = append(frame.packets, i)
	frame.length += len(packet) - f.headers
	frame.note(f, packet)
	frame.closed = frame.closed || len(packet) < first
}

// note records the fields that the next packet has to continue.
func (frame *joined) note(f *flow, packet []byte) {
	if !f.six {
		frame.id = get16(packet, ipv4ID) + 1
	}
	if !f.udp {
		frame.flags = packet[f.transport+tcpFlags]
		frame.next = get32(packet[f.transport:], tcpSequence) + uint32(len(packet)-f.headers)
		frame.closed = frame.flags&flagPSH != 0
	}
}

// flowOf parses a packet's headers. It returns false for packets other than TCP and UDP,
// truncated ones, and ones with IP options. These aren't joined, and packets whose flow is
// known may overtake them.
func flowOf(packet []byte) (f flow, ok bool) {
	var protocol byte
	switch {
	case len(packet) >= ipv4Size && packet[0] == 0x45:
		if int(get16(packet, ipv4Length)) != len(packet) || get16(packet, ipv4Fragment)&^dontFragment != 0 ||
			fold(sum(packet[:ipv4Size], 0)) != 0xffff {
			return f, false
		}
		f.transport, protocol = ipv4Size, packet[ipv4Protocol]
		copy(f.addresses[:], packet[ipv4Source:ipv4Size])
	case len(packet) >= ipv6Size && packet[0]>>4 == 6:
		if int(get16(packet, ipv6Length)) != len(packet)-ipv6Size {
			return f, false
		}
		f.six, f.transport, protocol = true, ipv6Size, packet[ipv6Next]
		copy(f.addresses[:], packet[ipv6Source:ipv6Size])
	default:
		return f, false
	}
	transport := packet[f.transport:]
	switch {
	case protocol == protocolTCP && len(transport) >= tcpSize:
		size := int(transport[tcpOffset]>>4) * 4
		if size < tcpSize || size >= len(transport) {
			f.alone = true // without payload
		}
		f.headers = f.transport + size
		f.alone = f.alone || transport[tcpFlags]&^flagPSH != flagACK
	case protocol == protocolUDP && len(transport) > udpSize:
		f.udp, f.headers = true, f.transport+udpSize
		f.alone = int(get16(transport, udpLength)) != len(transport) || get16(transport, udpChecksum) == 0
	default:
		return f, false
	}
	f.ports = binary.NativeEndian.Uint32(transport)
	return f, true
}

// headers rewrites the headers in the first packet for a frame of several packets, and
// returns the frame's virtio header.
func (frame *joined) headers(first []byte) virtio {
	f := &frame.first
	length := frame.length - f.transport // of the transport header and what follows
	if f.six {
		put16(first, ipv6Length, uint16(frame.length-ipv6Size))
	} else {
		put16(first, ipv4Length, uint16(frame.length))
		binary.NativeEndian.PutUint16(first[ipv4Checksum:], 0)
		binary.NativeEndian.PutUint16(first[ipv4Checksum:], ^fold(sum(first[:ipv4Size], 0)))
	}
	v := virtio{
		flags: needsChecksum, headers: f.headers, segment: len(first) - f.headers, checksumStart: f.transport,
	}
	protocol := byte(protocolTCP)
	switch {
	case f.udp:
		v.kind, v.checksumOffset, protocol = gsoUDP, udpChecksum, protocolUDP
		put16(first[f.transport:], udpLength, uint16(length))
	case f.six:
		v.kind, v.checksumOffset = gsoTCP6, tcpChecksum
	default:
		v.kind, v.checksumOffset = gsoTCP4, tcpChecksum
	}
	if !f.udp {
		first[f.transport+tcpFlags] |= frame.flags & flagPSH
	}
	pseudo := fold(addressSum(first, protocol) + word(uint16(length)))
	binary.NativeEndian.PutUint16(first[f.transport+v.checksumOffset:], pseudo)
	return v
}
