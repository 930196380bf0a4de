package link

import "encoding/binary"

// virtioSize is the size in bytes of struct virtio_net_hdr (linux/virtio_net.h), which
// precedes each frame of a TUN with IFF_VNET_HDR, in native byte order.
const virtioSize = 10

// Values of virtio's fields.
const (
	needsChecksum = 1 // flags: a checksum begins at checksumStart

	gsoNone = 0
	gsoTCP4 = 1
	gsoTCP6 = 4
	gsoUDP  = 5
	gsoECN  = 0x80 // flag of the TCP kinds: the first segment has CWR
)

// virtio describes the checksum and segmentation that a frame still needs.
type virtio struct {
	flags, kind    byte
	headers        int // bytes; only a hint
	segment        int // bytes of payload in each segment
	checksumStart  int
	checksumOffset int
}

func readVirtio(b []byte) virtio {
	_ = b[virtioSize-1]
	at := func(i int) int { return int(binary.NativeEndian.Uint16(b[i:])) }
	return virtio{flags: b[0], kind: b[1], headers: at(2), segment: at(4), checksumStart: at(6), checksumOffset: at(8)}
}

func (v virtio) write(b []byte) {
	_ = b[virtioSize-1]
	b[0], b[1] = v.flags, v.kind
	binary.NativeEndian.PutUint16(b[2:], uint16(v.headers))
	binary.NativeEndian.PutUint16(b[4:], uint16(v.segment))
	binary.NativeEndian.PutUint16(b[6:], uint16(v.checksumStart))
	binary.NativeEndian.PutUint16(b[8:], uint16(v.checksumOffset))
}
