package mirror

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/report"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/mirror/withdrawal"
)

// judge updates verdicts, and logs and counts changes, with one line per remote, as all nodes
// of a cluster may change at once. Callers hold mu.
func (c *Controller) judge(now time.Time) {
	type nodes struct {
		cluster   string
		withdrawn bool
	}
	changed := map[nodes][]string{}
	c.state.judge(now, func(n withdrawal.Node, withdrawn bool) {
		k := nodes{n.Cluster, withdrawn}
		changed[k] = append(changed[k], n.Name)
	})
	for k, all := range changed {
		slices.Sort(all)
		log := c.log.With("cluster", k.cluster, "nodes", report.Some(all), "ready_local_nodes", c.state.paths.Ready())
		if k.withdrawn {
			c.metrics.withdrawals.WithLabelValues(k.cluster).Add(float64(len(all)))
			log.Warn("endpoints withdrawn: most local nodes report the path to their node down")
		} else {
			log.Info("endpoints restored: the path to their node is up")
		}
	}
}

// pathStatus returns the status of path reports. Callers hold mu.
func (c *Controller) pathStatus() statuspage.PathReports {
	p := c.state.paths
	s := statuspage.PathReports{ReadyNodes: p.Ready(), Reports: p.Reports()}
	for _, w := range p.Withdrawals() {
		s.Withdrawn = append(s.Withdrawn, statuspage.WithdrawnNode{Cluster: w.Cluster, Node: w.Name, Since: w.Since, ReportedBy: w.ReportedBy, Services: w.Origins})
	}
	slices.SortFunc(s.Withdrawn, func(a, b statuspage.WithdrawnNode) int {
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
