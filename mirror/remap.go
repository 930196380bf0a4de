package mirror

import (
	"net/netip"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-semaphore/kube-semaphore/internal/virtual"
	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
	"github.com/kube-semaphore/kube-semaphore/mirror/withdrawal"
)

// remapped is the maximum number of origins per pass that are recomputed because of the maps of
// nodes: a remote may change them all the time, and other clusters use the same passes.
const remapped = 1024

// unplaced has what is on no known node of a remote.
type unplaced struct {
	origins map[origin.ID]int   // with endpoints without a node, and their number
	nodes   map[string]struct{} // with endpoints, and not known when these came
}

// place adds or removes the nodes of a slice's endpoints in the path table and in unplaced,
// except for the local cluster, which is reached without a tunnel, and for services that aren't
// exported.
func (s *Snapshot) place(set *set, sl *origin.Slice, change int) {
	if set.cluster.local || !set.uses(sl.Service) {
		return
	}
	id, cluster := set.id(sl.Service), set.cluster.name
	of, maps := s.unplaced[cluster], s.maps[cluster]
	for i := range sl.Endpoints {
		node := sl.Endpoints[i].Node
		n := withdrawal.Node{Cluster: cluster, Name: node}
		if i > 0 && node == sl.Endpoints[i-1].Node {
			continue
		}
		if node == "" {
			if of.origins[id] += change; of.origins[id] <= 0 {
				delete(of.origins, id)
			}
			continue
		}
		s.paths.Place(n, id, change)
		switch {
		case change > 0 && !maps.Knows(node):
			of.nodes[node] = struct{}{}
		case change < 0 && !s.paths.Places(n):
			delete(of.nodes, node)
		}
	}
}

// remap marks what has endpoints on a node of a remote as changed, because the addresses there
// may be others by now. The empty node stands for all that aren't known.
func (s *Snapshot) remap(cluster, node string) {
	of, maps := s.unplaced[cluster], s.maps[cluster]
	if node != "" {
		if !maps.Knows(node) && s.paths.Places(withdrawal.Node{Cluster: cluster, Name: node}) {
			of.nodes[node] = struct{}{}
		}
		s.remapOn(cluster, node)
		return
	}
	for id := range of.origins {
		s.remapping[id] = struct{}{}
	}
	for node := range of.nodes {
		if maps.Knows(node) {
			delete(of.nodes, node)
		} else {
			s.remapOn(cluster, node)
		}
	}
}

func (s *Snapshot) remapOn(cluster, node string) {
	for id := range s.paths.Origins(withdrawal.Node{Cluster: cluster, Name: node}) {
		s.remapping[id] = struct{}{}
	}
}

// takeRemapped marks the next remapped origins as changed, and reports whether there are more.
func (s *Snapshot) takeRemapped() (more bool) {
	taken := 0
	for id := range s.remapping {
		if taken == remapped {
			return true
		}
		taken++
		s.origins[id] = struct{}{}
		delete(s.remapping, id)
	}
	s.remapping = map[origin.ID]struct{}{} // clearing a map takes time in proportion to its largest size
	return false
}

// address returns the address by which an endpoint of a cluster is reached, and why it isn't
// used; empty: it is.
func (c *clusterConfig) address(maps *virtual.Table, e *origin.Endpoint, family discoveryv1.AddressType) (a netip.Addr, why string) {
	a, known := maps.Of(e.Node, e.Address)
	if !known {
		return a, "its node is not known, and the nodes of the cluster have different maps of pod subnets"
	}
	return a, origin.Rejection(a, family, c.subnets)
}

// admit returns the endpoints of a slice that are used, by the addresses at which they are
// reached, and calls reject for the others.
func (s *Snapshot) admit(c *clusterConfig, sl *origin.Slice, reject func(a netip.Addr, why string)) []origin.Endpoint {
	maps, same := s.maps[c.name], true
	for i := range sl.Endpoints {
		e := &sl.Endpoints[i]
		if a, why := c.address(maps, e, sl.Family); why != "" || a != e.Address {
			same = false
			break
		}
	}
	if same {
		return sl.Endpoints
	}
	admitted := make([]origin.Endpoint, 0, len(sl.Endpoints))
	for _, e := range sl.Endpoints {
		a, why := c.address(maps, &e, sl.Family)
		if why != "" {
			reject(a, why)
			continue
		}
		e.Address = a
		admitted = append(admitted, e)
	}
	if !maps.Empty() {
		slices.SortFunc(admitted, origin.CompareEndpoints)
		admitted = slices.Compact(admitted)
	}
	return admitted
}
