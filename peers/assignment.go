package peers

import (
	"cmp"
	"fmt"
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
//	                                    if nodeIPAM is firm or all have allocations;
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
// count if usesNodeIPAM.
type assignment struct {
	before    Accepted
	rules     *Rules
	contested map[netip.Prefix]struct{}
	nodeIPAM  bool // usesNodeIPAM
	firm      bool
	wide      *claims
	single    *claims // of single addresses; the same as wide without Rules.Borrowed

	bounded        bool // more prefixes are claimed than Rules.MaxAllowedIPs
	used, reserved int  // if bounded: assigned, and with precedence but not assigned yet
}

// newAssignment prepares the assignment to nodes, which are sorted by age. It sorts nodes
// that conflict with several others after the rest.
func newAssignment(before Accepted, nodes []claimant, rules *Rules) *assignment {
	s := &assignment{before: before, rules: rules, contested: contested(nodes, !rules.Borrowed)}
	s.wide = newClaims(s.contested)
	s.single = s.wide
	if rules.Borrowed {
		s.single = newClaims(s.contested)
	}
	total := 0
	for i := range nodes {
		total += len(nodes[i].prefixes)
	}
	s.bounded = rules.MaxAllowedIPs > 0 && total > rules.MaxAllowedIPs
	if s.bounded || len(s.contested) > 0 {
		s.nodeIPAM, s.firm = usesNodeIPAM(nodes)
	}
	if len(s.contested) > 0 {
		findConflicts(nodes, s.contested, !rules.Borrowed, s.nodeIPAM)
		for i := range nodes {
			if !s.firm && nodes[i].unallocated() {
				nodes[i].keepAccepted(before)
			}
		}
		slices.SortStableFunc(nodes, func(a, b claimant) int { return cmp.Compare(a.rank(), b.rank()) })
	}
	if s.bounded {
		for i := range nodes {
			for _, p := range nodes[i].prefixes {
				if s.hasPrecedence(&nodes[i], p) {
					s.reserved++
				}
			}
		}
	}
	if len(s.contested) == 0 {
		return s
	}
	s.reserve(nodes, func(n *claimant, p netip.Prefix) bool { return !s.isBorrowed(p) && before.hasPrefix(n.Name, p) })
	if rules.Borrowed {
		s.reserve(nodes, func(n *claimant, p netip.Prefix) bool {
			return s.isBorrowed(p) && !before.isFlapping(p, rules.Now) && s.inOwnPrefix(n, p)
		})
		s.reserve(nodes, func(n *claimant, p netip.Prefix) bool { return s.isBorrowed(p) && before.hasPrefix(n.Name, p) })
	}
	return s
}

// hasPrecedence reports whether a prefix takes precedence when there are too many.
func (s *assignment) hasPrecedence(n *claimant, p netip.Prefix) bool {
	return within(p, s.rules.Subnets) && !n.overruledAt(p) && (s.before.hasPrefix(n.Name, p) || s.nodeIPAM && n.isAllocated(p))
}

// isBorrowed reports whether a prefix is a single address for which enclosing prefixes
// don't matter.
func (s *assignment) isBorrowed(p netip.Prefix) bool { return s.rules.Borrowed && single(p) }

// claimsOf returns the claims for prefixes of p's kind.
func (s *assignment) claimsOf(p netip.Prefix) *claims {
	if s.isBorrowed(p) {
		return s.single
	}
	return s.wide
}

// reserve claims the contested prefixes that first accepts ahead of the others.
func (s *assignment) reserve(nodes []claimant, first func(*claimant, netip.Prefix) bool) {
	for i := range nodes {
		n := &nodes[i]
		for _, p := range n.prefixes {
			if _, is := s.contested[p]; is && within(p, s.rules.Subnets) && !n.overruledAt(p) && first(n, p) {
				s.claimsOf(p).reserve(p, n.Name)
			}
		}
	}
}

// inOwnPrefix reports whether a single address lies in a prefix of the node itself: one
// that is allocated to it, was accepted from it, or that no other node claims.
func (s *assignment) inOwnPrefix(n *claimant, address netip.Prefix) bool {
	if n.keyErr != nil || n.endpointErr != nil {
		return false
	}
	return slices.ContainsFunc(n.prefixes, func(p netip.Prefix) bool {
		if single(p) || !p.Contains(address.Addr()) || !within(p, s.rules.Subnets) || n.overruledAt(p) {
			return false
		}
		_, is := s.contested[p]
		return !is || s.before.hasPrefix(n.Name, p) || s.nodeIPAM && n.isAllocated(p)
	})
}

// retained returns the accepted prefixes that the node still claims and that are not
// assigned to another node now.
func (s *assignment) retained(n *claimant) []netip.Prefix {
	still := s.before.retainedPrefixes(n, s.rules)
	if len(still) == 0 || len(s.contested) == 0 {
		return still
	}
	lost := func(p netip.Prefix) bool {
		_, is := s.contested[p]
		return is && s.claimsOf(p).held[p] != n.Name
	}
	if !slices.ContainsFunc(still, lost) {
		return still
	}
	return slices.DeleteFunc(slices.Clone(still), lost)
}

// assign returns the prefixes assigned to a node, sorted, and the rejected ones. A
// rejected prefix doesn't affect the node's others: in a dual-stack cluster only one
// family may be configured here.
func (s *assignment) assign(n *claimant) (allowed []netip.Prefix, refused []Rejection) {
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
	return allowed, refused
}

// grant reports whether a prefix is assigned to a node.
func (s *assignment) grant(n *claimant, p netip.Prefix, refuse func(Reason, string, ...any)) bool {
	if !within(p, s.rules.Subnets) {
		refuse(ReasonPodCIDR, "pod CIDR %s is outside the remote's pod subnets %s", p, join(s.rules.Subnets))
		return false
	}
	if other, is := n.overruledBy(p); is {
		refuse(ReasonDuplicatePrefix, "pod CIDR %s overlaps a prefix that the remote's control plane allocated to node %q", p, other)
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
	if _, is := s.contested[p]; is {
		if owner, other, taken := s.claimsOf(p).claim(p, n.Name); taken {
			switch {
			case owner == n.Name:
			case s.isBorrowed(p) && s.before.isFlapping(p, s.rules.Now) && s.inOwnPrefix(n, p):
				refuse(ReasonFlapping, "address %s moved between nodes %d times: it stays with node %q for now", p.Addr(), s.before.moved[p].count, owner)
			default:
				refuse(ReasonDuplicatePrefix, "pod CIDR %s overlaps %s of node %q, which takes precedence", p, other, owner)
			}
			return false
		}
	}
	s.used++
	return true
}

// maxRefused bounds the rejections of one node's prefixes that are listed singly.
const maxRefused = 4

// fewer truncates one node's rejections to maxRefused.
func fewer(refused []Rejection) []Rejection {
	if left := len(refused) - maxRefused; left > 0 {
		refused = slices.Clone(refused[:maxRefused])
		refused[maxRefused-1].Detail += fmt.Sprintf("; and %d more", left)
	}
	return refused
}
