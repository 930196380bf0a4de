package peers

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// LocalNode is a node of this cluster, trimmed to the addresses that no remote
// endpoint may have.
type LocalNode struct {
	Name     string
	Addrs    []netip.Addr   // of all types
	PodCIDRs []netip.Prefix // masked
}

// maxAddrs bounds the addresses of one node, each of which may reject endpoints of remotes.
const maxAddrs = 64

// TrimLocalNode trims a node of this cluster. Heartbeats leave the result equal. The pod
// prefixes that the node publishes itself are ignored.
func TrimLocalNode(n *corev1.Node) LocalNode {
	local := LocalNode{Name: n.Name, PodCIDRs: slices.DeleteFunc(nodePodCIDRs(n), tooWide)}
	for _, a := range n.Status.Addresses {
		// A host name may be an address.
		if addr, err := netip.ParseAddr(a.Address); err == nil {
			local.Addrs = append(local.Addrs, addr.Unmap().WithZone(""))
		}
	}
	slices.SortFunc(local.Addrs, netip.Addr.Compare)
	local.Addrs = slices.Compact(local.Addrs)
	local.Addrs = slices.Clip(local.Addrs[:min(len(local.Addrs), maxAddrs)])
	return local
}

// tooWide reports whether a prefix is too wide for the pods of one node: a bogus one
// would reject the peers of all remotes.
func tooWide(p netip.Prefix) bool {
	if p.Addr().Is4() {
		return p.Bits() < 16
	}
	return p.Bits() < 48
}

// Equal reports whether two states of a node have the same addresses.
func (n LocalNode) Equal(o LocalNode) bool {
	return n.Name == o.Name && slices.Equal(n.Addrs, o.Addrs) && slices.Equal(n.PodCIDRs, o.PodCIDRs)
}

// nodePodCIDRs returns the valid prefixes of a node's spec.podCIDRs.
func nodePodCIDRs(n *corev1.Node) []netip.Prefix { return parseAll(specPodCIDRs(n)) }

// Local holds the addresses of this cluster's nodes, pods and services. It is immutable.
type Local struct {
	nodes map[netip.Addr]string // by address, the node's name
	// ranges are looked up by length, so that the cost of a lookup grows with the number
	// of lengths (nearly always two per family), not of nodes.
	ranges  map[netip.Prefix]localRange
	lengths []int
}

// localRange is a range of this cluster's addresses.
type localRange struct {
	node string // whose pods have it; empty: not stated by a node
	what string // if node is empty
}

func (r localRange) String() string {
	if r.node != "" {
		return fmt.Sprintf("pods of this cluster's node %q", r.node)
	}
	return r.what
}

// less sorts ranges that are not stated by a node first.
func (r localRange) less(o localRange) bool {
	if r.node != o.node {
		return r.node < o.node
	}
	return r.what < o.what
}

// NewLocal returns a Local of this cluster's nodes, service ranges, and configured subnets,
// for addresses that the API doesn't have. The order of its input doesn't matter.
func NewLocal(nodes []LocalNode, services, subnets []netip.Prefix) *Local {
	l := &Local{nodes: make(map[netip.Addr]string, 2*len(nodes)), ranges: make(map[netip.Prefix]localRange, 2*len(nodes))}
	var seen [129]bool
	add := func(p netip.Prefix, r localRange) {
		if other, taken := l.ranges[p]; !taken || r.less(other) {
			l.ranges[p] = r
		}
		seen[p.Bits()] = true
	}
	for i := range nodes {
		n := &nodes[i]
		for _, a := range n.Addrs {
			if other, taken := l.nodes[a]; !taken || n.Name < other {
				l.nodes[a] = n.Name
			}
		}
		for _, p := range n.PodCIDRs {
			add(p, localRange{node: n.Name})
		}
	}
	for _, p := range services {
		add(p, localRange{what: "services of this cluster"})
	}
	for _, p := range subnets {
		add(p, localRange{what: "this cluster itself, by SEMAPHORE_LOCAL_SUBNETS"})
	}
	for bits, ok := range seen {
		if ok {
			l.lengths = append(l.lengths, bits)
		}
	}
	return l
}

// check returns an error if the address belongs to this cluster. certain is false if only
// a Node object says so, which kubelets write.
func (l *Local) check(addr netip.Addr) (certain bool, err error) {
	if l == nil {
		return false, nil
	}
	if node, ours := l.nodes[addr]; ours {
		err = fmt.Errorf("an address of this cluster's node %q", node)
	}
	for _, bits := range l.lengths {
		p, bad := addr.Prefix(bits)
		if bad != nil {
			break // The remaining lengths are of IPv6.
		}
		r, ours := l.ranges[p]
		if ours && r.node == "" {
			return true, fmt.Errorf("%s is for %s", p, r)
		}
		if ours && err == nil {
			err = fmt.Errorf("%s is for %s", p, r)
		}
	}
	return false, err
}
