package peers

import (
	"net/netip"
	"slices"

	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// Accepted says which keys and prefixes were accepted, and of which node. The zero
// value says that none were. It is never changed.
//
// It is what keeps a node from taking what is another's by stating that it was
// created earlier: age decides only about what nobody has. What a node no longer
// claims, because it is gone, has another key or other prefixes, is free at once.
type Accepted struct {
	keys     map[tunnel.Key]string
	prefixes map[netip.Prefix]string
}

// Remembered is a node with the prefixes that were accepted of it.
type Remembered struct {
	Node
	// Prefixes are sorted. Nil where a version wrote it that didn't keep them.
	Prefixes []netip.Prefix `json:"accepted"`
}

// renewed claims what was accepted before and is still claimed by the node of which
// it was. It returns whose the keys are.
func (a Accepted) renewed(nodes []claimant, rules Rules, claims *claims) map[tunnel.Key]string {
	keys := make(map[tunnel.Key]string, len(nodes))
	for _, n := range nodes {
		if owner, known := a.keys[n.key]; known && owner == n.Name && n.keyErr == nil && !slices.Contains(rules.OwnKeys, n.key) {
			keys[n.key] = n.Name
		}
		for _, c := range n.podCIDRs {
			if owner, known := a.prefixes[c.prefix]; known && owner == n.Name && c.err == nil && within(c.prefix, rules.Subnets) {
				claims.renew(c.prefix, n.Name)
			}
		}
	}
	return keys
}

// remember returns those of the nodes that are peers, with what was accepted of them.
func (a Accepted) remember(nodes []Node, peers []Peer) []Remembered {
	of := make(map[string][]netip.Prefix, len(peers))
	for i := range peers {
		of[peers[i].Node] = []netip.Prefix{}
	}
	for p, node := range a.prefixes {
		if prefixes, is := of[node]; is {
			of[node] = append(prefixes, p)
		}
	}
	all := make([]Remembered, 0, len(of))
	for _, n := range nodes {
		prefixes, is := of[n.Name]
		if !is {
			continue
		}
		slices.SortFunc(prefixes, netip.Prefix.Compare)
		all = append(all, Remembered{n, prefixes})
	}
	return all
}

// recall returns what was accepted of nodes that remember returned, and the nodes.
// Those of which a version before wrote no prefixes come after the others, by age.
func recall(all []Remembered) ([]Node, Accepted) {
	nodes := make([]Node, len(all))
	a := Accepted{keys: map[tunnel.Key]string{}, prefixes: map[netip.Prefix]string{}}
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
		for _, p := range n.Prefixes {
			if _, taken := a.prefixes[p]; !taken && p.IsValid() {
				a.prefixes[p.Masked()] = n.Name
			}
		}
	}
	return nodes, a
}
