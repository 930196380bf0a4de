package mirror

import (
	"maps"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/kube-semaphore/kube-semaphore/internal/pathreport"
)

// localNode is a trimmed node of the local cluster.
type localNode struct {
	name, zone string
	ready      bool
}

// seenReport is a path report. Each renewal is a new version; another list of the same
// version, such as after an outage of the API server, is no renewal and doesn't extend the
// report's validity.
type seenReport struct {
	pathreport.Report
	fault   error // invalid, at least in part
	version string
}

func readReport(l *coordinationv1.Lease) *seenReport {
	r, err := pathreport.Read(l)
	return &seenReport{r, err, l.ResourceVersion}
}

func equalReports(a, b *seenReport) bool {
	return a.version != "" && a.version == b.version && a.Equal(&b.Report)
}

func trimNode(n *corev1.Node) *localNode {
	ready := func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	}
	return &localNode{name: n.Name, zone: n.Labels[corev1.LabelTopologyZone], ready: slices.ContainsFunc(n.Status.Conditions, ready)}
}

// readNodes updates the nodes of the local cluster. It returns their zones, and whether they
// are synced. A node without a zone has the empty one, which kube-proxy compares with hints
// there; so has a cluster without nodes.
func (h *localFeeds) readNodes(s *state) (zones []string, known bool) {
	changes, known := h.nodes.Changes()
	for _, c := range changes {
		if c.Before != nil {
			if h.zones[c.Before.zone]--; h.zones[c.Before.zone] == 0 {
				delete(h.zones, c.Before.zone)
			}
			s.paths.SetNode(c.Before.name, false)
		}
		if c.After != nil {
			h.zones[c.After.zone]++
			s.paths.SetNode(c.After.name, c.After.ready)
		}
	}
	if !h.hinted {
		return nil, true
	}
	if len(h.zones) == 0 {
		return []string{""}, known
	}
	return slices.Sorted(maps.Keys(h.zones)), known
}

// readReports updates path reports. It returns whether reports and nodes are synced, or
// reading them has failed.
func (h *localFeeds) readReports(s *state, now time.Time) (known bool) {
	if h.reports == nil {
		return true
	}
	changes, synced := h.reports.Changes()
	for _, c := range changes {
		delete(h.faults, c.Key)
		if c.Before != nil && c.Before.Node != "" && (c.After == nil || c.After.Node != c.Before.Node) {
			s.paths.Report(c.Before.Node, nil, now)
		}
		if c.After == nil {
			continue
		}
		if c.After.fault != nil {
			h.faults[c.Key] = c.After.fault
		}
		if c.After.Node != "" {
			s.paths.Report(c.After.Node, &c.After.Report, now)
		}
	}
	if h.reports.Err() != nil {
		s.paths.ReadFailed(now)
	}
	return (synced || h.reports.Err() != nil) && (h.nodes.Synced() || h.nodes.Err() != nil)
}
