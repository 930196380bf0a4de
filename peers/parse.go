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

// parse returns the node, or if it isn't parsed yet a copy that is, with at most
// maxPrefixes prefixes; 0: all.
func (n *Node) parse(maxPrefixes int) *Node {
	if n.parsed {
		return n
	}
	r := *n
	texts := n.PodCIDRs
	if maxPrefixes > 0 {
		texts = texts[:min(len(texts), maxPrefixes)]
	}
	r.parsed, r.more = true, len(texts) < len(n.PodCIDRs)
	r.key, r.keyErr = parsePublicKey(n.PublicKey)
	r.endpoint, r.endpointErr = parseEndpoint(n.Endpoint)
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
	r.allocated = slices.DeleteFunc(parseAll(n.Allocated[:min(len(n.Allocated), maxAllocated)]), tooWide)
	return &r
}

// isAllocated reports whether the node's control plane allocated the prefix, or one that
// contains it. A prefix that is too wide for one node doesn't count: a kubelet may have
// written it into an empty spec.podCIDRs.
func (n *Node) isAllocated(p netip.Prefix) bool {
	return !tooWide(p) && (!n.Published || within(p, n.allocated))
}

// parseAll returns the valid prefixes of the texts.
func parseAll(texts []string) (prefixes []netip.Prefix) {
	for _, text := range texts {
		if p, err := parsePrefix(text); err == nil {
			prefixes = append(prefixes, p)
		}
	}
	return prefixes
}

func parsePublicKey(value string) (tunnel.Key, error) {
	if value == "" {
		return tunnel.Key{}, errors.New("no public key annotation: expected 32 bytes in base64")
	}
	key, err := tunnel.ParseKey(value)
	if err != nil {
		return tunnel.Key{}, fmt.Errorf("public key %q: %w", value, err)
	}
	return key, nil
}

// parseEndpoint parses and checks an endpoint. An empty one is valid: a node behind NAT
// publishes it, or no annotation.
func parseEndpoint(value string) (netip.AddrPort, error) {
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

// parsePrefixes returns the valid prefixes of an annotation of this cluster. Invalid ones
// are left out: the annotation will be overwritten.
func parsePrefixes(text string) (prefixes []netip.Prefix) {
	for part := range strings.SplitSeq(text, ",") {
		if p, err := parsePrefix(strings.TrimSpace(part)); err == nil {
			prefixes = append(prefixes, p)
		}
	}
	return prefixes
}

// joinPrefixes formats prefixes for an annotation.
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

// parsePrefix parses a prefix in comparable form: masked, not IPv4-mapped.
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
