package peers

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/kube-semaphore/kube-semaphore/internal/printable"
)

// assignment assigns prefixes to nodes:
//
//	claim                               assigned to
//	a prefix that overlaps no other     the node that claims it
//	overlapping prefixes                the first of these that exists, rejecting the others:
//	                                    the node to which the control plane allocated it,
//	                                    if nodeIPAM is authoritative or all have allocations;
//	                                    the node that it was accepted from before;
//	                                    the node to which it is allocated;
//	                                    the oldest node with a conflict with one other only;
//	                                    the oldest node
//	a single address inside the prefix  the node that publishes it: the longest prefix
//	of another node                     decides, as in the kernel
//	the same single address, twice      the node with a prefix of its own around it, else as
//	                                    above; while it flaps, the node that has it
//
// Without Rules.Borrowed single addresses are treated like other prefixes. Allocations
// count if nodeIPAM.
type assignment struct {
	before Accepted
	rules  *Rules
	nodes  []*Node // by age
	order  []*Node // of decisions: by age, nodes that conflict with several others last
	// conflicts are the prefixes that several nodes claim or that overlap others. All others,
	// nearly all in a mesh, belong to the node that claims them and need no lookup.
	conflicts     map[netip.Prefix]*conflict
	nodeIPAM      bool // the control plane allocates the prefixes that nodes use
	authoritative bool // nodeIPAM doesn't depend on a single node
	// undecided is set if allocations decide and aren't known of all nodes. Then nothing new is
	// assigned that they decide about.
	undecided bool

	bounded        bool // more prefixes are claimed than Rules.MaxAllowedIPs
	used, reserved int  // if bounded: assigned, and with precedence but not assigned yet
}

// conflict is a prefix that several nodes claim, or that overlaps another one. Where the
// longest prefix decides, a single address overlaps only itself.
type conflict struct {
	prefix netip.Prefix
	claims []claim   // to the prefix, by age
	around *conflict // the narrowest that contains it; nil: none
	holder *Node     // that it is assigned to; nil: none yet
	inside *conflict // one inside it that has a holder; nil: none

	// Of the claims to it, a part of it or an enclosing prefix: the nodes, and those to which
	// that prefix is allocated. own are those to which the prefix itself is allocated.
	claimants, allocated, own claimants
}

// newAssignment prepares the assignment to nodes, which are sorted by age.
func newAssignment(before Accepted, nodes []*Node, rules *Rules) *assignment {
	s := &assignment{before: before, rules: rules, nodes: nodes, order: nodes}
	conflicts, total := s.findConflicts()
	s.bounded = rules.MaxAllowedIPs > 0 && total > rules.MaxAllowedIPs
	if s.bounded || len(conflicts) > 0 {
		s.nodeIPAM, s.authoritative = usesNodeIPAM(nodes)
		s.undecided = slices.ContainsFunc(nodes, func(n *Node) bool { return n.Bare })
	}
	if len(conflicts) > 0 {
		s.findClaimants(conflicts)
	}
	if s.bounded {
		for _, n := range nodes {
			for _, p := range n.prefixes {
				if s.hasPrecedence(n, p) {
					s.reserved++
				}
			}
		}
	}
	if len(conflicts) == 0 {
		return s
	}
	s.reserve(func(n *Node, p netip.Prefix) bool { return !s.isBorrowed(p) && before.hasPrefix(n.Name, p) })
	if rules.Borrowed {
		s.reserve(func(n *Node, p netip.Prefix) bool {
			return s.isBorrowed(p) && !before.isFlapping(p, rules.Now) && s.inOwnPrefix(n, p)
		})
		s.reserve(func(n *Node, p netip.Prefix) bool { return s.isBorrowed(p) && before.hasPrefix(n.Name, p) })
	}
	return s
}

