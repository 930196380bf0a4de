package mirror

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/report"
)

// PathStatus is the status of path reports.
type PathStatus struct {
	// ReadyNodes is the number of ready local nodes, Reports the number of them with a
	// report.
	ReadyNodes int `json:"readyNodes"`
	Reports    int `json:"reports"`
	// Withdrawn are remote nodes whose endpoints are withdrawn.
	Withdrawn []WithdrawnNode `json:"withdrawn,omitempty"`
	// Faults are the errors of invalid or partly invalid reports, by name.
	Faults map[string]string `json:"faults,omitempty"`
	// Error is the error of reading reports.
	Error string `json:"error,omitempty"`
}

// WithdrawnNode is a remote node whose endpoints are withdrawn.
type WithdrawnNode struct {
	Cluster string    `json:"cluster"`
	Node    string    `json:"node"`
	Since   time.Time `json:"since"`
	// ReportedBy is the number of ready local nodes that report it as down now.
	ReportedBy int `json:"reportedBy"`
	// Services is the number of services with endpoints on it.
	Services int `json:"services"`
}

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
func (c *Controller) pathStatus() PathStatus {
	p := c.snapshot.paths
	s := PathStatus{ReadyNodes: len(p.ready), Reports: len(p.counted)}
	for n, v := range p.verdicts {
		if v.withdrawn {
			s.Withdrawn = append(s.Withdrawn, WithdrawnNode{n.cluster, n.node, v.since, p.down(n), len(p.origins[n])})
		}
	}
	slices.SortFunc(s.Withdrawn, func(a, b WithdrawnNode) int {
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
