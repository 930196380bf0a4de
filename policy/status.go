package policy

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Status is what there is to know about the controller, as JSON.
type Status struct {
	// CalicoAPI is the group and version in use; empty: none was found yet.
	CalicoAPI string    `json:"calicoAPI"`
	Sets      APIStatus `json:"localSets"`
	// Unconfigured counts sets with our mark by clusters that aren't among
	// the remotes. They are left alone.
	Unconfigured map[string]int `json:"unconfigured,omitempty"`
	Remotes      []RemoteStatus `json:"remotes"`
}

// APIStatus is how the watch of one kind of objects goes.
type APIStatus struct {
	// Synced says that all objects have been read at least once.
	Synced      bool       `json:"synced"`
	LastContact *time.Time `json:"lastContact,omitempty"`
	Error       string     `json:"error,omitempty"`
}

// RemoteStatus is one remote. What only passes find out, skipped pods among it,
// is missing on replicas that don't lead.
type RemoteStatus struct {
	Name string    `json:"name"`
	API  APIStatus `json:"api"`
	// Stale says that the sets are empty for want of contact.
	Stale bool `json:"stale"`
	// Pods is how many carry the label.
	Pods    int         `json:"pods"`
	Sets    []SetStatus `json:"sets"`
	Skipped Skipped     `json:"skipped,omitempty"`
	// Pending is how many objects wait to be written.
	Pending int `json:"pending"`
	// Failing are objects that can't be written, by name.
	Failing map[string]string `json:"failing,omitempty"`
	// Error is why the last pass failed.
	Error string `json:"error,omitempty"`
}

// SetStatus is one object in the local cluster.
type SetStatus struct {
	Object    string `json:"object"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Addresses int    `json:"addresses"`
}

func apiStatus[T any](s *source[T]) APIStatus {
	status := APIStatus{Synced: s.Synced()}
	if last := s.LastContact(); !last.IsZero() {
		status.LastContact = &last
	}
	if err := errors.Join(s.Err(), s.Crowded()); err != nil {
		status.Error = err.Error()
	}
	return status
}

// Status returns the state of everything.
func (c *Controller) Status() Status {
	sets := c.shared.ledger.view().sets
	status := Status{
		CalicoAPI: c.shared.Calico.API(), Sets: apiStatus(c.sets),
		Unconfigured: c.strayCounts(sets), Remotes: []RemoteStatus{},
	}
	for _, r := range c.remotes {
		status.Remotes = append(status.Remotes, r.status(sets))
	}
	return status
}

func (r *remote) status(sets map[string]Observed) RemoteStatus {
	state, t := r.current()
	status := RemoteStatus{
		Name: r.Rules.Cluster, API: apiStatus(r.pods), Stale: state.stale, Pods: state.pods,
		Sets: []SetStatus{}, Skipped: state.skipped,
	}
	for _, o := range sets {
		if o.of(r.Rules.Cluster) {
			status.Sets = append(status.Sets, SetStatus{
				Object: o.Name, Namespace: o.Identity.Namespace, Name: o.Identity.Name, Addresses: len(o.Addrs),
			})
		}
	}
	slices.SortFunc(status.Sets, func(a, b SetStatus) int { return cmp.Compare(a.Object, b.Object) })
	if t != nil {
		status.Pending, status.Failing = t.writer.backlog(), t.writer.failures()
		if err := t.loop.Err(); err != nil {
			status.Error = err.Error()
		}
	}
	return status
}

// collector tells, as metrics, what there is at the moment.
type collector struct {
	controller                                        *Controller
	sets, nets, pods, skipped, stale, pending, failed *prometheus.Desc
	renamed, unconfigured                             *prometheus.Desc
}

// NewCollector returns a collector of what the controller's status holds.
func NewCollector(c *Controller) prometheus.Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("semaphore_policy_"+name, help, append([]string{"cluster"}, labels...), nil)
	}
	return &collector{
		controller:   c,
		sets:         desc("sets", "Network sets of a remote in the local cluster."),
		nets:         desc("set_nets", "Nets in all network sets of a remote."),
		pods:         desc("pods", "Labelled pods of a remote."),
		skipped:      desc("skipped_pods", "Labelled pods that are in no set, or not with all addresses.", "reason"),
		stale:        desc("remote_stale", "Whether the sets of a remote are empty for want of contact."),
		pending:      desc("pending_writes", "Network sets of a remote that wait to be written."),
		failed:       desc("failing_sets", "Network sets of a remote whose last write failed."),
		renamed:      desc("renamed_sets", "Network sets of a remote whose name has a hash: the natural one is taken or not valid."),
		unconfigured: desc("unconfigured_sets", "Network sets with our mark of a cluster that is not configured."),
	}
}

// Describe implements prometheus.Collector.
func (m *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.sets, m.nets, m.pods, m.skipped, m.stale, m.pending, m.failed, m.renamed, m.unconfigured} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(value), labels...)
	}
	status := m.controller.Status()
	for name, count := range status.Unconfigured {
		gauge(m.unconfigured, count, name)
	}
	for i := range status.Remotes {
		r := &status.Remotes[i]
		nets, renamed := 0, 0
		for _, set := range r.Sets {
			nets += set.Addresses
			id := Identity{Cluster: r.Name, Namespace: set.Namespace, Name: set.Name}
			if !id.isNatural(set.Object) {
				renamed++
			}
		}
		gauge(m.sets, len(r.Sets), r.Name)
		gauge(m.nets, nets, r.Name)
		gauge(m.pods, r.Pods, r.Name)
		gauge(m.pending, r.Pending, r.Name)
		gauge(m.failed, len(r.Failing), r.Name)
		gauge(m.renamed, renamed, r.Name)
		stale := 0
		if r.Stale {
			stale = 1
		}
		gauge(m.stale, stale, r.Name)
		for reason, pods := range r.Skipped {
			gauge(m.skipped, pods.Pods, r.Name, string(reason))
		}
	}
}
