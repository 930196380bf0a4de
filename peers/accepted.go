package peers

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// Accepted says which keys, prefixes and endpoints were accepted, and of which node. The
// zero value says that none were. It is never changed.
//
// It is what keeps a node from taking what is another's by stating that it was
// created earlier: age decides only about what nobody has. What a node no longer
// claims, because it is gone, has another key or other prefixes, is free at once.
type Accepted struct {
	keys     map[tunnel.Key]string
	prefixes map[string][]netip.Prefix // of a node, sorted
	// moved are the single addresses that went from one node to another lately,
	// while both claimed them.
	moved map[netip.Prefix]moves
	peers []Peer // with the endpoints that were accepted
	// disputed says what a node of this cluster says of itself against such an endpoint,
	// which stays, by the remote's node.
	disputed map[string]string
}

// moves says when an address last went to another node, and how often it did
// without staying for flapping.
type moves struct {
	last  time.Time
	count int
}

// An address that went to another node maxMoves times, each time within flapping of
// the time before, stays where it is until it has been there for that long.
const (
	maxMoves = 3
	flapping = time.Minute
)

// flaps tells whether an address stays where it is.
func (a Accepted) flaps(p netip.Prefix, now time.Time) bool {
	m := a.moved[p]
	return m.count >= maxMoves && now.Sub(m.last) < flapping
}

// has tells whether a prefix was accepted of a node.
func (a Accepted) has(node string, p netip.Prefix) bool {
	_, has := slices.BinarySearchFunc(a.prefixes[node], p, netip.Prefix.Compare)
	return has
}

// at reports whether an endpoint with the address was accepted of a node. It looks at all
// peers, and is asked only about addresses that nodes of this cluster claim.
func (a Accepted) at(node string, addr netip.Addr) bool {
	return slices.ContainsFunc(a.peers, func(p Peer) bool { return p.Node == node && p.Endpoint.Addr() == addr })
}

// Remembered is a node with the prefixes that were accepted of it.
type Remembered struct {
	Node
	// Prefixes are sorted. Nil where a version wrote it that didn't keep them.
	Prefixes []netip.Prefix `json:"accepted"`
}

// renewed returns the keys that were accepted before and are still claimed by the
// node of which they were, and whose they are.
func (a Accepted) renewed(nodes []claimant, rules *Rules) map[tunnel.Key]string {
	keys := make(map[tunnel.Key]string, len(nodes))
	for _, n := range nodes {
		if owner, known := a.keys[n.key]; known && owner == n.Name && n.keyErr == nil && !slices.Contains(rules.OwnKeys, n.key) {
			keys[n.key] = n.Name
		}
	}
	return keys
}

// still returns which of a node's prefixes were accepted of it before and are still
// within bounds.
func (a Accepted) still(n *claimant, rules *Rules) []netip.Prefix {
	before := a.prefixes[n.Name]
	if len(before) == 0 {
		return nil
	}
	gone := func(p netip.Prefix) bool { return !a.has(n.Name, p) || !within(p, rules.Subnets) }
	if !slices.ContainsFunc(n.prefixes, gone) {
		return n.prefixes
	}
	return slices.DeleteFunc(slices.Clone(n.prefixes), gone)
}

// remember returns those of the nodes that are peers, with what was accepted of them.
func (a Accepted) remember(nodes []Node, peers []Peer) []Remembered {
	of := make(map[string]struct{}, len(peers))
	for i := range peers {
		of[peers[i].Node] = struct{}{}
	}
	all := make([]Remembered, 0, len(of))
	for _, n := range nodes {
		if _, is := of[n.Name]; is {
			all = append(all, Remembered{n, append([]netip.Prefix{}, a.prefixes[n.Name]...)})
		}
	}
	return all
}

// recall returns what was accepted of nodes that remember returned, and the nodes.
// Those of which a version before wrote no prefixes come after the others, by age.
func recall(all []Remembered) ([]Node, Accepted) {
	nodes := make([]Node, len(all))
	a := Accepted{keys: map[tunnel.Key]string{}, prefixes: map[string][]netip.Prefix{}}
	taken := map[netip.Prefix]struct{}{}
	for i := range all {
		n := &all[i]
		nodes[i] = n.Node
		if n.Prefixes == nil {
			continue
		}
		key, err := tunnel.ParseKey(n.PublicKey)
		if _, taken := a.keys[key]; err == nil && !taken {
			a.keys[key] = n.Name
		}
		var own []netip.Prefix
		for _, p := range n.Prefixes {
			p = p.Masked()
			if _, twice := taken[p]; !twice && p.IsValid() {
				taken[p] = struct{}{}
				own = append(own, p)
			}
		}
		slices.SortFunc(own, netip.Prefix.Compare)
		a.prefixes[n.Name] = own
	}
	for i := range nodes {
		if at, err := readEndpoint(nodes[i].Endpoint); err == nil && at.IsValid() {
			a.peers = append(a.peers, Peer{Node: nodes[i].Name, Peer: tunnel.Peer{Endpoint: at}})
		}
	}
	return nodes, a
}

// moves returns which of the contested single addresses went from one node to
// another lately. Held are their holders now.
func (a Accepted) moves(nodes []claimant, held map[netip.Prefix]string, now time.Time) map[netip.Prefix]moves {
	if len(held)+len(a.moved) == 0 {
		return nil
	}
	moved := maps.Clone(a.moved)
	maps.DeleteFunc(moved, func(_ netip.Prefix, m moves) bool { return now.Sub(m.last) >= flapping })
	for i := 0; i < len(nodes) && len(held) > 0; i++ {
		n := &nodes[i]
		for _, p := range n.prefixes {
			holder, contested := held[p]
			if !contested || holder == n.Name || !single(p) || !a.has(n.Name, p) || a.has(holder, p) {
				continue
			}
			if moved == nil {
				moved = map[netip.Prefix]moves{}
			}
			moved[p] = moves{last: now, count: moved[p].count + 1}
		}
	}
	return moved
}
