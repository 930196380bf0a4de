package tunnel

import (
	"crypto/sha256"
	"net/netip"
)

// LinkLocal returns the address for probes of a device with the given public key: fe80::/64
// with the first 8 bytes of the key's SHA-256. Both sides of a tunnel derive it, without
// publishing it.
func LinkLocal(key Key) netip.Addr {
	sum := sha256.Sum256(key[:])
	addr := [16]byte{0: 0xfe, 1: 0x80}
	copy(addr[8:], sum[:8])
	return netip.AddrFrom16(addr)
}
