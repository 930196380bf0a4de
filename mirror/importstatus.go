package mirror

import (
	"cmp"
	"slices"
)

// MultiClusterStatus is the status of the Multi-Cluster Services API in the local cluster.
type MultiClusterStatus struct {
	// Error is why the API isn't served, or why the program can't read what it needs for it;
	// empty: neither.
	Error string `json:"error,omitempty"`
	// Imports are the imports and the exports of the local cluster. Those with conflicts and
	// faults are first.
	Imports []ImportStatus `json:"imports"`
}

// ImportStatus is one import, or an export of the local cluster without one.
type ImportStatus struct {
	// Name is namespace/name.
	Name string `json:"name"`
	// Type is ClusterSetIP or Headless; empty: there is no import.
	Type string   `json:"type,omitempty"`
	IPs  []string `json:"ips,omitempty"`
	// Ports are as in "http 80/TCP".
	Ports []string `json:"ports,omitempty"`
	// Exports are the clusters that export it, by precedence.
	Exports []string `json:"exports,omitempty"`
	// Endpoints are the numbers of used endpoints, by cluster.
	Endpoints map[string]int `json:"endpoints,omitempty"`
	Conflicts []Conflict     `json:"conflicts,omitempty"`
	// Fault is why the export of the local cluster, or of another one, is not imported, by
	// cluster.
	Faults map[string]string `json:"faults,omitempty"`
	// Missing: the namespace doesn't exist in the local cluster, or is being deleted.
	Missing bool   `json:"namespaceMissing,omitempty"`
	Held    string `json:"held,omitempty"`
}

func (i *ImportStatus) inOrder() bool {
	return len(i.Conflicts) == 0 && len(i.Faults) == 0 && i.Held == ""
}

// multiCluster returns the status of imports; nil: disabled.
func (c *Controller) multiCluster() *MultiClusterStatus {
	if c.multi == nil {
		return nil
	}
	st := &MultiClusterStatus{Imports: []ImportStatus{}}
	if err := c.multi.detect.Err(); err != nil {
		st.Error = err.Error()
		return st
	}
	if err := c.multi.fault(); err != nil {
		st.Error = err.Error()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.snapshot
	keys := s.local.imported.keys()
	for _, id := range s.order {
		if id.kind == exported {
			for k := range s.sets[id].exports {
				keys[k] = struct{}{}
			}
		}
	}
	for k := range keys {
		st.Imports = append(st.Imports, c.importStatus(k))
	}
	slices.SortFunc(st.Imports, func(a, b ImportStatus) int {
		return cmp.Or(boolCompare(a.inOrder(), b.inOrder()), cmp.Compare(a.Name, b.Name))
	})
	return st
}

// importStatus returns the status of one import. Callers hold mu.
func (c *Controller) importStatus(k Key) ImportStatus {
	l := c.snapshot.local.imported
	w, own := Service{Absent: true}, l.imports.Get(k.String())
	if planned := c.memo.services[k.String()]; planned != nil {
		w = *planned
	}
	i := ImportStatus{Name: k.String(), Conflicts: w.Conflicts, Missing: !l.usable(k.Namespace)}
	i.Held, _ = c.snapshot.holdImport(own, &w)
	for _, id := range c.snapshot.order {
		if id.kind != exported {
			continue
		}
		if o := c.snapshot.sets[id].origins[k]; o != nil && o.Reject != "" {
			if i.Faults == nil {
				i.Faults = map[string]string{}
			}
			i.Faults[id.cluster] = o.Reject
		}
	}
	if own != nil && own.ours {
		i.Type, i.IPs = string(own.spec.Type), own.spec.IPs
		for _, of := range own.exports {
			i.Exports = append(i.Exports, of.Cluster)
		}
		for _, p := range w.Spec.Ports {
			i.Ports = append(i.Ports, describe(p))
		}
	}
	for cluster, tally := range w.Tallies {
		if tally.Taken > 0 {
			if i.Endpoints == nil {
				i.Endpoints = map[string]int{}
			}
			i.Endpoints[cluster] = tally.Taken - tally.Withdrawn
		}
	}
	return i
}
