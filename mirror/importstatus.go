package mirror

import (
	"cmp"
	"slices"

	"github.com/kube-semaphore/kube-semaphore/internal/status"
	"github.com/kube-semaphore/kube-semaphore/mirror/mcs"
	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

// multiCluster returns the status of imports; nil: disabled.
func (c *Controller) multiCluster() *status.MultiCluster {
	if c.multi == nil {
		return nil
	}
	st := &status.MultiCluster{Imports: []status.Import{}}
	switch err := c.multi.detect.Err(); {
	case err != nil && c.cfg.MultiClusterRequired:
		st.Error = err.Error()
		return st
	case err != nil:
		st.Off = err.Error()
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
	slices.SortFunc(st.Imports, func(a, b status.Import) int {
		return cmp.Or(boolCompare(a.InOrder(), b.InOrder()), cmp.Compare(a.Name, b.Name))
	})
	return st
}

// importStatus returns the status of one import. Callers hold mu.
func (c *Controller) importStatus(k origin.Key) status.Import {
	l := c.snapshot.local.imported
	w, own := Service{Absent: true}, l.imports.Get(k.String())
	if planned := c.memo.services[k.String()]; planned != nil {
		w = *planned
	}
	i := status.Import{Name: k.String(), Conflicts: w.Conflicts, Missing: !l.usable(k.Namespace)}
	i.Held, _ = c.snapshot.holdImport(own, &w)
	for _, id := range c.snapshot.order {
		if id.kind != exported {
			continue
		}
		set := c.snapshot.sets[id]
		switch o := set.origins[k]; {
		case o == nil || o.Reject == "":
		case !set.cluster.mayExport(k.Namespace):
			i.Refused = append(i.Refused, id.cluster)
		default:
			if i.Faults == nil {
				i.Faults = map[string]string{}
			}
			i.Faults[id.cluster] = o.Reject
		}
	}
	if own != nil && own.ours {
		i.Type, i.IPs = string(own.spec.Type), own.spec.IPs
		i.Exports = mcs.Exporting(own.places)
		for _, p := range w.Spec.Ports {
			i.Ports = append(i.Ports, p.String())
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
