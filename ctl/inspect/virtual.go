package inspect

import (
	"net/netip"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
)

// maxMap bounds the text of a map of pod subnets, in bytes: 16 mappings of IPv6 have less.
const maxMap = 2 << 10

// SubnetMap returns the virtual subnets of the cluster's pods, as its settings have them, and the
// nodes that publish others, or none though they have an agent. Without known settings it knows
// none.
func (c *Cluster) SubnetMap() (m config.SubnetMap, others []*Node) {
	if c.Settings.Value == nil {
		return nil, nil
	}
	m = c.Settings.Value.SubnetMap()
	for i := range c.Nodes.Value {
		if n := &c.Nodes.Value[i]; n.published() && n.Map != m.String() {
			others = append(others, n)
		}
	}
	return m, others
}

// published reports whether an agent publishes the node's prefixes, with which it publishes the
// map.
func (n *Node) published() bool {
	_, prefixes := n.Annotations[AnnotationGroup+"/podCIDRs"]
	return prefixes || n.Map != ""
}

// Overlapping returns the first two prefixes of sorted disjoint ones that overlap.
func Overlapping(some, others []netip.Prefix) (one, other netip.Prefix, overlap bool) {
	for i, j := 0, 0; i < len(some) && j < len(others); {
		if some[i].Overlaps(others[j]) {
			return some[i], others[j], true
		}
		if some[i].Addr().Less(others[j].Addr()) {
			i++
		} else {
			j++
		}
	}
	return one, other, false
}
