// Package endpoint defines which address and port of a node is published as its
// WireGuard endpoint.
package endpoint

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// Values of a Source other than an address.
const (
	InternalIP = "InternalIP"
	ExternalIP = "ExternalIP"
	None       = "none"
)

// Source defines the endpoint of a node. The zero value is invalid.
type Source struct {
	// Type is InternalIP, ExternalIP or None; empty: Addr is used.
	Type string
	Addr netip.Addr
	// Port is the published port; 0: the one that the device listens on.
	Port uint16
}

// Parse parses InternalIP, ExternalIP, none, an address, or an address and a port such
// as 192.0.2.1:51820 or [2001:db8::1]:51820.
func Parse(text string) (Source, error) {
	for _, word := range []string{InternalIP, ExternalIP, None} {
		if strings.EqualFold(text, word) {
			return Source{Type: word}, nil
		}
	}
	s := Source{}
	addr, err := netip.ParseAddr(text)
	if err != nil {
		both, bothErr := netip.ParseAddrPort(text)
		if bothErr != nil || both.Port() == 0 {
			return Source{}, fmt.Errorf("expected %s, %s, %s, an address, or an address and a port like 192.0.2.1:51820", InternalIP, ExternalIP, None)
		}
		addr, s.Port = both.Addr(), both.Port()
	}
	s.Addr = addr.Unmap()
	return s, Check(s.Addr)
}

// ParseAddr parses an address, and returns an error if other hosts can't reach a node or pod at
// it. A mapped IPv4 address becomes that one.
func ParseAddr(text string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}, err
	}
	addr = addr.Unmap()
	return addr, Check(addr)
}

// Check returns an error if other hosts can't reach a node at addr.
func Check(addr netip.Addr) error {
	if addr.Zone() != "" {
		return errors.New("an address with a zone means nothing on another host")
	}
	// RFC 791 and RFC 1122 3.2.1.3: 0.0.0.0/8 is never a destination; RFC 1112
	// and RFC 6890: nor is 240.0.0.0/4.
	if !addr.IsGlobalUnicast() || addr.Is4() && (addr.As4()[0] == 0 || addr.As4()[0] >= 240) {
		return errors.New("expected a unicast address that other hosts can reach")
	}
	return nil
}
