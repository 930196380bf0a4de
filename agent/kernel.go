package agent

import (
	"github.com/kube-semaphore/kube-semaphore/internal/run"
	"github.com/kube-semaphore/kube-semaphore/routes"
)

// monitors returns the tasks that wait for events of the kernel.
func (a *agent) monitors() []run.Task {
	changed := func() { a.happened(kernelChanged, nil) }
	cfg := routes.MonitorConfig{Logger: a.log, Notify: func(c routes.Concern) {
		changed()
		if c&routes.ConcernLinks != 0 {
			a.happened(linkChanged, nil)
		}
		if c&routes.ConcernUnderlay != 0 {
			a.happened(underlayChanged, nil)
		}
	}}
	for _, r := range a.remotes {
		cfg.Underlays = append(cfg.Underlays, r.underlay)
		cfg.Devices = append(cfg.Devices, r.device.Name())
	}
	return []run.Task{routes.NewMonitor(cfg), routes.NewFilterMonitor(a.log, changed)}
}
