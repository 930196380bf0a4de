package policy

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
)

// DefaultMaxSets is how many sets one remote may make where Rules doesn't say.
// Every set costs each node of the local cluster memory and time.
const DefaultMaxSets = 5000

// Rules are the bounds within which a remote is trusted.
type Rules struct {
	// Cluster is the remote's name.
	Cluster string
	// Subnets are where its pods have their addresses; none: anywhere.
	Subnets []netip.Prefix
	// IncludeHostNetwork lets the addresses of pods on the host network in.
	IncludeHostNetwork bool
	// MaxSets bounds how many sets the remote may have; 0: DefaultMaxSets.
	MaxSets int
}

// Members is what the sets of a remote must hold.
type Members struct {
	// Sets have the addresses of each set, sorted and without duplicates, at
	// least one.
	Sets map[Identity][]netip.Addr
	// Skipped are the pods that are in no set, or not with all of their
	// addresses.
	Skipped Skipped
}

// Collect finds out what the sets of a remote must hold, from all of its pods
// in any order.
//
// An address is in a set as long as at least one pod of the set has it. When
// there are more sets than the rules allow, those that exists says are there
// already come first, then those with the oldest pods.
func Collect(pods []Pod, rules Rules, exists func(Identity) bool) Members {
	members := Members{Sets: map[Identity][]netip.Addr{}, Skipped: Skipped{}}
	groups := map[Identity]*group{}
	for i := range pods {
		p := &pods[i]
		v4, v6, reason := rules.admit(p)
		if reason != "" {
			members.Skipped.add(reason, p)
		}
		if !v4.IsValid() && !v6.IsValid() {
			continue
		}
		id := Identity{Cluster: rules.Cluster, Namespace: p.Namespace, Name: p.Set}
		g := groups[id]
		if g == nil {
			g = &group{oldest: p.Created}
			groups[id] = g
		}
		g.oldest = min(g.oldest, p.Created)
		g.pods = append(g.pods, p)
		if v4.IsValid() {
			g.addrs = append(g.addrs, v4)
		}
		if v6.IsValid() {
			g.addrs = append(g.addrs, v6)
		}
	}
	for _, id := range beyond(groups, cmp.Or(rules.MaxSets, DefaultMaxSets), exists) {
		for _, p := range groups[id].pods {
			members.Skipped.add(ReasonTooManySets, p)
		}
		delete(groups, id)
	}
	for id, g := range groups {
		slices.SortFunc(g.addrs, netip.Addr.Compare)
		members.Sets[id] = slices.Compact(g.addrs)
	}
	return members
}

// group is the pods of one set.
type group struct {
	pods   []*Pod
	addrs  []netip.Addr
	oldest int64 // when the first of them was created
}

// admit returns the addresses with which a pod is in its set, invalid ones
// where there are none, and why others are not.
func (r *Rules) admit(p *Pod) (v4, v6 netip.Addr, reason Reason) {
	switch {
	case p.Fault == ReasonBadName:
		return v4, v6, ReasonBadName
	case p.Finished:
		return v4, v6, ReasonFinished
	case p.HostNetwork && !r.IncludeHostNetwork:
		return v4, v6, ReasonHostNetwork
	}
	reason = p.Fault
	inside := func(addr netip.Addr) netip.Addr {
		if !addr.IsValid() || r.inside(addr) {
			return addr
		}
		reason = ReasonOutside
		return netip.Addr{}
	}
	v4, v6 = inside(p.V4), inside(p.V6)
	if reason == "" && !v4.IsValid() && !v6.IsValid() {
		reason = ReasonNoAddress
	}
	return v4, v6, reason
}

func (r *Rules) inside(addr netip.Addr) bool {
	return len(r.Subnets) == 0 || slices.ContainsFunc(r.Subnets, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// beyond returns the groups that are more than there may be.
func beyond(groups map[Identity]*group, most int, exists func(Identity) bool) []Identity {
	if len(groups) <= most {
		return nil
	}
	type rank struct {
		id     Identity
		exists bool
		oldest int64
	}
	ranked := make([]rank, 0, len(groups))
	for id, g := range groups {
		ranked = append(ranked, rank{id, exists(id), g.oldest})
	}
	slices.SortFunc(ranked, func(a, b rank) int {
		if a.exists != b.exists {
			if a.exists {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(a.oldest, b.oldest), a.id.compare(b.id))
	})
	refused := make([]Identity, 0, len(ranked)-most)
	for _, r := range ranked[most:] {
		refused = append(refused, r.id)
	}
	return refused
}

// maxExamples is how many pods a report names for one reason.
const maxExamples = 10

// Skipped counts pods by the reason for which they are skipped.
type Skipped map[Reason]*SkippedPods

// SkippedPods are the pods that are skipped for one reason.
type SkippedPods struct {
	// Pods is how many there are.
	Pods int `json:"pods"`
	// Examples names some, as namespace/name; the first ones in that order.
	Examples []string `json:"examples"`
}

func (s Skipped) add(reason Reason, p *Pod) {
	pods := s[reason]
	if pods == nil {
		pods = &SkippedPods{}
		s[reason] = pods
	}
	pods.Pods++
	at, found := slices.BinarySearchFunc(pods.Examples, p, func(example string, p *Pod) int {
		namespace, name, _ := strings.Cut(example, "/")
		return cmp.Or(cmp.Compare(namespace, p.Namespace), cmp.Compare(name, p.Name))
	})
	if found || at == maxExamples {
		return
	}
	pods.Examples = slices.Insert(pods.Examples, at, p.Namespace+"/"+p.Name)
	pods.Examples = pods.Examples[:min(len(pods.Examples), maxExamples)]
}
