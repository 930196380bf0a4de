package peers

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/kube-semaphore/kube-semaphore/internal/printable"
)

// Of overlapping prefixes of several nodes, the first rule that distinguishes them decides:
//
//	| rule | the prefix                                             | of which node |
//	| ---- | ------------------------------------------------------ | ------------- |
//	| 1    | was accepted from the node before, which still         | that node     |
//	|      | publishes it                                           |               |
//	| 2    | lies in what the control plane allocated to the node,  | that node     |
//	|      | and is not borrowed                                    |               |
//	| 3    | neither                                                | the older one |
//
// Prefixes of one rule go to the older node, too. A single address is borrowed if Rules.Borrowed is
// set: a prefix around it doesn't count, since the longest prefix decides, as in the kernel. The same
// rules decide which prefixes are accepted if they are too many.
type rule uint8

const (
	ruleAccepted rule = iota + 1
	ruleAllocated
	ruleOlder
)

// ruleFor is the table.
func ruleFor(before *Accepted, rules *Rules, n *Node, p netip.Prefix) rule {
	switch {
	case before.hasPrefix(n.Name, p):
		return ruleAccepted
	case n.isAllocated(p) && !rules.borrowed(p):
		return ruleAllocated
	default:
		return ruleOlder
	}
}

// borrowed reports whether a prefix is a single address for which prefixes around it don't matter.
func (r *Rules) borrowed(p netip.Prefix) bool { return r.Borrowed && p.IsSingleIP() }

// assignment is which prefixes are assigned to which nodes.
type assignment struct {
	before Accepted
	rules  *Rules
	// places are the prefixes inside the remote's subnets that nodes claim, sorted, if any overlap or
	// they are too many; none: each node has those that it claims, as in nearly all meshes.
	places []place
	at     map[netip.Prefix]int // index of places
	nodes  []*Node              // by age
	// bounded is set if more prefixes are claimed than Rules.MaxAllowedIPs, bare if what the control
	// plane allocated to some nodes isn't known. Then nothing new is assigned that rule 2 may decide
	// about, and undecided is set if there is such a prefix.
	bounded, bare, undecided bool
}

// place is a prefix that nodes claim.
type place struct {
	prefix    netip.Prefix
	around    int  // the narrowest place that contains it; -1: none
	contested bool // it overlaps another one, or several nodes claim it
	holder    int  // the node that it is assigned to; -1: none
	inside    int  // a place inside it that has a holder; -1: none
}

// claim is a node's claim to a prefix.
type claim struct {
	prefix netip.Prefix
	node   int // index
	rule   rule
}

// newAssignment assigns prefixes to nodes, which are sorted by age. Those that aren't sound only keep
// what was accepted from them.
func newAssignment(before Accepted, nodes []*Node, sound []bool, rules *Rules) *assignment {
	s := &assignment{before: before, rules: rules, nodes: nodes}
	count := 0
	for _, n := range nodes {
		count += len(n.prefixes)
	}
	claims := make([]claim, 0, count)
	for i, n := range nodes {
		for _, p := range n.prefixes {
			if within(p, rules.Subnets) {
				claims = append(claims, claim{prefix: p, node: i})
			}
		}
	}
	s.bounded = rules.MaxAllowedIPs > 0 && len(claims) > rules.MaxAllowedIPs
	if overlap := s.place(claims); !overlap && !s.bounded {
		s.places = nil
		return s
	}
	s.bare = slices.ContainsFunc(nodes, func(n *Node) bool { return n.Bare })
	s.at = make(map[netip.Prefix]int, len(s.places))
	for i := range s.places {
		s.at[s.places[i].prefix] = i
	}
	for i := range claims {
		claims[i].rule = ruleFor(&before, rules, nodes[claims[i].node], claims[i].prefix)
	}
	slices.SortFunc(claims, func(a, b claim) int {
		return cmp.Or(cmp.Compare(a.rule, b.rule), cmp.Compare(a.node, b.node), comparePrefixes(a.prefix, b.prefix))
	})
	left := rules.MaxAllowedIPs
	for _, c := range claims {
		at := s.at[c.prefix]
		switch {
		case c.rule != ruleAccepted && !sound[c.node], s.bounded && left == 0, s.taken(at) >= 0:
			continue
		case c.rule == ruleOlder && s.waits(at):
			s.undecided = true
			continue
		}
		left--
		s.places[at].holder = c.node
		for around := s.places[at].around; around >= 0; around = s.places[around].around {
			s.places[around].inside = at
		}
	}
	return s
}

// comparePrefixes sorts an enclosing prefix before those inside it.
func comparePrefixes(a, b netip.Prefix) int {
	if c := a.Addr().Compare(b.Addr()); c != 0 {
		return c
	}
	return cmp.Compare(a.Bits(), b.Bits())
}