// usesNodeIPAM reports whether the remote's control plane allocates the nodes' pod
// prefixes (spec.podCIDRs): whether at least as many nodes claim their allocation as
// publish other prefixes. Network plugins with their own address management don't use the
// allocation. The result is authoritative when it doesn't depend on a single node, which can change
// its own annotation.
func usesNodeIPAM(nodes []*Node) (is, authoritative bool) {
	claim, depart := 0, 0
	for _, n := range nodes {
		switch {
		case len(n.prefixes) == 0:
		case n.Published && slices.ContainsFunc(n.prefixes, func(p netip.Prefix) bool { return !n.isAllocated(p) }):
			depart++
		default:
			claim++
		}
	}
	return claim > 0 && claim >= depart, claim > depart
}

// findConflicts finds the conflicts among all claims, and returns them, enclosing prefixes
// first, and the number of claims.
func (s *assignment) findConflicts() (conflicts []conflict, total int) {
	var counts [2]int // of IPv4, IPv6
	for _, n := range s.nodes {
		for _, p := range n.prefixes {
			counts[family(p)]++
		}
	}
	all := [2][]claim{make([]claim, 0, counts[0]), make([]claim, 0, counts[1])}
	for i, n := range s.nodes {
		for _, p := range n.prefixes {
			all[family(p)] = append(all[family(p)], newClaim(p, i))
		}
	}
	total = counts[0] + counts[1]
	for i := range all {
		all[i] = s.contested(all[i], [2]int32{32, 128}[i])
	}
	if len(all[0])+len(all[1]) == 0 {
		return nil, total
	}
	conflicts = make([]conflict, 0, len(all[0])+len(all[1])) // Never grows: conflicts point to each other.
	s.conflicts = make(map[netip.Prefix]*conflict, cap(conflicts))
	for f, claims := range all {
		var around *conflict
		for same := 0; len(claims) > 0; claims = claims[same:] {
			for same = 1; same < len(claims) && claims[same].same(claims[0]); {
				same++
			}
			conflicts = append(conflicts, conflict{prefix: claims[0].prefix(f == 0), claims: claims[:same]})
			c := &conflicts[len(conflicts)-1]
			s.conflicts[c.prefix] = c
			if s.isBorrowed(c.prefix) {
				continue
			}
			for around != nil && !around.claims[0].contains(claims[0]) {
				around = around.around
			}
			c.around, around = around, c
		}
	}
	return conflicts, total
}

// contested sorts the claims of a family, and returns those that are contested. single is
// the length of its single addresses.
func (s *assignment) contested(all []claim, single int32) []claim {
	slices.SortFunc(all, claim.compare)
	is := make([]bool, len(all))
	var around []int // enclosing the current one, the narrowest last
	for i, c := range all {
		if i > 0 && all[i-1].same(c) {
			is[i], is[i-1] = true, true
			continue
		}
		if s.rules.Borrowed && c.bits == single {
			continue
		}
		for len(around) > 0 && !all[around[len(around)-1]].contains(c) {
			around = around[:len(around)-1]
		}
		if len(around) > 0 {
			is[i], is[around[len(around)-1]] = true, true
		}
		around = append(around, i)
	}
	contested := all[:0]
	for i, c := range all {
		if is[i] {
			contested = append(contested, c)
		}
	}
	return contested
}

// findClaimants determines which nodes and allocations each conflict is about, and the
// order of decisions.
func (s *assignment) findClaimants(conflicts []conflict) {
	for i := range conflicts {
		c := &conflicts[i]
		for _, claim := range c.claims {
			if s.nodeIPAM && s.nodes[claim.node].isAllocated(c.prefix) {
				c.own.add(claim.node)
			}
		}
		for a := c; a != nil; a = a.around {
			for _, claim := range a.claims[:min(len(a.claims), len(a.claimants))] {
				c.claimants.add(claim.node)
			}
			for _, claim := range c.claims[:min(len(c.claims), len(c.claimants))] {
				a.claimants.add(claim.node)
			}
			c.allocated.join(a.own)
			a.allocated.join(c.own)
		}
	}
	others := make([]claimants, len(s.nodes)) // in conflict with each node
	for i := range conflicts {
		for _, claim := range conflicts[i].claims {
			for _, other := range conflicts[i].claimants {
				if other != 0 && other-1 != claim.node {
					others[claim.node].add(other - 1)
				}
			}
		}
	}
	several := func(i int) bool { return others[i][1] != 0 }
	s.order = make([]*Node, 0, len(s.nodes))
	for _, last := range []bool{false, true} {
		for i, n := range s.nodes {
			if several(i) == last {
				s.order = append(s.order, n)
			}
		}
	}
}

