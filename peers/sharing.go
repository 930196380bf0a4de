package peers

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/kube-semaphore/kube-semaphore/internal/printable"
)

// sharing decides which node gets which prefix:
//
//	what is claimed                     who gets it
//	a prefix that overlaps no other     who claims it
//	prefixes that overlap               to which the control plane gave it, where that is
//	                                    firm and the others have specifications, too; else
//	                                    of which it was accepted before, else to which it
//	                                    was given, else the oldest
//	                                    node that is in conflict with one other only,
//	                                    else the oldest; the others are rejected
//	a single address inside the prefix  who publishes it: the longest prefix decides,
//	of another node                     as in the kernel
//	the same single address, twice      in whose own prefix it lies, else as above;
//	                                    while it flaps, who has it
//
// Without Rules.Borrowed single addresses are prefixes as any other. What the control
// plane gave counts where specified says so.
type sharing struct {
	before    Accepted
	rules     *Rules
	contested map[netip.Prefix]struct{}
	specified bool
	firm      bool // specified is
	wide      *claims
	single    *claims // of single addresses; the same as wide without Rules.Borrowed

	bounded        bool // there are more than Rules.MaxAllowedIPs
	used, reserved int  // then: given away, and accepted before but not given away yet
}

// newSharing prepares for what nodes claim, who come in the order of their age. Those
// that are in conflict with several come after the others then.
func newSharing(before Accepted, nodes []claimant, rules *Rules) *sharing {
	s := &sharing{before: before, rules: rules, contested: contested(nodes, !rules.Borrowed)}
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
		s.specified, s.firm = specified(nodes)
	}
	if len(s.contested) > 0 {
		dispute(nodes, s.contested, !rules.Borrowed, s.specified)
		for i := range nodes {
			if !s.firm && nodes[i].unspecified() {
				nodes[i].keepAccepted(before)
			}
		}
		slices.SortStableFunc(nodes, func(a, b claimant) int { return cmp.Compare(a.rank(), b.rank()) })
	}
	if s.bounded {
		for i := range nodes {
			for _, p := range nodes[i].prefixes {
				if s.first(&nodes[i], p) {
					s.reserved++
				}
			}
		}
	}
	if len(s.contested) == 0 {
		return s
	}
	s.renew(nodes, func(n *claimant, p netip.Prefix) bool { return !s.apart(p) && before.has(n.Name, p) })
	if rules.Borrowed {
		s.renew(nodes, func(n *claimant, p netip.Prefix) bool {
			return s.apart(p) && !before.flaps(p, rules.Now) && s.lies(n, p)
		})
		s.renew(nodes, func(n *claimant, p netip.Prefix) bool { return s.apart(p) && before.has(n.Name, p) })
	}
	return s
}

// first reports whether a prefix comes before others where all together are too many.
func (s *sharing) first(n *claimant, p netip.Prefix) bool {
	return within(p, s.rules.Subnets) && !n.overruledAt(p) && (s.before.has(n.Name, p) || s.specified && n.wasGiven(p))
}

// apart tells whether what lies around a prefix doesn't matter.
func (s *sharing) apart(p netip.Prefix) bool { return s.rules.Borrowed && single(p) }

// of returns the claims that a prefix is among.
func (s *sharing) of(p netip.Prefix) *claims {
	if s.apart(p) {
		return s.single
	}
	return s.wide
}

// renew has nodes keep those of the contested prefixes that they are to have ahead of
// others.
func (s *sharing) renew(nodes []claimant, first func(*claimant, netip.Prefix) bool) {
	for i := range nodes {
		n := &nodes[i]
		for _, p := range n.prefixes {
			if _, is := s.contested[p]; is && within(p, s.rules.Subnets) && !n.overruledAt(p) && first(n, p) {
				s.of(p).renew(p, n.Name)
			}
		}
	}
}

