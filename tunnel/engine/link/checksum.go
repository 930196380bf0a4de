package link

import (
	"encoding/binary"
	"math/bits"
)

// The Internet checksum (RFC 1071) is a one's complement sum of 16-bit words. It doesn't
// depend on the byte order, so all sums here are of words in native order, and stored so.

// sum adds the words of b to a sum. Only the last b of a sum may have an odd length.
func sum(b []byte, initial uint64) uint64 {
	var carry uint64
	total := initial
	for len(b) >= 64 {
		total, carry = bits.Add64(total, binary.NativeEndian.Uint64(b), 0)
		total, carry = bits.Add64(total, binary.NativeEndian.Uint64(b[8:]), carry)
		total, carry = bits.Add64(total, binary.NativeEndian.Uint64(b[16:]), carry)
		total, carry = bits.Add64(total, binary.NativeEndian.Uint64(b[24:]), carry)
		total, carry = bits.Add64(total, binary.NativeEndian.Uint64(b[32:]), carry)
		total, carry = bits.Add64(total, binary.NativeEndian.Uint64(b[40:]), carry)
		total, carry = bits.Add64(total, binary.NativeEndian.Uint64(b[48:]), carry)
		total, carry = bits.Add64(total, binary.NativeEndian.Uint64(b[56:]), carry)
		total += carry // can't overflow: a carry leaves less than the largest number
		b = b[64:]
	}
	for len(b) >= 8 {
		total, carry = bits.Add64(total, binary.NativeEndian.Uint64(b), 0)
		total += carry
		b = b[8:]
	}
	if len(b) > 0 {
		var rest [8]byte
		copy(rest[:], b)
		total, carry = bits.Add64(total, binary.NativeEndian.Uint64(rest[:]), 0)
		total += carry
	}
	return total
}

// fold reduces a sum to 16 bits.
func fold(total uint64) uint16 {
	total = total>>32 + total&0xffffffff
	total = total>>16 + total&0xffff
	total = total>>16 + total&0xffff
	total = total>>16 + total&0xffff
	return uint16(total)
}

// word converts a big-endian 16-bit field to a summand.
func word(n uint16) uint64 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], n)
	return uint64(binary.NativeEndian.Uint16(b[:]))
}

// long converts a big-endian 32-bit field to a summand.
func long(n uint32) uint64 { return word(uint16(n>>16)) + word(uint16(n)) }
