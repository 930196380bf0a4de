package config

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// SubnetMapAnnotation is the annotation of a node with the text of its cluster's SubnetMap.
const SubnetMapAnnotation = "wireguard.semaphore.uw.io/podSubnetsMap"

// maxMappings bounds the entries of a SubnetMap. Each is compared with each packet.
const maxMappings = 16

// Mapping is a subnet of a cluster's pods and the virtual subnet that other clusters know it
// by. Both are masked, of the same family and length, and don't overlap.
type Mapping struct {
	Real, Virtual netip.Prefix
}

// String formats the mapping as in a SubnetMap's text.
func (m Mapping) String() string { return m.Real.String() + "=" + m.Virtual.String() }

// SubnetMap is how other clusters know the addresses of a cluster's pods, in text such as
// 10.0.0.0/16=10.201.0.0/16,fd00:4::/48=fd00:c9::/48. It is sorted, none of its subnets
// overlap, and subnets without a mapping are known as they are. So each address has one
// translation, and no two have the same one. The nil map translates nothing.
//
// Who reads the objects of a remote translates what these say of pods with the remote's
// PodSubnetsMap, and then checks the result against its PodSubnets:
//
//	a := remote.PodSubnetsMap.Virtual(endpoint.Address)
type SubnetMap []Mapping