// overruling returns another node with an allocation that a prefix of n overlaps, if that
// isn't allocated to n itself. Prefixes accepted from a node without allocation aren't
// overruled unless nodeIPAM is authoritative: the control plane may allocate nothing to any node,
// and a kubelet can fill in an empty spec.podCIDRs.
func (s *assignment) overruling(n *Node, p netip.Prefix) *Node {
	c := s.conflicts[p]
	if c == nil || c.allocated == (claimants{}) || n.isAllocated(p) {
		return nil
	}
	if !s.authoritative && n.Published && len(n.allocated) == 0 && s.before.hasPrefix(n.Name, p) {
		return nil
	}
	for _, i := range c.allocated {
		if i != 0 && s.nodes[i-1] != n {
			return s.nodes[i-1]
		}
	}
	return nil
}

// hasPrecedence reports whether a prefix takes precedence when there are too many.
func (s *assignment) hasPrecedence(n *Node, p netip.Prefix) bool {
	return within(p, s.rules.Subnets) && s.overruling(n, p) == nil && (s.before.hasPrefix(n.Name, p) || s.nodeIPAM && n.isAllocated(p))
}

// isBorrowed reports whether a prefix is a single address for which enclosing prefixes
// don't matter.
func (s *assignment) isBorrowed(p netip.Prefix) bool { return s.rules.Borrowed && p.IsSingleIP() }

// reserve assigns the contested prefixes that first accepts ahead of the others.
func (s *assignment) reserve(first func(*Node, netip.Prefix) bool) {
	for _, n := range s.order {
		for _, p := range n.prefixes {
			if c := s.conflicts[p]; c != nil && within(p, s.rules.Subnets) && s.overruling(n, p) == nil && first(n, p) {
				c.take(n)
			}
		}
	}
}

// take assigns the prefix to a node. When it, a part of it or an enclosing prefix already
// has a holder, it changes nothing and returns that conflict, unless the holder of the
// prefix itself is this node.
func (c *conflict) take(n *Node) (taken *conflict) {
	switch {
	case c.holder == n:
		return nil
	case c.holder != nil:
		return c
	case c.inside != nil:
		return c.inside
	}
	for a := c.around; a != nil; a = a.around {
		if a.holder != nil {
			return a
		}
	}
	c.holder = n
	for a := c.around; a != nil; a = a.around {
		a.inside = c
	}
	return nil
}

// inOwnPrefix reports whether a single address lies in a prefix of the node itself: one
// that is allocated to it, was accepted from it, or that no other node claims.
func (s *assignment) inOwnPrefix(n *Node, address netip.Prefix) bool {
	if n.keyErr != nil || n.endpointErr != nil {
		return false
	}
	return slices.ContainsFunc(n.prefixes, func(p netip.Prefix) bool {
		if p.IsSingleIP() || !p.Contains(address.Addr()) || !within(p, s.rules.Subnets) || s.overruling(n, p) != nil {
			return false
		}
		return s.conflicts[p] == nil || s.before.hasPrefix(n.Name, p) || s.nodeIPAM && n.isAllocated(p)
	})
}

