package mirror

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/report"
)

// PathStatus is what the local nodes report of paths.
type PathStatus struct {
	// ReadyNodes is how many local nodes are ready, Reports how many of them report
	// that something is down.
	ReadyNodes int `json:"readyNodes"`
	Reports    int `json:"reports"`
	// Withdrawn are remote nodes whose endpoints are sent nothing.
	Withdrawn []WithdrawnNode `json:"withdrawn,omitempty"`
	// Faults are reports that don't count, or only in part, by their name.
	Faults map[string]string `json:"faults,omitempty"`
	// Error is why reports can't be read.
	Error string `json:"error,omitempty"`
}

// WithdrawnNode is a remote node whose endpoints are withdrawn.
type WithdrawnNode struct {
	Cluster string    `json:"cluster"`
	Node    string    `json:"node"`
	Since   time.Time `json:"since"`
	// ReportedBy is how many ready local nodes report the path to it as down now.
	ReportedBy int `json:"reportedBy"`
	// Services is how many have endpoints there.
	Services int `json:"services"`
}

// judge takes in what reports say now; logs and counts what follows from it, in a line
// for each remote: with a cluster all of its nodes go. mu is held.
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
			log.Info("endpoints back: the path to their node is up")
		}
	}
}

// pathStatus is asked for with mu held.
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

// withdrawnNodes returns how many nodes of each remote have their endpoints withdrawn.
// mu is held.
func (p *pathTable) withdrawnNodes() map[string]int {
	count := map[string]int{}
	for n, v := range p.verdicts {
		if v.withdrawn {
			count[n.cluster]++
		}
	}
	return count
}
