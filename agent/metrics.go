package agent

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// loopMetrics counts and times the steps of the agent's tasks. In its label "loop" is the step.
type loopMetrics struct {
	*prometheus.Registry

	passes    *prometheus.HistogramVec
	failures  *prometheus.CounterVec
	syncPeers *prometheus.CounterVec
	requeue   *prometheus.CounterVec
	repairs   *prometheus.CounterVec
}

func newLoopMetrics() *loopMetrics {
	all := prometheus.NewRegistry()
	with := promauto.With(all)
	return &loopMetrics{
		Registry: all,
		passes: with.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "semaphore_wg_reconcile_seconds",
			Help:    "Duration of a step of the agent's tasks in seconds.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5},
		}, []string{"loop"}),
		failures: with.NewCounterVec(prometheus.CounterOpts{
			Name: "semaphore_wg_reconcile_failures_total",
			Help: "How often a step failed, at least in part, and is retried.",
		}, []string{"loop"}),
		syncPeers: with.NewCounterVec(prometheus.CounterOpts{
			Name: "semaphore_wg_sync_peers_total",
			Help: "Counts attempts to sync the peers of a device.",
		}, []string{"device", "success"}),
		requeue: with.NewCounterVec(prometheus.CounterOpts{
			Name: "semaphore_wg_sync_requeue_total",
			Help: "Number of attempts to sync the peers of a device that failed and are retried.",
		}, []string{"device"}),
		repairs: with.NewCounterVec(prometheus.CounterOpts{
			Name: "semaphore_wg_repairs_total",
			Help: "How often a step restored what another program had removed or changed in the kernel.",
		}, []string{"loop"}),
	}
}

// observer returns the callback for the end of a step.
func (m *loopMetrics) observer(step string) func(time.Duration, error) {
	passes, failures := m.passes.WithLabelValues(step), m.failures.WithLabelValues(step)
	return func(took time.Duration, err error) {
		passes.Observe(took.Seconds())
		if err != nil {
			failures.Inc()
		}
	}
}

// peerObserver returns observer of a step that configures peers, with the metrics that the original
// tool has.
func (m *loopMetrics) peerObserver(step, device string) func(time.Duration, error) {
	observe := m.observer(step)
	good, bad := m.syncPeers.WithLabelValues(device, "1"), m.syncPeers.WithLabelValues(device, "0")
	requeue := m.requeue.WithLabelValues(device)
	return func(took time.Duration, err error) {
		observe(took, err)
		if err == nil {
			good.Inc()
			return
		}
		bad.Inc()
		requeue.Inc()
	}
}
