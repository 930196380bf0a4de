package inspect

import (
	"net/netip"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
)

// maxMap bounds the text of a map of pod subnets, in bytes: 16 mappings of IPv6 have less.
const maxMap = 2 << 10

// SubnetMap returns the virtual subnets of the cluster's pods, as most of its nodes publish
// them, and those nodes that publish others, or none though they have an agent.
func (c *Cluster) SubnetMap() (m config.SubnetMap, others []*Node) {
	count := map[string]int{}
	for i := range c.Nodes.Value {
		if n := &c.Nodes.Value[i]; n.published() {
			count[n.Map]++
		}
	}
	text, most := "", 0
	for t, n := range count {
		if n > most || n == most && t > text {
			text, most = t, n
		}
	}
	for i := range c.Nodes.Value {
		if n := &c.Nodes.Value[i]; n.published() && n.Map != text {
			others = append(others, n)
		}
	}
	if text == "" || m.Decode(text) != nil {
		return nil, others
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
