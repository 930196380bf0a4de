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

// maxAddrs is how many addresses of one node count. One that lists more keeps endpoints
// of remotes out.
const maxAddrs = 64

// TrimLocalNode trims a node of this cluster. Node heartbeats leave the result
// equal. What it publishes of its pods doesn't count: that is its own word.
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

// tooWide tells of a prefix that it can't be for the pods of one node. One that is
// wrong there would end the peers of all remotes.
func tooWide(p netip.Prefix) bool {
	if p.Addr().Is4() {
		return p.Bits() < 16
	}
	return p.Bits() < 48
}

// Equal tells whether two states of a node take the same addresses.
func (n LocalNode) Equal(o LocalNode) bool {
	return n.Name == o.Name && slices.Equal(n.Addrs, o.Addrs) && slices.Equal(n.PodCIDRs, o.PodCIDRs)
}

// nodePodCIDRs returns the pod prefixes of a node's specification that can be
// read.
func nodePodCIDRs(n *corev1.Node) []netip.Prefix { return parseAll(specPodCIDRs(n)) }

// Local holds the addresses of this cluster: those of its nodes, pods and
// services. It is never changed once it is made.
type Local struct {
	nodes map[netip.Addr]string // by address, the node's name
	// ranges are looked up by length, so that a look-up takes as many steps as
	// there are lengths (nearly always two per family), not as there are nodes.
	ranges  map[netip.Prefix]localRange
	lengths []int
}

// localRange is a range of this cluster's addresses.
type localRange struct {
	node string // whose pods have it; empty: certain
	what string // where it is certain
}

func (r localRange) String() string {
	if r.node != "" {
		return fmt.Sprintf("pods of this cluster's node %q", r.node)
	}
	return r.what
}

// less has what is certain come first.
func (r localRange) less(o localRange) bool {
	if r.node != o.node {
		return r.node < o.node
	}
	return r.what < o.what
}

// LocalConfig says what the addresses of this cluster are.
type LocalConfig struct {
	Nodes    []LocalNode
	Services []netip.Prefix // that addresses of services are taken from
	Subnets  []netip.Prefix // as configured, for what the API doesn't tell
}

// NewLocal returns the addresses of this cluster. The order of what it is given
// doesn't matter.
func NewLocal(cfg LocalConfig) *Local {
	l := &Local{nodes: make(map[netip.Addr]string, 2*len(cfg.Nodes)), ranges: make(map[netip.Prefix]localRange, 2*len(cfg.Nodes))}
	var seen [129]bool
	add := func(p netip.Prefix, r localRange) {
		if other, taken := l.ranges[p]; !taken || r.less(other) {
			l.ranges[p] = r
		}
		seen[p.Bits()] = true
	}
	for i := range cfg.Nodes {
		n := &cfg.Nodes[i]
		for _, a := range n.Addrs {
			if other, taken := l.nodes[a]; !taken || n.Name < other {
				l.nodes[a] = n.Name
			}
		}
		for _, p := range n.PodCIDRs {
			add(p, localRange{node: n.Name})
		}
	}
	for _, p := range cfg.Services {
		add(p, localRange{what: "services of this cluster"})
	}
	for _, p := range cfg.Subnets {
		add(p, localRange{what: "this cluster itself, by SEMAPHORE_LOCAL_SUBNETS"})
	}
	for bits, ok := range seen {
		if ok {
			l.lengths = append(l.lengths, bits)
		}
	}
	return l
}

// holds returns an error that says what of this cluster has the address; nil when nothing
// has. Certain is what doesn't come from a Node, which kubelets write.
func (l *Local) holds(addr netip.Addr) (certain bool, err error) {
	if l == nil {
		return false, nil
	}
	if node, ours := l.nodes[addr]; ours {
		err = fmt.Errorf("the address is that of this cluster's node %q", node)
	}
	for _, bits := range l.lengths {
		p, bad := addr.Prefix(bits)
		if bad != nil {
			break // Lengths of the other family are all that is left.
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
