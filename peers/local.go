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

// TrimLocalNode trims a node of this cluster. Node heartbeats leave the result
// equal.
func TrimLocalNode(n *corev1.Node) LocalNode {
	podCIDRs := nodePodCIDRs(n)
	if text, published := n.Annotations[PodCIDRsAnnotation]; published {
		podCIDRs = parsePrefixes(text)
	}
	local := LocalNode{Name: n.Name, PodCIDRs: slices.DeleteFunc(podCIDRs, tooWide)}
	for _, a := range n.Status.Addresses {
		// A host name may be an address.
		if addr, err := netip.ParseAddr(a.Address); err == nil {
			local.Addrs = append(local.Addrs, addr.Unmap().WithZone(""))
		}
	}
	slices.SortFunc(local.Addrs, netip.Addr.Compare)
	local.Addrs = slices.Compact(local.Addrs)
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
	ranges  map[netip.Prefix]string // what they are, as in `pods of node "a"`
	lengths []int
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
	l := &Local{nodes: make(map[netip.Addr]string, 2*len(cfg.Nodes)), ranges: make(map[netip.Prefix]string, 2*len(cfg.Nodes))}
	var seen [129]bool
	add := func(p netip.Prefix, what string) {
		if other, taken := l.ranges[p]; !taken || what < other {
			l.ranges[p] = what
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
			add(p, n.Name)
		}
	}
	for p, name := range l.ranges {
		l.ranges[p] = fmt.Sprintf("pods of this cluster's node %q", name)
	}
	for _, p := range cfg.Services {
		add(p, "services of this cluster")
	}
	for _, p := range cfg.Subnets {
		add(p, "this cluster itself, by SEMAPHORE_LOCAL_SUBNETS")
	}
	for bits, ok := range seen {
		if ok {
			l.lengths = append(l.lengths, bits)
		}
	}
	return l
}

// holds returns an error that says what of this cluster has the address; nil
// when nothing has.
func (l *Local) holds(addr netip.Addr) error {
	if l == nil {
		return nil
	}
	if node, ours := l.nodes[addr]; ours {
		return fmt.Errorf("the address is that of this cluster's node %q", node)
	}
	for _, bits := range l.lengths {
		p, err := addr.Prefix(bits)
		if err != nil {
			break // Lengths of the other family are all that is left.
		}
		if what, ours := l.ranges[p]; ours {
			return fmt.Errorf("%s is for %s", p, what)
		}
	}
	return nil
}
