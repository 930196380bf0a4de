package peers

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// reading is what a node's strings say, as far as that depends on nothing else.
// It is never changed.
type reading struct {
	key         tunnel.Key
	keyErr      error
	endpoint    netip.AddrPort
	endpointErr error
	podCIDRs    []podCIDR
	more        bool // there are more of them
}

type podCIDR struct {
	prefix netip.Prefix // masked
	err    error
}

func read(n Node) *reading {
	podCIDRs := n.PodCIDRs[:min(len(n.PodCIDRs), maxPrefixes)]
	r := &reading{podCIDRs: make([]podCIDR, len(podCIDRs)), more: len(podCIDRs) < len(n.PodCIDRs)}
	r.key, r.keyErr = readPublicKey(n.PublicKey)
	r.endpoint, r.endpointErr = readEndpoint(n.Endpoint)
	for i, value := range podCIDRs {
		p, err := parsePrefix(value)
		if err != nil {
			err = fmt.Errorf("pod CIDR %q: expected a prefix like 10.4.7.0/24", shorten(value))
		}
		r.podCIDRs[i] = podCIDR{p, err}
	}
	return r
}

func readPublicKey(value string) (tunnel.Key, error) {
	if value == "" {
		return tunnel.Key{}, errors.New("no public key annotation: expected 32 bytes in base64")
	}
	key, err := tunnel.ParseKey(value)
	if err != nil {
		return tunnel.Key{}, fmt.Errorf("public key %q: %w", value, err)
	}
	return key, nil
}

// readEndpoint reads an address and a port that another host may have.
func readEndpoint(value string) (netip.AddrPort, error) {
	if value == "" {
		return netip.AddrPort{}, errors.New("no endpoint annotation: expected address:port")
	}
	ap, err := netip.ParseAddrPort(value)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("endpoint %q: expected an IP address and a port, like 192.0.2.1:51820 or [2001:db8::1]:51820", value)
	}
	addr := ap.Addr().Unmap()
	if addr.Zone() != "" {
		return netip.AddrPort{}, fmt.Errorf("endpoint %q: an address with a zone means nothing on another host", value)
	}
	// RFC 791 and RFC 1122 3.2.1.3: 0.0.0.0/8 is never a destination; RFC 1112
	// and RFC 6890: nor is 240.0.0.0/4.
	if !addr.IsGlobalUnicast() || addr.Is4() && (addr.As4()[0] == 0 || addr.As4()[0] >= 240) {
		return netip.AddrPort{}, fmt.Errorf("endpoint %q: expected a unicast address that other hosts can reach", value)
	}
	if ap.Port() == 0 {
		return netip.AddrPort{}, fmt.Errorf("endpoint %q: expected a port from 1 to 65535", value)
	}
	return netip.AddrPortFrom(addr, ap.Port()), nil
}

// parsePrefix reads a prefix in the form in which it is compared: masked, and
// IPv4 never mapped into IPv6.
func parsePrefix(value string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(value)
	if err != nil {
		return netip.Prefix{}, err
	}
	if p.Addr().Is4In6() {
		return netip.Prefix{}, fmt.Errorf("%q is an IPv4 prefix written as IPv6", value)
	}
	return p.Masked(), nil
}
