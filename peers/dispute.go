package peers

import (
	"maps"
	"net/netip"
	"slices"
)

// specified reports whether the nodes of a remote have their pods' prefixes from its
// control plane, in their specifications: whether at least as many nodes claim what they
// were given as publish something else. Network plugins with an address management of their
// own leave unused what a specification says. It is firm when the others say so without
// one of those that claim, which can change its own word.
func specified(nodes []claimant) (is, firm bool) {
	claim, depart := 0, 0
	for i := range nodes {
		n := &nodes[i]
		switch {
		case len(n.prefixes) == 0:
		case n.Published && slices.ContainsFunc(n.prefixes, func(p netip.Prefix) bool { return !n.wasGiven(p) }):
			depart++
		default:
			claim++
		}
	}
	return claim > 0 && claim >= depart, claim > depart
}

// dispute says of the nodes with which others they are in conflict, and which of their
// prefixes overlap what another node was given, while they weren't given them. Without
// specified nothing counts as given. Single addresses are in conflict with what lies
// around them only when alone is set.
func dispute(nodes []claimant, contested map[netip.Prefix]struct{}, alone, specified bool) {
	var all []span
	for i := range nodes {
		for j, p := range nodes[i].prefixes {
			if _, is := contested[p]; is {
				all = append(all, spanOf(p, i, j))
			}
		}
	}
	slices.SortFunc(all, span.compare)
	s := sweep{nodes: nodes, conflicts: make([]parties, len(nodes)), specified: specified}
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
			nodes[i].noted().several = true
		}
	}
}

// conflict is what counts of the conflicts of one node with others.
type conflict struct {
	several   bool                    // there are several others
	overruled map[netip.Prefix]string // of its prefixes, and which node was given them
}

// noted returns what is known of a node's conflicts, to be written.
func (n *claimant) noted() *conflict {
	if n.conflict == nil {
		n.conflict = &conflict{overruled: map[netip.Prefix]string{}}
	}
	return n.conflict
}

// unspecified reports whether the control plane gave a node nothing: then it may have given
// nothing to others, too, and a kubelet can write into a specification that is empty.
func (n *claimant) unspecified() bool { return n.published && len(n.given) == 0 }

// keepAccepted takes back that prefixes are another node's, of those that were accepted of
// this one before.
func (n *claimant) keepAccepted(before Accepted) {
	if n.conflict != nil {
		maps.DeleteFunc(n.overruled, func(p netip.Prefix, _ string) bool { return before.has(n.Name, p) })
	}
}

// rank has those that are in conflict with several others come after the others.
func (n *claimant) rank() int {
	if n.conflict != nil && n.several {
		return 1
	}
	return 0
}

// overruledBy returns which other node was given what a prefix overlaps, if any was.
func (n *claimant) overruledBy(p netip.Prefix) (other string, is bool) {
	if n.conflict == nil {
		return "", false
	}
	other, is = n.overruled[p]
	return other, is
}

// overruledAt reports whether a prefix overlaps what another node was given.
func (n *claimant) overruledAt(p netip.Prefix) bool {
	_, is := n.overruledBy(p)
	return is
}

// sweep goes through contested prefixes in the order in which what holds another one
// comes before it.
type sweep struct {
	nodes     []claimant
	conflicts []parties // of each node, with which others
	specified bool
	around    []claimed // that hold what comes next, the narrowest last
}

// claimed is a prefix with all that claim it, a part of it, or something around it.
type claimed struct {
	claims []span
	own    sides
	outer  sides
	inner  sides
}

// sides are nodes: all that claim something, and those of them that were given it.
type sides struct{ all, given parties }

func (s *sides) join(o *sides) {
	s.all.join(&o.all)
	s.given.join(&o.given)
}

// enter goes on with a prefix, and what claims it.
func (s *sweep) enter(claims []span, alone bool) {
	c := claimed{claims: claims}
	for _, claim := range claims {
		c.own.all.add(claim.node)
		if s.specified && s.given(claim) {
			c.own.given.add(claim.node)
		}
	}
	if claims[0].single() && !alone {
		s.settle(&c)
		return
	}
	depth := len(s.around)
	for depth > 0 && !s.around[depth-1].claims[0].holds(claims[0]) {
		depth--
	}
	s.leave(depth)
	if depth > 0 {
		c.outer = s.around[depth-1].outer
		c.outer.join(&s.around[depth-1].own)
	}
	s.around = append(s.around, c)
}

// leave settles all prefixes but the widest ones, so many.
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

// settle says of the nodes that claim a prefix what it is in conflict with.
func (s *sweep) settle(c *claimed) {
	with := c.outer
	with.join(&c.own)
	with.join(&c.inner)
	for _, claim := range c.claims {
		with.all.others(claim.node, s.conflicts[claim.node].add)
		if s.specified && !s.given(claim) {
			with.given.others(claim.node, func(other int32) {
				n := &s.nodes[claim.node]
				n.noted().overruled[n.prefixes[claim.index]] = s.nodes[other].Name
			})
		}
	}
}

func (s *sweep) given(claim span) bool {
	n := &s.nodes[claim.node]
	return n.wasGiven(n.prefixes[claim.index])
}

// parties are nodes, of which three are kept: they answer whether there is another one
// than a node, and whether there are two.
type parties struct {
	nodes [3]int32 // by index, plus one
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

// others calls do with those that are kept, but for one.
func (p *parties) others(node int32, do func(int32)) {
	for _, other := range p.nodes {
		if other != 0 && other != node+1 {
			do(other - 1)
		}
	}
}
