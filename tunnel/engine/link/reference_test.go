package link

import (
	"encoding/binary"
	"math/rand/v2"
)

// A plain reference implementation, in the terms of the RFCs.

// onesSum is the Internet checksum's sum, word by word.
func onesSum(parts ...[]byte) uint16 {
	total := 0
	for _, part := range parts {
		for i, b := range part {
			if i%2 == 0 {
				total += int(b) << 8
			} else {
				total += int(b)
			}
		}
	}
	for total > 0xffff {
		total = total>>16 + total&0xffff
	}
	return uint16(total)
}

// pseudo returns the pseudo header of a packet.
func pseudo(packet []byte, protocol byte, length int) []byte {
	tail := []byte{0, protocol, byte(length >> 8), byte(length)}
	if packet[0]>>4 == 4 {
		return append(append([]byte{}, packet[12:20]...), tail...)
	}
	return append(append([]byte{}, packet[8:40]...), tail...)
}

// sealed stores a packet's lengths and checksums.
func sealed(packet []byte, transport int, protocol byte, partial bool) []byte {
	if packet[0]>>4 == 4 {
		binary.BigEndian.PutUint16(packet[2:], uint16(len(packet)))
		packet[10], packet[11] = 0, 0
		binary.BigEndian.PutUint16(packet[10:], ^onesSum(packet[:transport]))
	} else {
		binary.BigEndian.PutUint16(packet[4:], uint16(len(packet)-40))
	}
	at := transport + 16
	if protocol == 17 {
		at = transport + 6
		binary.BigEndian.PutUint16(packet[transport+4:], uint16(len(packet)-transport))
	}
	head := pseudo(packet, protocol, len(packet)-transport)
	packet[at], packet[at+1] = 0, 0
	checksum := onesSum(head)
	if !partial {
		if checksum = ^onesSum(head, packet[transport:]); checksum == 0 {
			checksum = 0xffff
		}
	}
	binary.BigEndian.PutUint16(packet[at:], checksum)
	return packet
}

// shape is what a random packet is made of.
type shape struct {
	six      bool
	protocol byte // 6 or 17
	extra    int  // bytes of options or extension headers of IP
	options  int  // bytes of TCP's options
	payload  int
	flags    byte
	fragment uint16 // flags and offset of IPv4
}

// packet makes a packet with no lengths and checksums, and returns where its transport
// header begins and how long its headers are.
func (s shape) packet(r *rand.Rand, host byte) (packet []byte, transport, headers int) {
	random := func(n int) []byte {
		b := make([]byte, n)
		var seed [32]byte
		binary.NativeEndian.PutUint64(seed[:], r.Uint64())
		_, _ = rand.NewChaCha8(seed).Read(b) // never fails
		return b
	}
	if s.six {
		packet = append([]byte{0x60, 0, 0, 7, 0, 0, s.protocol, 64}, make([]byte, 32)...)
		packet[8], packet[23], packet[24], packet[39] = 0xfd, host, 0xfd, 2
		if s.extra > 0 {
			packet[6] = 60 // destination options, padded
			extension := make([]byte, s.extra)
			extension[0], extension[1] = s.protocol, byte(s.extra/8-1)
			extension[2], extension[3] = 1, byte(s.extra-4) // PadN
			packet = append(packet, extension...)
		}
	} else {
		packet = append([]byte{0x40 | byte(5+s.extra/4), 0, 0, 0}, random(2)...)
		packet = append(packet, byte(s.fragment>>8), byte(s.fragment), 64, s.protocol, 0, 0, 10, 0, 0, host, 10, 0, 1, 2)
		for range s.extra {
			packet = append(packet, 1) // no operation
		}
	}
	transport = len(packet)
	packet = append(packet, 0x30, host, 0x14, 0x51)
	if s.protocol == 6 {
		packet = append(packet, random(8)...)
		packet = append(packet, byte(5+s.options/4)<<4, s.flags, 1, 0, 0, 0, 0, 0)
		packet = append(packet, random(s.options)...)
	} else {
		packet = append(packet, 0, 0, 0, 0)
	}
	headers = len(packet)
	return append(packet, random(s.payload)...), transport, headers
}

// cutFrame segments a frame as the kernel does.
func cutFrame(v virtio, frame []byte) (packets [][]byte) {
	frame = append([]byte{}, frame...)
	if v.kind == gsoNone {
		if v.flags&needsChecksum != 0 {
			checksum := ^onesSum(frame[v.checksumStart:])
			if checksum == 0 {
				checksum = 0xffff
			}
			binary.BigEndian.PutUint16(frame[v.checksumStart+v.checksumOffset:], checksum)
		}
		return [][]byte{frame}
	}
	transport, protocol, headers := v.checksumStart, byte(17), v.checksumStart+8
	if v.kind != gsoUDP {
		protocol, headers = 6, transport+int(frame[transport+12]>>4)*4
	}
	payload := frame[headers:]
	for i := 0; len(payload) > 0; i++ {
		n := min(v.segment, len(payload))
		packet := append(append([]byte{}, frame[:headers]...), payload[:n]...)
		payload = payload[n:]
		if packet[0]>>4 == 4 {
			binary.BigEndian.PutUint16(packet[4:], binary.BigEndian.Uint16(frame[4:])+uint16(i))
		}
		if protocol == 6 {
			sequence := binary.BigEndian.Uint32(frame[transport+4:]) + uint32(i*v.segment)
			binary.BigEndian.PutUint32(packet[transport+4:], sequence)
			if i > 0 {
				packet[transport+13] &^= 0x80 // CWR
			}
			if len(payload) > 0 {
				packet[transport+13] &^= 0x09 // PSH, FIN
			}
		}
		packets = append(packets, sealed(packet, transport, protocol, false))
	}
	return packets
}
