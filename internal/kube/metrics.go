package kube

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics is the collector of the metrics of all watches of a program, registered once.
type Metrics struct {
	synced      *prometheus.GaugeVec
	lastContact *prometheus.GaugeVec
	failures    *prometheus.CounterVec
	rejected    *prometheus.GaugeVec
	dropped     *prometheus.CounterVec
}

// NewMetrics returns metrics whose names start with prefix, such as "semaphore_wg":
//
//	<prefix>_remote_synced{cluster,kind}                          0 or 1
//	<prefix>_remote_last_contact_timestamp_seconds{cluster,kind}  0: never
//	<prefix>_remote_rejected_objects{cluster,kind}                beyond the quota
//	<prefix>_remote_dropped_objects_total{cluster,kind}           not decodable
//	<failures>{cluster,kind,verb}                                 list or watch
//
// The failure counter has a name of its own, because dashboards use that of the original
// tools: "semaphore_wg_node_watcher_failures_total".
func NewMetrics(prefix, failures string) *Metrics {
	labels := []string{"cluster", "kind"}
	return &Metrics{
		synced: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: prefix + "_remote_synced",
			Help: "Whether all objects of a kind of a cluster have been read since start.",
		}, labels),
		lastContact: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: prefix + "_remote_last_contact_timestamp_seconds",
			Help: "When a cluster's API server last answered for a kind, in Unix time; 0 is never.",
		}, labels),
		rejected: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: prefix + "_remote_rejected_objects",
			Help: "Objects of a kind of a cluster that exceed the quota, at least.",
		}, labels),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "_remote_dropped_objects_total",
			Help: "Objects of a kind of a cluster that were dropped because they can't be decoded within bounds.",
		}, labels),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: failures,
			Help: "Requests to list or watch objects of a kind of a cluster that failed.",
		}, append(labels, "verb")),
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	m.synced.Describe(ch)
	m.lastContact.Describe(ch)
	m.failures.Describe(ch)
	m.rejected.Describe(ch)
	m.dropped.Describe(ch)
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.synced.Collect(ch)
	m.lastContact.Collect(ch)
	m.failures.Collect(ch)
	m.rejected.Collect(ch)
	m.dropped.Collect(ch)
}

// series are the metrics of one watch.
type series struct {
	synced      prometheus.Gauge
	lastContact prometheus.Gauge
	failed      map[string]prometheus.Counter // by verb
	rejected    prometheus.Gauge
	dropped     prometheus.Counter
}

// series creates the metrics of a watch with value zero, so that they exist before the
// first event. A nil receiver returns unregistered metrics.
func (m *Metrics) series(cluster, kind string) *series {
	if m == nil {
		m = NewMetrics("unregistered", "unregistered_failures_total")
	}
	return &series{
		synced:      m.synced.WithLabelValues(cluster, kind),
		lastContact: m.lastContact.WithLabelValues(cluster, kind),
		rejected:    m.rejected.WithLabelValues(cluster, kind),
		dropped:     m.dropped.WithLabelValues(cluster, kind),
		failed: map[string]prometheus.Counter{
			verbList:  m.failures.WithLabelValues(cluster, kind, verbList),
			verbWatch: m.failures.WithLabelValues(cluster, kind, verbWatch),
		},
	}
}

func (s *series) contact(at time.Time) {
	s.lastContact.Set(float64(at.UnixMilli()) / 1000)
}
