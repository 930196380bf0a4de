package policy

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
)

func apiStatus[T any](f *kube.Feed[T]) statuspage.Connection {
	return kube.Connection(f.Synced(), f.LastContact(), errors.Join(f.Err(), f.OverQuota()))
}

// Status returns the controller's status.
func (c *Controller) Status() statuspage.Policy {
	st := statuspage.Policy{CalicoAPI: c.Calico.API(), Sets: apiStatus(c.sets), Remotes: []statuspage.PolicyRemote{}}
	c.mu.Lock()
	writer := c.writer
	st.Pools = c.pools
	unconfigured := slices.Collect(maps.Keys(c.since))
	c.mu.Unlock()
	for _, cluster := range unconfigured {
		if st.Unconfigured == nil {
			st.Unconfigured, st.RemovedAt = map[string]int{}, map[string]time.Time{}
		}
		st.Unconfigured[cluster] = c.owned.number(cluster)
		if at, goes := c.removedAt(cluster); goes {
			st.RemovedAt[cluster] = at
		}
	}
	for i := range c.Remotes {
		st.Remotes = append(st.Remotes, c.remotes[c.Remotes[i].Rules.Cluster].status())
	}
	if writer == nil {
		return st
	}
	pending, failing, overridden := writer.Backlog(), writer.Failing(), c.overridden()
	for i := range st.Remotes {
		r := &st.Remotes[i]
		r.Pending, r.Failing, r.Overridden = pending[r.Name], map[string]string{}, overridden[r.Name]
		for id, err := range failing {
			if id.Cluster == r.Name {
				r.Failing[id.Natural(1)] = err.Error()
			}
		}
	}
	return st
}

// overridden returns the overridden objects by cluster, sorted.
func (c *Controller) overridden() map[string][]statuspage.Override {
	all := map[string][]statuspage.Override{}
	for id, objects := range c.past.Open(time.Now()) {
		all[id.Cluster] = append(all[id.Cluster], objects...)
	}
	for _, objects := range all {
		slices.SortFunc(objects, func(a, b statuspage.Override) int { return cmp.Compare(a.Object, b.Object) })
	}
	return all
}

func (r *remote) status() statuspage.PolicyRemote {
	r.mu.Lock()
	st := statuspage.PolicyRemote{
		Name: r.Rules.Cluster, API: apiStatus(r.feed), Stale: r.stale, Pods: r.pods.count,
		Sets: []statuspage.NetworkSet{}, Skipped: map[string]statuspage.SkippedPods{}, PodSubnetsMap: r.Rules.Map.String(),
	}
	for _, reason := range append([]Reason{ReasonFinished, ReasonNoAddress}, abnormal...) {
		if s := r.skipped(reason); s.Pods > 0 {
			st.Skipped[string(reason)] = s
		}
	}
	r.mu.Unlock()
	for name, id := range r.c.owned.all(func(cluster string) bool { return cluster == r.Rules.Cluster }) {
		if o := r.c.ledger.Get(name); o != nil {
			set := statuspage.NetworkSet{Object: name, Namespace: id.Namespace, Name: id.Name, Addresses: len(o.Addrs)}
			if taken, is := collision(name, id, r.c.ledger.Get); is {
				set.NameTaken = taken.Message
			}
			st.Sets = append(st.Sets, set)
		}
	}
	slices.SortFunc(st.Sets, func(a, b statuspage.NetworkSet) int { return cmp.Compare(a.Object, b.Object) })
	return st
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
	st := m.controller.Status()
	for name, count := range st.Unconfigured {
		gauge(m.unconfigured, count, name)
	}
	for i := range st.Remotes {
		r := &st.Remotes[i]
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