// Decode implements envconfig.Decoder. The error joins those of all items.
func (m *SubnetMap) Decode(text string) error {
	*m = nil
	var errs []error
	for item := range strings.SplitSeq(text, ",") {
		mapping, err := parseMapping(strings.TrimSpace(item))
		if err == nil {
			err = m.disjoint(mapping)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if *m = append(*m, mapping); len(*m) > maxMappings {
			return errors.Join(fmt.Errorf("more than %d mappings", maxMappings))
		}
	}
	slices.SortFunc(*m, func(a, b Mapping) int { return a.Real.Compare(b.Real) })
	return errors.Join(errs...)
}

func parseMapping(text string) (Mapping, error) {
	from, to, _ := strings.Cut(text, "=")
	inner, errInner := netip.ParsePrefix(strings.TrimSpace(from))
	outer, errOuter := netip.ParsePrefix(strings.TrimSpace(to))
	m := Mapping{Real: inner.Masked(), Virtual: outer.Masked()}
	switch {
	case errInner != nil || errOuter != nil:
		return m, fmt.Errorf("%q is not a pair of subnets such as 10.0.0.0/16=10.201.0.0/16", text)
	case inner.Addr().Is4() != outer.Addr().Is4():
		return m, fmt.Errorf("%s maps IPv4 to IPv6 or the reverse: both subnets must be of one family", m)
	case inner.Bits() != outer.Bits():
		return m, fmt.Errorf("%s maps between subnets of different lengths: each address needs one of its own", m)
	case m.Real.Overlaps(m.Virtual):
		return m, fmt.Errorf("%s maps a subnet to itself", m)
	}
	for _, p := range []netip.Prefix{m.Real, m.Virtual} {
		if reason := unfit(p); reason != "" {
			return m, fmt.Errorf("%s can't be a subnet of pods: %s", p, reason)
		}
	}
	return m, nil
}

// disjoint returns an error if a subnet of the mapping overlaps one of the map.
func (m SubnetMap) disjoint(add Mapping) error {
	for _, have := range m {
		for _, a := range []netip.Prefix{add.Real, add.Virtual} {
			for _, b := range []netip.Prefix{have.Real, have.Virtual} {
				if a.Overlaps(b) {
					return fmt.Errorf("%s of %s overlaps %s of %s", a, add, b, have)
				}
			}
		}
	}
	return nil
}

// String formats the map in canonical form; Decode of it returns the same map.
func (m SubnetMap) String() string {
	texts := make([]string, len(m))
	for i, mapping := range m {
		texts[i] = mapping.String()
	}
	return strings.Join(texts, ",")
}

// Virtual returns the address by which other clusters know a pod's address. An address in no
// real subnet is returned as it is.
func (m SubnetMap) Virtual(a netip.Addr) netip.Addr {
	for _, mapping := range m {
		if mapping.Real.Contains(a) {
			return move(a, mapping.Virtual)
		}
	}
	return a
}

// Real returns the address of the pod that other clusters know by an address. An address in no
// virtual subnet is returned as it is.
func (m SubnetMap) Real(a netip.Addr) netip.Addr {
	for _, mapping := range m {
		if mapping.Virtual.Contains(a) {
			return move(a, mapping.Real)
		}
	}
	return a
}

// VirtualPrefix returns the prefix by which other clusters know a prefix of pods. One outside of
// all real subnets is returned as it is. It is an error when only a part is in a real subnet.
func (m SubnetMap) VirtualPrefix(p netip.Prefix) (netip.Prefix, error) {
	for _, mapping := range m {
		switch {
		case !mapping.Real.Overlaps(p):
		case p.Bits() < mapping.Real.Bits():
			return netip.Prefix{}, fmt.Errorf("only a part of %s is in %s, which is mapped to %s", p, mapping.Real, mapping.Virtual)
		default:
			return netip.PrefixFrom(move(p.Addr(), mapping.Virtual), p.Bits()), nil
		}
	}
	return p, nil
}

// RealPrefix is the inverse of VirtualPrefix: it returns the prefix of pods that other clusters
// know by a prefix. One outside of all virtual subnets is returned as it is.
func (m SubnetMap) RealPrefix(p netip.Prefix) netip.Prefix {
	for _, mapping := range m {
		if mapping.Virtual.Bits() <= p.Bits() && mapping.Virtual.Contains(p.Addr()) {
			return netip.PrefixFrom(move(p.Addr(), mapping.Real), p.Bits())
		}
	}
	return p
}

// Virtuals returns the virtual subnets.
func (m SubnetMap) Virtuals() []netip.Prefix {
	var all []netip.Prefix
	for _, mapping := range m {
		all = append(all, mapping.Virtual)
	}
	return all
}

// checkSubnetMap checks the map of a remote against its pod subnets, which must have the virtual
// ones, or parts of them, in place of the real ones.
func (r *rawRemote) checkSubnetMap(f *faults) {
	origin, subnets := r.origin(&r.PodSubnetsMap), r.of(&r.PodSubnets).origin
	for _, m := range r.PodSubnetsMap {
		known := false
		for _, p := range r.PodSubnets {
			switch {
			case p.Overlaps(m.Real):
				f.add(origin, "%s of %s overlaps %s, which is known here as %s: list that instead", p, subnets, m.Real, m.Virtual)
			case p.Overlaps(m.Virtual) && p.Bits() < m.Virtual.Bits():
				f.add(origin, "%s of %s has more than the virtual subnet %s: list each virtual subnet by itself", p, subnets, m.Virtual)
			}
			known = known || p.Overlaps(m.Virtual)
		}
		if !known {
			f.add(origin, "the virtual subnet %s is not in %s", m.Virtual, subnets)
		}
	}
}

// checkSubnetMap checks the map of this cluster against the other settings. Other clusters' nodes
// and pods have addresses that it must not take, and the admission policy compares texts.
func (l *loader) checkSubnetMap(cfg *Wireguard) {
	own := l.setting(&cfg.PodSubnetsMap)
	if text := cfg.PodSubnetsMap.String(); own.set && own.text != text && len(l.faults.all) == 0 {
		l.faults.add(own.origin, "%q must be written as %q: the admission policy compares it with what nodes publish", own.text, text)
	}
	for _, m := range cfg.PodSubnetsMap {
		for i := range cfg.Remotes {
			r := &cfg.Remotes[i]
			for _, p := range r.PodSubnets {
				if m.Virtual.Overlaps(p) {
					l.faults.add(own.origin, "the virtual subnet %s overlaps %s of %s (%s)", m.Virtual, p, r.Name, r.PodSubnetsFrom)
				}
				if m.Real.Overlaps(p) {
					l.faults.add(own.origin, "%s overlaps %s of %s (%s): %s needs a map as well, and its virtual subnets there", m.Real, p, r.Name, r.PodSubnetsFrom, r.Name)
				}
			}
			for _, p := range r.NodeSubnets {
				if m.Virtual.Overlaps(p) {
					l.faults.add(own.origin, "the virtual subnet %s overlaps %s, which has nodes of %s", m.Virtual, p, r.Name)
				}
			}
		}
		for _, p := range cfg.LocalSubnets {
			if m.Virtual.Overlaps(p) {
				l.faults.add(own.origin, "the virtual subnet %s overlaps %s of %s, whose addresses are in use", m.Virtual, p, l.setting(&cfg.LocalSubnets).origin)
			}
		}
	}
}

// move returns the address with the leading bits of a subnet of its family.
func move(a netip.Addr, to netip.Prefix) netip.Addr {
	moved, prefix := a.AsSlice(), to.Addr().AsSlice()
	for i := range moved {
		network := byte(0xff)
		if bits := to.Bits() - 8*i; bits < 8 {
			network = ^(byte(0xff) >> max(bits, 0))
		}
		moved[i] = prefix[i]&network | moved[i]&^network
	}
	addr, _ := netip.AddrFromSlice(moved)
	return addr
}
