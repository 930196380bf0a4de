package peers

import (
	"net/netip"
	"slices"

	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// Accepted holds the keys, prefixes and endpoints that were accepted, by node. The zero
// value has none. It is immutable.
//
// It keeps a node from taking over what another node has by claiming an earlier creation
// time: age decides only between new claims. What a node no longer claims, because it was
// deleted or has another key or other prefixes, is free at once.
type Accepted struct {
	keys     map[tunnel.Key]string
	prefixes map[string][]netip.Prefix // of a node, sorted
	peers    []Peer                    // with the accepted endpoints
	// joined are the nodes whose prefixes are allowed IPs of another one's peer, see join.
	joined map[string]struct{}
	// disputed holds, by the remote's node, the claim of a node of this cluster to its
	// accepted endpoint, which is retained.
	disputed map[string]string
	// undecided is set if what the remote's control plane allocated may decide about a new prefix,
	// and isn't known of all nodes.
	undecided bool
}

// hasPrefix reports whether a prefix was accepted from a node.
func (a Accepted) hasPrefix(node string, p netip.Prefix) bool {
	_, has := slices.BinarySearchFunc(a.prefixes[node], p, netip.Prefix.Compare)
	return has
}

// hasEndpoint reports whether an endpoint with the address was accepted from a node. It
// searches all peers, since it is called only for addresses that nodes of this cluster
// claim.
func (a Accepted) hasEndpoint(node string, addr netip.Addr) bool {
	return slices.ContainsFunc(a.peers, func(p Peer) bool { return p.Node == node && p.Endpoint.Addr() == addr })
}

// Remembered is a node with the prefixes that were accepted from it.
type Remembered struct {
	Node
	// Prefixes are sorted; nil in files of versions that did not store them.
	Prefixes []netip.Prefix `json:"accepted"`
}

// retainedKeys returns the accepted keys that their nodes still claim, with these nodes.
func (a Accepted) retainedKeys(nodes []*Node, rules *Rules) map[tunnel.Key]string {
	keys := make(map[tunnel.Key]string, len(nodes))
	for _, n := range nodes {
		if owner, known := a.keys[n.key]; known && owner == n.Name && n.keyErr == nil && !slices.Contains(rules.OwnKeys, n.key) {
			keys[n.key] = n.Name
		}
	}
	return keys
}

// remember returns the nodes that are peers, with their accepted prefixes, and then those that
// joined one: the first one with a key has it.
func (a Accepted) remember(nodes []*Node, peers []Peer) []Remembered {
	of := make(map[string]struct{}, len(peers))
	for i := range peers {
		of[peers[i].Node] = struct{}{}
	}
	all := make([]Remembered, 0, len(of)+len(a.joined))
	for _, names := range []map[string]struct{}{of, a.joined} {
		for _, n := range nodes {
			if _, is := names[n.Name]; is {
				all = append(all, Remembered{*n, append([]netip.Prefix{}, a.prefixes[n.Name]...)})
			}
		}
	}
	return all
}

// recall is the inverse of remember. Nodes stored without prefixes count as not accepted
// yet.
func recall(all []Remembered) ([]*Node, Accepted) {
	nodes := make([]*Node, len(all))
	a := Accepted{keys: map[tunnel.Key]string{}, prefixes: map[string][]netip.Prefix{}}
	taken := map[netip.Prefix]struct{}{}
	for i := range all {
		n := &all[i]
		nodes[i] = &n.Node
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
		if at, err := parseEndpoint(nodes[i].Endpoint); err == nil && at.IsValid() {
			a.peers = append(a.peers, Peer{Node: nodes[i].Name, Peer: tunnel.Peer{Endpoint: at}})
		}
	}
	return nodes, a
}
