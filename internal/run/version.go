package run

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/kube-semaphore/internal/process"
)

// BuildInfo returns the conventional build information metric: a gauge of constant value 1
// named <prefix>_build_info.
func BuildInfo(prefix string) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: prefix + "_build_info",
		Help: "Always 1; the labels say which build this is.",
		ConstLabels: prometheus.Labels{
			"version":   process.Version(),
			"revision":  process.Revision(),
			"goversion": runtime.Version(),
		},
	}, func() float64 { return 1 })
}