// lies tells whether a single address lies in a prefix that is the node's own: one
// that it was given, that was accepted of it, or that no other node claims.
func (s *sharing) lies(n *claimant, address netip.Prefix) bool {
	if n.keyErr != nil || n.endpointErr != nil {
		return false
	}
	return slices.ContainsFunc(n.prefixes, func(p netip.Prefix) bool {
		if single(p) || !p.Contains(address.Addr()) || !within(p, s.rules.Subnets) || n.overruledAt(p) {
			return false
		}
		_, is := s.contested[p]
		return !is || s.before.has(n.Name, p) || s.specified && n.wasGiven(p)
	})
}

// still returns which of a node's prefixes were accepted of it before, are within
// bounds, and aren't another node's now.
func (s *sharing) still(n *claimant) []netip.Prefix {
	still := s.before.still(n, s.rules)
	if len(still) == 0 || len(s.contested) == 0 {
		return still
	}
	lost := func(p netip.Prefix) bool {
		_, is := s.contested[p]
		return is && s.of(p).held[p] != n.Name
	}
	if !slices.ContainsFunc(still, lost) {
		return still
	}
	return slices.DeleteFunc(slices.Clone(still), lost)
}

// allowed returns the prefixes that a node gets, sorted, and what was refused. A
// prefix that is refused doesn't take the node's others with it: in a cluster with
// two address families one may be configured here and the other not.
func (s *sharing) allowed(n *claimant) (allowed []netip.Prefix, refused []Rejection) {
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
		refuse(ReasonManyPrefixes, "the node has more than %d podCIDRs: the first ones count (SEMAPHORE_REMOTE_<NAME>_WG_MAX_PREFIXES)", s.rules.MaxPrefixes)
	}
	return allowed, refused
}

// grant decides whether a node gets a prefix.
func (s *sharing) grant(n *claimant, p netip.Prefix, refuse func(Reason, string, ...any)) bool {
	if !within(p, s.rules.Subnets) {
		refuse(ReasonPodCIDR, "pod CIDR %s lies outside the remote's pod subnets %s", p, join(s.rules.Subnets))
		return false
	}
	if other, is := n.overruledBy(p); is {
		refuse(ReasonDuplicatePrefix, "pod CIDR %s overlaps what the remote's control plane gave to node %q", p, other)
		return false
	}
	if s.bounded {
		if s.first(n, p) {
			s.reserved--
		} else if s.used+s.reserved >= s.rules.MaxAllowedIPs {
			refuse(ReasonManyPrefixes, "pod CIDR %s is beyond the %d that all nodes may have, and others come first (SEMAPHORE_REMOTE_<NAME>_WG_MAX_ALLOWED_IPS)", p, s.rules.MaxAllowedIPs)
			return false
		}
		if s.used >= s.rules.MaxAllowedIPs {
			refuse(ReasonManyPrefixes, "pod CIDR %s is beyond the %d that all nodes may have (SEMAPHORE_REMOTE_<NAME>_WG_MAX_ALLOWED_IPS)", p, s.rules.MaxAllowedIPs)
			return false
		}
	}
	if _, is := s.contested[p]; is {
		if owner, other, taken := s.of(p).take(p, n.Name); taken {
			switch {
			case owner == n.Name:
			case s.apart(p) && s.before.flaps(p, s.rules.Now) && s.lies(n, p):
				refuse(ReasonFlapping, "address %s went from node to node %d times: it stays with node %q for now", p.Addr(), s.before.moved[p].count, owner)
			default:
				refuse(ReasonDuplicatePrefix, "pod CIDR %s overlaps %s of node %q, which comes first", p, other, owner)
			}
			return false
		}
	}
	s.used++
	return true
}

// maxRefused is how many prefixes of one node are told one by one.
const maxRefused = 4

// fewer returns as many of one node's rejections as are told.
func fewer(refused []Rejection) []Rejection {
	if left := len(refused) - maxRefused; left > 0 {
		refused = slices.Clone(refused[:maxRefused])
		refused[maxRefused-1].Detail += fmt.Sprintf("; and %d more like that", left)
	}
	return refused
}
