package kube

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics is the collector of the metrics of all watches of a program, registered once.
type Metrics struct {
	*prometheus.Registry

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
	all := prometheus.NewRegistry()
	with := promauto.With(all)
	return &Metrics{
		Registry: all,
		synced: with.NewGaugeVec(prometheus.GaugeOpts{
			Name: prefix + "_remote_synced",
			Help: "Whether all objects of a kind of a cluster have been read since start.",
		}, labels),
		lastContact: with.NewGaugeVec(prometheus.GaugeOpts{
			Name: prefix + "_remote_last_contact_timestamp_seconds",
			Help: "When a cluster's API server last answered for a kind, in Unix time; 0 is never.",
		}, labels),
		rejected: with.NewGaugeVec(prometheus.GaugeOpts{
			Name: prefix + "_remote_rejected_objects",
			Help: "Objects of a kind of a cluster that exceed the quota, at least.",
		}, labels),
		dropped: with.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "_remote_dropped_objects_total",
			Help: "Objects of a kind of a cluster that were dropped because they can't be decoded within bounds.",
		}, labels),
		failures: with.NewCounterVec(prometheus.CounterOpts{
			Name: failures,
			Help: "Requests to list or watch objects of a kind of a cluster that failed.",
		}, append(labels, "verb")),
	}
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
