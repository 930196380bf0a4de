package peers

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
)

// contested returns the prefixes that more than one decision is about: those that
// two nodes claim, and those that overlap others. All else belongs to who claims
// it, and needs no looking up, which in a mesh is nearly everything.
//
// Of single addresses only those count that are claimed twice, unless alone is set.
// Where they lie is for the longest prefix to decide, as it does in the kernel.
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
	var around []span // that hold what comes next, the narrowest last
	for i, s := range all {
		if i > 0 && all[i-1].same(s) {
			mark(s) // The one before is the same prefix.
			continue
		}
		if s.single() && !alone {
			continue
		}
		for len(around) > 0 && !around[len(around)-1].holds(s) {
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

// span is a prefix in a form that is compared fast, and where it is from. IPv4 has
// the place that IPv6 has for it (RFC 4291, section 2.5.5.2), where no IPv6 prefix
// of a node is.
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

// compare has what holds another one come before it.
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

// holds tells whether o, which comes later or is the same, lies inside.
func (s span) holds(o span) bool {
	if s.bits > 64 {
		return s.high == o.high && (s.low^o.low)>>(128-s.bits) == 0
	}
	return (s.high^o.high)>>(64-s.bits) == 0
}

// single tells whether a prefix is one address.
func single(p netip.Prefix) bool { return p.IsSingleIP() }
