package mirror

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/report"
	"github.com/kube-semaphore/kube-semaphore/internal/status"
)

// judge updates verdicts, and logs and counts changes, with one line per remote, as all nodes
// of a cluster may change at once. Callers hold mu.
func (c *Controller) judge(now time.Time) {
	type nodes struct {
		cluster   string
		withdrawn bool
	}
	changed := map[nodes][]string{}
	c.snapshot.judge(now, func(n remoteNode, withdrawn bool) {
		k := nodes{n.cluster, withdrawn}
		changed[k] = append(changed[k], n.node)
	})
	for k, all := range changed {
		slices.Sort(all)
		log := c.log.With("cluster", k.cluster, "nodes", report.Some(all), "ready_local_nodes", len(c.snapshot.paths.ready))
		if k.withdrawn {
			c.metrics.withdrawals.WithLabelValues(k.cluster).Add(float64(len(all)))
			log.Warn("endpoints withdrawn: most local nodes report the path to their node down")
		} else {
			log.Info("endpoints restored: the path to their node is up")
		}
	}
}

// pathStatus returns the status of path reports. Callers hold mu.
func (c *Controller) pathStatus() status.PathReports {
	p := c.snapshot.paths
	s := status.PathReports{ReadyNodes: len(p.ready), Reports: len(p.counted)}
	for n, v := range p.verdicts {
		if v.withdrawn {
			s.Withdrawn = append(s.Withdrawn, status.WithdrawnNode{Cluster: n.cluster, Node: n.node, Since: v.since, ReportedBy: p.down(n), Services: len(p.origins[n])})
		}
	}
	slices.SortFunc(s.Withdrawn, func(a, b status.WithdrawnNode) int {
		return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Node, b.Node))
	})
	for _, name := range slices.Sorted(maps.Keys(c.local.faults)) {
		if s.Faults == nil {
			s.Faults = map[string]string{}
		}
		if len(s.Faults) < maxListed {
			s.Faults[name] = c.local.faults[name].Error()
		}
	}
	if r := c.local.reports; r != nil && r.Err() != nil {
		s.Error = r.Err().Error()
	}
	return s
}

// withdrawnNodes returns the number of withdrawn nodes of each remote. Callers hold mu.
func (p *pathTable) withdrawnNodes() map[string]int {
	count := map[string]int{}
	for n, v := range p.verdicts {
		if v.withdrawn {
			count[n.cluster]++
		}
	}
	return count
}