// retained returns the accepted prefixes that the node still claims, that are still within
// the remote's pod subnets, and that are not assigned to another node now.
func (s *assignment) retained(n *Node) []netip.Prefix {
	if len(s.before.prefixes[n.Name]) == 0 {
		return nil
	}
	lost := func(p netip.Prefix) bool {
		c := s.conflicts[p]
		return !s.before.hasPrefix(n.Name, p) || !within(p, s.rules.Subnets) || c != nil && c.holder != n
	}
	if !slices.ContainsFunc(n.prefixes, lost) {
		return n.prefixes
	}
	return slices.DeleteFunc(slices.Clone(n.prefixes), lost)
}

// assign returns the prefixes assigned to a node, sorted, and the rejected ones. A
// rejected prefix doesn't affect the node's others: in a dual-stack cluster only one
// family may be configured here.
func (s *assignment) assign(n *Node) (allowed []netip.Prefix, refused []Rejection) {
	refuse := func(reason Reason, format string, args ...any) {
		refused = append(refused, Rejection{Node: n.Name, Reason: reason, Detail: printable.Text(fmt.Sprintf(format, args...), printable.Short)})
	}
	if len(n.PodCIDRs) == 0 && !n.Published {
		refuse(ReasonPodCIDR, "the node has no podCIDR")
	}
	for _, err := range n.prefixErrs {
		refuse(ReasonPodCIDR, "%v", err)
	}
	all := true
	for i, p := range n.prefixes {
		switch granted := s.grant(n, p, refuse); {
		case granted && !all:
			allowed = append(allowed, p)
		case !granted && all:
			all, allowed = false, slices.Clone(n.prefixes[:i])
		}
	}
	if all {
		allowed = slices.Clip(n.prefixes)
	}
	if n.more {
		refuse(ReasonManyPrefixes, "the node has more than %d podCIDRs: only the first ones are used (SEMAPHORE_REMOTE_<NAME>_WG_MAX_PREFIXES)", s.rules.MaxPrefixes)
	}
	for i := range refused {
		refused[i].Partial = len(allowed) > 0
	}
	return allowed, fewer(refused)
}

// grant reports whether a prefix is assigned to a node.
func (s *assignment) grant(n *Node, p netip.Prefix, refuse func(Reason, string, ...any)) bool {
	if !within(p, s.rules.Subnets) {
		refuse(ReasonPodCIDR, "pod CIDR %s is outside the remote's pod subnets %s", p, join(s.rules.Subnets))
		return false
	}
	if s.undecided && !s.before.hasPrefix(n.Name, p) {
		switch {
		case s.conflicts[p] != nil:
			refuse(ReasonUndecided, "pod CIDR %s overlaps that of another node: it isn't assigned before the nodes have been read whole", p)
			return false
		case s.bounded:
			refuse(ReasonUndecided, "more than %d pod CIDRs: %s isn't assigned before the nodes have been read whole", s.rules.MaxAllowedIPs, p)
			return false
		}
	}
	if other := s.overruling(n, p); other != nil {
		refuse(ReasonDuplicatePrefix, "pod CIDR %s overlaps a prefix that the remote's control plane allocated to node %q", p, other.Name)
		return false
	}
	if s.bounded {
		if s.hasPrecedence(n, p) {
			s.reserved--
		} else if s.used+s.reserved >= s.rules.MaxAllowedIPs {
			refuse(ReasonManyPrefixes, "pod CIDR %s exceeds the %d allowed for all nodes, and others take precedence (SEMAPHORE_REMOTE_<NAME>_WG_MAX_ALLOWED_IPS)", p, s.rules.MaxAllowedIPs)
			return false
		}
		if s.used >= s.rules.MaxAllowedIPs {
			refuse(ReasonManyPrefixes, "pod CIDR %s exceeds the %d allowed for all nodes (SEMAPHORE_REMOTE_<NAME>_WG_MAX_ALLOWED_IPS)", p, s.rules.MaxAllowedIPs)
			return false
		}
	}
	if c := s.conflicts[p]; c != nil {
		if taken := c.take(n); taken != nil {
			switch {
			case taken.holder == n: // A wider prefix of its own, or a part of this one.
			case s.isBorrowed(p) && s.before.isFlapping(p, s.rules.Now) && s.inOwnPrefix(n, p):
				refuse(ReasonFlapping, "address %s moved between nodes %d times: it stays with node %q for now", p.Addr(), s.before.moved[p].count, taken.holder.Name)
			default:
				refuse(ReasonDuplicatePrefix, "pod CIDR %s overlaps %s of node %q, which takes precedence", p, taken.prefix, taken.holder.Name)
			}
			return false
		}
	}
	s.used++
	return true
}

