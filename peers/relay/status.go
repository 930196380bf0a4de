package relay

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/kube-semaphore/kube-semaphore/internal/keep"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/wireguardpeers/v1alpha1"
)

func connection[T any](f *kube.Feed[T]) statuspage.Connection {
	return kube.Connection(f.Synced(), f.LastContact(), errors.Join(f.Err(), f.OverQuota()))
}

// Status returns the controller's status.
func (c *Controller) Status() statuspage.Relay {
	st := statuspage.Relay{Cluster: c.Cluster, Objects: connection(c.objects), Clusters: []statuspage.RelayCluster{}}
	c.mu.Lock()
	for cluster, set := range c.sets {
		if set.gone && (len(set.all()) > 0 || c.counted(cluster) >= 0) {
			st.Unconfigured = append(st.Unconfigured, cluster)
		}
	}
	c.mu.Unlock()
	slices.Sort(st.Unconfigured)
	for _, s := range c.order {
		st.Clusters = append(st.Clusters, s.status())
	}
	writer, past := c.term()
	if writer == nil {
		return st
	}
	pending, failing := writer.Backlog(), writer.Failing()
	overridden := map[string][]statuspage.Override{}
	for key, objects := range past.Open(time.Now()) {
		overridden[key.Cluster] = append(overridden[key.Cluster], objects...)
	}
	for i := range st.Clusters {
		r := &st.Clusters[i]
		r.Pending, r.Failing, r.Overridden = pending[r.Name], map[string]string{}, overridden[r.Name]
		slices.SortFunc(r.Overridden, func(a, b statuspage.Override) int { return cmp.Compare(a.Object, b.Object) })
		for key, err := range failing {
			if key.Cluster == r.Name {
				r.Failing[key.Object] = err.Error()
			}
		}
	}
	return st
}

func (s *source) status() statuspage.RelayCluster {
	st := statuspage.RelayCluster{Name: s.cluster, Local: s.cluster == s.c.Cluster, API: connection(s.nodes)}
	st.Nodes, st.Objects, _ = s.set.size()
	st.Incomplete = v1alpha1.Incomplete(s.c.counted(s.cluster), st.Objects)
	return st
}

// Metrics is the collector of the controller's actions, registered once. The current state is
// collected by NewCollector.
type Metrics struct {
	*prometheus.Registry

	delays   *prometheus.HistogramVec
	writes   *prometheus.CounterVec
	failures *prometheus.CounterVec
	requeues *prometheus.CounterVec
}

// NewMetrics returns metrics.
func NewMetrics() *Metrics {
	all := prometheus.NewRegistry()
	with := promauto.With(all)
	return &Metrics{
		Registry: all,
		delays: with.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "semaphore_relay_write_delay_seconds",
			Help:    "How long changes of objects took from being noticed to being written.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5, 30, 120},
		}, []string{"cluster"}),
		writes: with.NewCounterVec(prometheus.CounterOpts{
			Name: "semaphore_relay_writes_total",
			Help: "Objects of a cluster that were created, updated or deleted.",
		}, []string{"cluster", "verb"}),
		failures: with.NewCounterVec(prometheus.CounterOpts{
			Name: "semaphore_relay_failed_writes_total",
			Help: "Requests to create, update or delete objects of a cluster that failed.",
		}, []string{"cluster", "verb"}),
		requeues: with.NewCounterVec(prometheus.CounterOpts{
			Name: "semaphore_relay_outdated_writes_total",
			Help: "Writes given up because another client had changed the object meanwhile.",
		}, []string{"cluster"}),
	}
}

// wrote counts one write.
func (m *Metrics) wrote(cluster, verb string, err error) {
	switch {
	case errors.Is(err, keep.ErrOutdated):
		m.requeues.WithLabelValues(cluster).Inc()
	case err != nil:
		m.failures.WithLabelValues(cluster, verb).Inc()
	default:
		m.writes.WithLabelValues(cluster, verb).Inc()
	}
}

// observe records the delay from an observed change to its write.
func (m *Metrics) observe(o keep.Outcome[Key]) {
	if o.Err == nil {
		m.delays.WithLabelValues(o.Tenant).Observe(time.Since(o.Since).Seconds())
	}
}

// collector collects the current state.
type collector struct {
	controller                                               *Controller
	nodes, objects, incomplete, pending, failing, overridden *prometheus.Desc
}

// NewCollector returns a collector of the controller's status.
func NewCollector(c *Controller) prometheus.Collector {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("semaphore_relay_"+name, help, []string{"cluster"}, nil)
	}
	return &collector{
		controller: c,
		nodes:      desc("nodes", "Nodes of a cluster that are stored, or will be."),
		objects:    desc("objects", "Objects with nodes of a cluster."),
		incomplete: desc("incomplete", "Whether objects of a cluster are missing, so that agents add its nodes and remove none."),
		pending:    desc("pending_writes", "Objects of a cluster that wait to be written."),
		failing:    desc("failing_objects", "Objects of a cluster whose last write failed."),
		overridden: desc("overridden_objects", "Objects of a cluster that an admission policy or another client changes again after each write."),
	}
}

// Describe implements prometheus.Collector.
func (m *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.nodes, m.objects, m.incomplete, m.pending, m.failing, m.overridden} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *collector) Collect(ch chan<- prometheus.Metric) {
	st := m.controller.Status()
	for i := range st.Clusters {
		r := &st.Clusters[i]
		gauge := func(d *prometheus.Desc, value int) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(value), r.Name)
		}
		incomplete := 0
		if r.Incomplete != "" {
			incomplete = 1
		}
		gauge(m.nodes, r.Nodes)
		gauge(m.objects, r.Objects)
		gauge(m.incomplete, incomplete)
		gauge(m.pending, r.Pending)
		gauge(m.failing, len(r.Failing))
		gauge(m.overridden, len(r.Overridden))
	}
}
