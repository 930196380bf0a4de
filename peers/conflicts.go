package peers

import (
	"maps"
	"net/netip"
	"slices"
)

// usesNodeIPAM reports whether the remote's control plane allocates the nodes' pod
// prefixes (spec.podCIDRs): whether at least as many nodes claim their allocation as
// publish other prefixes. Network plugins with their own address management don't use the
// allocation. The result is firm when it doesn't depend on a single node, which can change
// its own annotation.
func usesNodeIPAM(nodes []claimant) (is, firm bool) {
	claim, depart := 0, 0
	for i := range nodes {
		n := &nodes[i]
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

// findConflicts sets the conflict of each node: whether it conflicts with several others,
// and which of its prefixes, not allocated to it, overlap another node's allocation.
// Allocations count only if specified is set. Single addresses conflict with enclosing
// prefixes only if alone is set.
func findConflicts(nodes []claimant, contested map[netip.Prefix]struct{}, alone, nodeIPAM bool) {
	var all []span
	for i := range nodes {
		for j, p := range nodes[i].prefixes {
			if _, is := contested[p]; is {
				all = append(all, spanOf(p, i, j))
			}
		}
	}
	slices.SortFunc(all, span.compare)
	s := sweep{nodes: nodes, conflicts: make([]parties, len(nodes)), nodeIPAM: nodeIPAM}
	for len(all) > 0 {
		same := 1
		for same < len(all) && all[same].same(all[0]) {
			same++
		}
		s.enter(all[:same], alone)
		all = all[same:]
	}
	s.leave(0)
	for i := range nodes {
		if s.conflicts[i].count() > 1 {
			nodes[i].ensureConflict().several = true
		}
	}
}

// conflict summarizes the conflicts of one node.
type conflict struct {
	several   bool                    // with several other nodes
	overruled map[netip.Prefix]string // own prefixes that overlap an allocation, and its node
}

// ensureConflict returns the node's conflict, creating it.
func (n *claimant) ensureConflict() *conflict {
	if n.conflict == nil {
		n.conflict = &conflict{overruled: map[netip.Prefix]string{}}
	}
	return n.conflict
}

// unallocated reports whether the control plane allocated nothing to a node. Then it may
// allocate nothing to any node, and a kubelet can fill in an empty spec.podCIDRs.
func (n *claimant) unallocated() bool { return n.published && len(n.allocated) == 0 }

// keepAccepted clears overruled of prefixes that were accepted from this node before.
func (n *claimant) keepAccepted(before Accepted) {
	if n.conflict != nil {
		maps.DeleteFunc(n.overruled, func(p netip.Prefix, _ string) bool { return before.hasPrefix(n.Name, p) })
	}
}

// rank sorts nodes that conflict with several others after the rest.
func (n *claimant) rank() int {
	if n.conflict != nil && n.several {
		return 1
	}
	return 0
}

// overruledBy returns the node with an allocation that the prefix overlaps, if any.
func (n *claimant) overruledBy(p netip.Prefix) (other string, is bool) {
	if n.conflict == nil {
		return "", false
	}
	other, is = n.overruled[p]
	return other, is
}

// overruledAt reports whether a prefix overlaps another node's allocation.
func (n *claimant) overruledAt(p netip.Prefix) bool {
	_, is := n.overruledBy(p)
	return is
}

// sweep processes contested prefixes in order, enclosing prefixes first.
type sweep struct {
	nodes     []claimant
	conflicts []parties // by node, the others
	nodeIPAM  bool
	around    []claimed // enclosing the current prefix, the narrowest last
}

// claimed is a prefix with the nodes that claim it (own), an enclosing prefix (outer) or a
// part of it (inner).
type claimed struct {
	claims []span
	own    sides
	outer  sides
	inner  sides
}

// sides are all nodes that claim a prefix, and those that it is allocated to.
type sides struct{ all, allocated parties }

func (s *sides) join(o *sides) {
	s.all.join(&o.all)
	s.allocated.join(&o.allocated)
}

// enter processes the claims of the next prefix.
func (s *sweep) enter(claims []span, alone bool) {
	c := claimed{claims: claims}
	for _, claim := range claims {
		c.own.all.add(claim.node)
		if s.nodeIPAM && s.allocated(claim) {
			c.own.allocated.add(claim.node)
		}
	}
	if claims[0].single() && !alone {
		s.settle(&c)
		return
	}
	depth := len(s.around)
	for depth > 0 && !s.around[depth-1].claims[0].contains(claims[0]) {
		depth--
	}
	s.leave(depth)
	if depth > 0 {
		c.outer = s.around[depth-1].outer
		c.outer.join(&s.around[depth-1].own)
	}
	s.around = append(s.around, c)
}

// leave records the conflicts of the enclosing prefixes below the given depth, which don't
// enclose the next prefix, and removes them from around.
func (s *sweep) leave(depth int) {
	for i := len(s.around) - 1; i >= depth; i-- {
		c := &s.around[i]
		s.settle(c)
		if i > 0 {
			s.around[i-1].inner.join(&c.own)
			s.around[i-1].inner.join(&c.inner)
		}
	}
	s.around = s.around[:depth]
}

// settle records the conflicts of the nodes that claim a prefix.
func (s *sweep) settle(c *claimed) {
	with := c.outer
	with.join(&c.own)
	with.join(&c.inner)
	for _, claim := range c.claims {
		with.all.others(claim.node, s.conflicts[claim.node].add)
		if s.nodeIPAM && !s.allocated(claim) {
			with.allocated.others(claim.node, func(other int32) {
				n := &s.nodes[claim.node]
				n.ensureConflict().overruled[n.prefixes[claim.index]] = s.nodes[other].Name
			})
		}
	}
}

func (s *sweep) allocated(claim span) bool {
	n := &s.nodes[claim.node]
	return n.isAllocated(n.prefixes[claim.index])
}

// parties is a set of nodes truncated to three, enough to know for each node whether there
// is one other node, or more.
type parties struct {
	nodes [3]int32 // index plus one; 0: empty
}

func (p *parties) add(node int32) {
	for i, other := range p.nodes {
		if other == node+1 {
			return
		}
		if other == 0 {
			p.nodes[i] = node + 1
			return
		}
	}
}

func (p *parties) join(o *parties) {
	for _, other := range o.nodes {
		if other == 0 {
			return
		}
		p.add(other - 1)
	}
}

func (p *parties) count() int {
	count := 0
	for _, other := range p.nodes {
		if other != 0 {
			count++
		}
	}
	return count
}

// others calls do for each stored node except one.
func (p *parties) others(node int32, do func(int32)) {
	for _, other := range p.nodes {
		if other != 0 && other != node+1 {
			do(other - 1)
		}
	}
}