// place sorts claims by prefix and makes places of them. It reports whether any of them overlap.
func (s *assignment) place(claims []claim) (overlap bool) {
	slices.SortFunc(claims, func(a, b claim) int { return comparePrefixes(a.prefix, b.prefix) })
	s.places = make([]place, 0, len(claims))
	around := -1
	for i, c := range claims {
		last := len(s.places) - 1
		if i > 0 && claims[i-1].prefix == c.prefix {
			s.places[last].contested, overlap = true, true
			continue
		}
		s.places = append(s.places, place{prefix: c.prefix, around: -1, holder: -1, inside: -1})
		if s.rules.borrowed(c.prefix) {
			continue
		}
		for around >= 0 && !s.places[around].prefix.Contains(c.prefix.Addr()) {
			around = s.places[around].around
		}
		if last++; around >= 0 {
			s.places[last].around = around
			s.places[last].contested, s.places[around].contested, overlap = true, true, true
		}
		around = last
	}
	return overlap
}

// waits reports whether a place isn't assigned by age until what the control plane allocated is known.
func (s *assignment) waits(at int) bool {
	return s.bare && (s.bounded || s.places[at].contested) && !s.rules.borrowed(s.places[at].prefix)
}

// taken returns the place with a holder that a place is, contains, or lies in; -1: none.
func (s *assignment) taken(at int) int {
	if s.places[at].inside >= 0 {
		return s.places[at].inside
	}
	for ; at >= 0; at = s.places[at].around {
		if s.places[at].holder >= 0 {
			return at
		}
	}
	return -1
}

// has reports whether a prefix, which is inside the remote's subnets, is assigned to a node that claims
// it.
func (s *assignment) has(n *Node, p netip.Prefix) bool {
	if s.places == nil {
		return true
	}
	holder := s.places[s.at[p]].holder
	return holder >= 0 && s.nodes[holder] == n
}

// retained returns the prefixes that were accepted from a node, and are still assigned to it.
func (s *assignment) retained(n *Node) []netip.Prefix {
	if len(s.before.prefixes[n.Name]) == 0 {
		return nil
	}
	lost := func(p netip.Prefix) bool {
		return !s.before.hasPrefix(n.Name, p) || !within(p, s.rules.Subnets) || !s.has(n, p)
	}
	if !slices.ContainsFunc(n.prefixes, lost) {
		return n.prefixes
	}
	return slices.DeleteFunc(slices.Clone(n.prefixes), lost)
}

// of returns the prefixes assigned to a node, sorted, and the rejected ones. A rejected prefix doesn't
// affect the node's others: in a dual-stack cluster only one family may be configured here.
func (s *assignment) of(n *Node) (allowed []netip.Prefix, refused []Rejection) {
	refuse := func(reason Reason, format string, args ...any) {
		refused = append(refused, Rejection{Node: n.Name, Reason: reason, Detail: printable.Text(fmt.Sprintf(format, args...), printable.Short)})
	}
	if len(n.PodCIDRs) == 0 && !n.Published {
		refuse(ReasonPodCIDR, "the node has no podCIDR")
	}
	for _, err := range n.prefixErrs {
		refuse(ReasonPodCIDR, "%v", err)
	}
	lost := func(p netip.Prefix) bool {
		if within(p, s.rules.Subnets) {
			return !s.has(n, p)
		}
		return true
	}
	if allowed = slices.Clip(n.prefixes); slices.ContainsFunc(allowed, lost) {
		allowed = slices.DeleteFunc(slices.Clone(allowed), lost)
		for _, p := range n.prefixes {
			if lost(p) {
				s.explain(n, p, refuse)
			}
		}
	}
	if n.more {
		refuse(ReasonManyPrefixes, "the node has more than %d podCIDRs: only the first ones are used (SEMAPHORE_REMOTE_<NAME>_WG_MAX_PREFIXES)", s.rules.MaxPrefixes)
	}
	for i := range refused {
		refused[i].Partial = len(allowed) > 0
	}
	return allowed, fewer(refused)
}

// explain refuses a prefix that isn't assigned to a node, with the reason.
func (s *assignment) explain(n *Node, p netip.Prefix, refuse func(Reason, string, ...any)) {
	if !within(p, s.rules.Subnets) {
		refuse(ReasonPodCIDR, "pod CIDR %s is outside the remote's pod subnets %s", p, join(s.rules.Subnets))
		return
	}
	at := s.at[p]
	switch taken := s.taken(at); {
	case taken >= 0 && s.nodes[s.places[taken].holder] == n:
		if of := s.places[taken].prefix; of.Bits() > p.Bits() { // A wider one has the same packets.
			refuse(ReasonDuplicatePrefix, "pod CIDR %s contains %s of the node itself, which takes precedence: it must publish one of them", p, of)
		}
	case taken >= 0:
		refuse(ReasonDuplicatePrefix, "pod CIDR %s overlaps %s of node %q, which takes precedence", p, s.places[taken].prefix, s.nodes[s.places[taken].holder].Name)
	case s.waits(at) && s.places[at].contested:
		refuse(ReasonUndecided, "pod CIDR %s overlaps that of another node: it isn't assigned before the nodes have been read whole", p)
	case s.waits(at):
		refuse(ReasonUndecided, "more than %d pod CIDRs: %s isn't assigned before the nodes have been read whole", s.rules.MaxAllowedIPs, p)
	default:
		refuse(ReasonManyPrefixes, "pod CIDR %s exceeds the %d allowed for all nodes, and others take precedence (SEMAPHORE_REMOTE_<NAME>_WG_MAX_ALLOWED_IPS)", p, s.rules.MaxAllowedIPs)
	}
}
