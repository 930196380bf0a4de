package policy

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/kube-semaphore/kube-semaphore/internal/keep"
)

// Metrics is the collector of the controller's actions, registered once. The current state is
// collected by NewCollector.
type Metrics struct {
	*prometheus.Registry

	passes   *prometheus.HistogramVec
	delays   *prometheus.HistogramVec
	writes   *prometheus.CounterVec
	failures *prometheus.CounterVec
	requeues *prometheus.CounterVec
}

// NewMetrics returns metrics. Some have the names of the original tool.
func NewMetrics() *Metrics {
	all := prometheus.NewRegistry()
	with := promauto.With(all)
	return &Metrics{
		Registry: all,
		passes: with.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "semaphore_policy_reconcile_seconds",
			Help:    "How long it took to find out which sets the pods that changed belong to.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5},
		}, []string{"cluster"}),
		delays: with.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "semaphore_policy_write_delay_seconds",
			Help:    "How long changes of network sets took from being noticed to being written.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5, 30},
		}, []string{"cluster"}),
		writes: with.NewCounterVec(prometheus.CounterOpts{
			Name: "semaphore_policy_writes_total",
			Help: "Network sets of a remote that were created, patched or deleted.",
		}, []string{"cluster", "verb"}),
		failures: with.NewCounterVec(prometheus.CounterOpts{
			Name: "kube_policy_semaphore_calico_client_failures",
			Help: "Number of calico client failed requests.",
		}, []string{"type"}),
		requeues: with.NewCounterVec(prometheus.CounterOpts{
			Name: "semaphore_policy_outdated_writes_total",
			Help: "Writes given up because another client had changed the network set meanwhile.",
		}, []string{"cluster"}),
	}
}

// wrote counts one write.
func (m *Metrics) wrote(cluster, verb string, err error) {
	switch {
	case errors.Is(err, keep.ErrOutdated):
		m.requeues.WithLabelValues(cluster).Inc()
	case err != nil:
		m.failures.WithLabelValues(verb).Inc()
	default:
		m.writes.WithLabelValues(cluster, verb).Inc()
	}
}
