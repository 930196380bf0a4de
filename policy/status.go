package policy

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/kube-semaphore/internal/keep"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
)

// Status is the status of the controller.
type Status struct {
	// CalicoAPI is the group and version in use; empty: not detected yet.
	CalicoAPI string    `json:"calicoAPI"`
	Sets      APIStatus `json:"localSets"`
	// Unconfigured is the number of our sets by cluster that isn't configured. RemovedAt is
	// when they are removed; those of other clusters stay.
	Unconfigured map[string]int       `json:"unconfigured,omitempty"`
	RemovedAt    map[string]time.Time `json:"removedAt,omitempty"`
	Remotes      []RemoteStatus       `json:"remotes"`
}

// APIStatus is the status of the watch of one kind.
type APIStatus struct {
	// Synced: all objects have been listed at least once.
	Synced      bool       `json:"synced"`
	LastContact *time.Time `json:"lastContact,omitempty"`
	Error       string     `json:"error,omitempty"`
}

// RemoteStatus is the status of one remote. Pending and Failing are known to the leader only.
type RemoteStatus struct {
	Name string    `json:"name"`
	API  APIStatus `json:"api"`
	// Stale: the sets are empty because of missing contact.
	Stale bool `json:"stale"`
	// Pods is the number of labelled pods.
	Pods    int         `json:"pods"`
	Sets    []SetStatus `json:"sets"`
	Skipped Skipped     `json:"skipped,omitempty"`
	// Pending is the number of waiting writes.
	Pending int `json:"pending"`
	// Failing are the errors of objects that can't be written, by name.
	Failing map[string]string `json:"failing,omitempty"`
	// Overridden are objects that others change again, each time they are written.
	Overridden []keep.Override `json:"overridden,omitempty"`
}

// SetStatus is one object in the local cluster.
type SetStatus struct {
	Object    string `json:"object"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Addresses int    `json:"addresses"`
}

func apiStatus[T any](f *kube.Feed[T]) APIStatus {
	status := APIStatus{Synced: f.Synced()}
	if last := f.LastContact(); !last.IsZero() {
		status.LastContact = &last
	}
	if err := errors.Join(f.Err(), f.OverQuota()); err != nil {
		status.Error = err.Error()
	}
	return status
}

// Status returns the controller's status.
func (c *Controller) Status() Status {
	status := Status{CalicoAPI: c.Calico.API(), Sets: apiStatus(c.sets), Remotes: []RemoteStatus{}}
	c.mu.Lock()
	writer := c.writer
	for cluster, s := range c.strays {
		if status.Unconfigured == nil {
			status.Unconfigured, status.RemovedAt = map[string]int{}, map[string]time.Time{}
		}
		status.Unconfigured[cluster] = len(s.objects)
		if c.removes(cluster) {
			status.RemovedAt[cluster] = s.since.Add(c.grace(cluster))
		}
	}
	c.mu.Unlock()
	for i := range c.Remotes {
		status.Remotes = append(status.Remotes, c.remotes[c.Remotes[i].Rules.Cluster].status())
	}
	if writer == nil {
		return status
	}
	pending, failing, overridden := writer.Backlog(), writer.Failing(), c.overridden()
	for i := range status.Remotes {
		r := &status.Remotes[i]
		r.Pending, r.Failing, r.Overridden = pending[r.Name], map[string]string{}, overridden[r.Name]
		for id, err := range failing {
			if id.Cluster == r.Name {
				r.Failing[id.Natural(1)] = err.Error()
			}
		}
	}
	return status
}

// overridden returns the overridden objects by cluster.
func (c *Controller) overridden() map[string][]keep.Override {
	all := map[string][]keep.Override{}
	for id, objects := range c.overrides().Open(time.Now()) {
		all[id.Cluster] = append(all[id.Cluster], objects...)
	}
	for _, objects := range all {
		slices.SortFunc(objects, func(a, b keep.Override) int { return cmp.Compare(a.Object, b.Object) })
	}
	return all
}

func (r *remote) status() RemoteStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	status := RemoteStatus{
		Name: r.Rules.Cluster, API: apiStatus(r.pods), Stale: r.stale, Pods: r.members.pods,
		Sets: []SetStatus{}, Skipped: r.members.Skipped(),
	}
	for id, names := range r.objects {
		for name := range names {
			if o := r.c.ledger.Get(name); o != nil {
				status.Sets = append(status.Sets, SetStatus{Object: name, Namespace: id.Namespace, Name: id.Name, Addresses: len(o.Addrs)})
			}
		}
	}
	slices.SortFunc(status.Sets, func(a, b SetStatus) int { return cmp.Compare(a.Object, b.Object) })
	return status
}

// collector collects the current state.
type collector struct {
	controller                                        *Controller
	sets, nets, pods, skipped, stale, pending, failed *prometheus.Desc
	overridden, renamed, unconfigured                 *prometheus.Desc
}

// NewCollector returns a collector of the controller's status.
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
		overridden:   desc("overridden_sets", "Network sets of a remote that an admission policy or another client changes again after each write."),
		renamed:      desc("renamed_sets", "Network sets of a remote whose name has a hash: the natural one is taken or not valid."),
		unconfigured: desc("unconfigured_sets", "Network sets with our mark of a cluster that is not configured."),
	}
}

// Describe implements prometheus.Collector.
func (m *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.sets, m.nets, m.pods, m.skipped, m.stale, m.pending, m.failed, m.overridden, m.renamed, m.unconfigured} {
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
		gauge(m.overridden, len(r.Overridden), r.Name)
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
