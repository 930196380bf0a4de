package peers

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/internal/endpoint"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// reading is what a node's strings say, as far as that depends on nothing else.
// It is never changed.
type reading struct {
	key         tunnel.Key
	keyErr      error
	endpoint    netip.AddrPort // invalid: it publishes none
	endpointErr error
	prefixes    []netip.Prefix // masked, sorted, none of them twice
	prefixErrs  []error        // of those that are none
	more        bool           // there are more than count
	given       []netip.Prefix // masked, those of its specification where it publishes others
	published   bool           // it publishes them itself
}

// read reads what a node says, of its prefixes so many at most; 0: all.
func read(n Node, maxPrefixes int) *reading {
	texts := n.PodCIDRs
	if maxPrefixes > 0 {
		texts = texts[:min(len(texts), maxPrefixes)]
	}
	r := &reading{more: len(texts) < len(n.PodCIDRs)}
	r.key, r.keyErr = readPublicKey(n.PublicKey)
	r.endpoint, r.endpointErr = readEndpoint(n.Endpoint)
	r.prefixes = make([]netip.Prefix, 0, len(texts))
	for _, text := range texts {
		p, err := parsePrefix(text)
		if err != nil {
			r.prefixErrs = append(r.prefixErrs, fmt.Errorf("pod CIDR %q: expected a prefix like 10.4.7.0/24", keepPrefix(text)))
			continue
		}
		r.prefixes = append(r.prefixes, p)
	}
	slices.SortFunc(r.prefixes, netip.Prefix.Compare)
	r.prefixes = slices.Compact(r.prefixes)
	r.given = slices.DeleteFunc(parseAll(n.Given[:min(len(n.Given), maxGiven)]), tooWide)
	r.published = n.Published
	return r
}

// wasGiven reports whether a prefix is what the node's control plane gave it, or a part of
// that. No control plane gives one that is too wide for the pods of a node: a kubelet may
// write it into a specification that is empty.
func (r *reading) wasGiven(p netip.Prefix) bool {
	return !tooWide(p) && (!r.published || within(p, r.given))
}

// parseAll reads those of the texts that are prefixes.
func parseAll(texts []string) (prefixes []netip.Prefix) {
	for _, text := range texts {
		if p, err := parsePrefix(text); err == nil {
			prefixes = append(prefixes, p)
		}
	}
	return prefixes
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

// readEndpoint reads an address and a port that another host may have. Nothing, or no
// annotation at all, is what a node behind address translation publishes.
func readEndpoint(value string) (netip.AddrPort, error) {
	if value == "" {
		return netip.AddrPort{}, nil
	}
	ap, err := netip.ParseAddrPort(value)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("endpoint %q: expected an IP address and a port, like 192.0.2.1:51820 or [2001:db8::1]:51820", value)
	}
	addr := ap.Addr().Unmap()
	if err := endpoint.Check(addr); err != nil {
		return netip.AddrPort{}, fmt.Errorf("endpoint %q: %w", value, err)
	}
	if ap.Port() == 0 {
		return netip.AddrPort{}, fmt.Errorf("endpoint %q: expected a port from 1 to 65535", value)
	}
	return netip.AddrPortFrom(addr, ap.Port()), nil
}

// parsePrefixes reads the prefixes of an annotation of this cluster. What is none is
// left out: the annotation is written anew.
func parsePrefixes(text string) (prefixes []netip.Prefix) {
	for part := range strings.SplitSeq(text, ",") {
		if p, err := parsePrefix(strings.TrimSpace(part)); err == nil {
			prefixes = append(prefixes, p)
		}
	}
	return prefixes
}

// joinPrefixes is what an annotation says of prefixes.
func joinPrefixes(prefixes []netip.Prefix) string {
	var text []byte
	for i, p := range prefixes {
		if i > 0 {
			text = append(text, ',')
		}
		text = p.AppendTo(text)
	}
	return string(text)
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