// moves returns the recent moves of single addresses, including those of this decision.
func (s *assignment) moves() map[netip.Prefix]moves {
	if len(s.conflicts)+len(s.before.moved) == 0 {
		return nil
	}
	now := s.rules.Now
	moved := maps.Clone(s.before.moved)
	maps.DeleteFunc(moved, func(_ netip.Prefix, m moves) bool { return now.Sub(m.last) >= flapping })
	for p, c := range s.conflicts {
		if c.holder == nil || !p.IsSingleIP() || s.before.hasPrefix(c.holder.Name, p) {
			continue
		}
		// A claim that was accepted before is that of the former holder.
		if slices.ContainsFunc(c.claims, func(c claim) bool { return s.before.hasPrefix(s.nodes[c.node].Name, p) }) {
			if moved == nil {
				moved = map[netip.Prefix]moves{}
			}
			moved[p] = moves{last: now, count: moved[p].count + 1}
		}
	}
	return moved
}

// claim is a node's claim to a prefix, in a form that compares fast within a family.
type claim struct {
	high, low uint64 // bits of the address, the highest first
	bits      int32  // of the prefix
	node      int32  // index
}

// family returns 0 for IPv4, 1 for IPv6.
func family(p netip.Prefix) int {
	if p.Addr().Is4() {
		return 0
	}
	return 1
}

func newClaim(p netip.Prefix, node int) claim {
	bytes := p.Addr().As16()
	high, low := binary.BigEndian.Uint64(bytes[:8]), binary.BigEndian.Uint64(bytes[8:])
	if p.Addr().Is4() {
		high, low = low<<32, 0
	}
	return claim{high: high, low: low, bits: int32(p.Bits()), node: int32(node)}
}

// prefix returns the claimed prefix.
func (c claim) prefix(is4 bool) netip.Prefix {
	var bytes [16]byte
	binary.BigEndian.PutUint64(bytes[:8], c.high)
	binary.BigEndian.PutUint64(bytes[8:], c.low)
	addr := netip.AddrFrom16(bytes)
	if is4 {
		addr = netip.AddrFrom4([4]byte(bytes[:4]))
	}
	return netip.PrefixFrom(addr, int(c.bits))
}

// compare sorts an enclosing prefix before those inside it, and claims to the same prefix
// by age.
func (c claim) compare(o claim) int {
	switch {
	case c.high != o.high:
		return cmp.Compare(c.high, o.high)
	case c.low != o.low:
		return cmp.Compare(c.low, o.low)
	case c.bits != o.bits:
		return cmp.Compare(c.bits, o.bits)
	}
	return cmp.Compare(c.node, o.node)
}

func (c claim) same(o claim) bool { return c.high == o.high && c.low == o.low && c.bits == o.bits }

// contains reports whether o, which sorts later or is equal, lies inside c.
func (c claim) contains(o claim) bool {
	if c.bits > 64 {
		return c.high == o.high && (c.low^o.low)>>(128-c.bits) == 0
	}
	return (c.high^o.high)>>(64-c.bits) == 0
}

// claimants is a set of nodes truncated to three, enough to know for each node whether there
// is one other node, or more. An element is an index plus one; 0: none.
type claimants [3]int32

func (p *claimants) add(node int32) {
	for i, other := range p {
		if other == 0 {
			p[i] = node + 1
		}
		if other == 0 || other == node+1 {
			return
		}
	}
}

func (p *claimants) join(o claimants) {
	for _, other := range o {
		if other != 0 {
			p.add(other - 1)
		}
	}
}
