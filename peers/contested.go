package peers

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
)

// contested returns the prefixes that two nodes claim and those that overlap others. All
// other prefixes, nearly all in a mesh, belong to the node that claims them and need no
// lookup.
//
// Single addresses count only when claimed twice, unless alone is set: inside another
// prefix the longest prefix decides, as in the kernel.
func contested(nodes []claimant, alone bool) map[netip.Prefix]struct{} {
	total := 0
	for i := range nodes {
		total += len(nodes[i].prefixes)
	}
	all := make([]span, 0, total)
	for i := range nodes {
		for j, p := range nodes[i].prefixes {
			all = append(all, spanOf(p, i, j))
		}
	}
	slices.SortFunc(all, span.compare)

	found := map[netip.Prefix]struct{}{}
	mark := func(s span) { found[nodes[s.node].prefixes[s.index]] = struct{}{} }
	var around []span // enclosing the current one, the narrowest last
	for i, s := range all {
		if i > 0 && all[i-1].same(s) {
			mark(s) // The one before is the same prefix.
			continue
		}
		if s.single() && !alone {
			continue
		}
		for len(around) > 0 && !around[len(around)-1].contains(s) {
			around = around[:len(around)-1]
		}
		if len(around) > 0 {
			mark(s)
			mark(around[len(around)-1])
		}
		if !s.single() {
			around = append(around, s)
		}
	}
	return found
}

// span is a prefix in a form that compares fast, with its origin: indexes of node and
// prefix. IPv4 is mapped into IPv6 (RFC 4291, section 2.5.5.2), where no node has an IPv6
// prefix.
type span struct {
	high, low   uint64
	bits        int32
	node, index int32
}

func spanOf(p netip.Prefix, node, index int) span {
	bytes := p.Addr().As16()
	bits := p.Bits()
	if p.Addr().Is4() {
		bits += 96
	}
	return span{
		high: binary.BigEndian.Uint64(bytes[:8]), low: binary.BigEndian.Uint64(bytes[8:]),
		bits: int32(bits), node: int32(node), index: int32(index),
	}
}

// compare sorts an enclosing span before those inside it.
func (s span) compare(o span) int {
	if s.high != o.high {
		return cmp.Compare(s.high, o.high)
	}
	if s.low != o.low {
		return cmp.Compare(s.low, o.low)
	}
	return cmp.Compare(s.bits, o.bits)
}

func (s span) same(o span) bool { return s.high == o.high && s.low == o.low && s.bits == o.bits }

func (s span) single() bool { return s.bits == 128 }

// contains reports whether o, which sorts later or is equal, lies inside s.
func (s span) contains(o span) bool {
	if s.bits > 64 {
		return s.high == o.high && (s.low^o.low)>>(128-s.bits) == 0
	}
	return (s.high^o.high)>>(64-s.bits) == 0
}

// single reports whether a prefix is a single address.
func single(p netip.Prefix) bool { return p.IsSingleIP() }
