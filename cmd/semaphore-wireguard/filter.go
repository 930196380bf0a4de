package main

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/kube-semaphore/routes"
)

// filterState is the state of the source filter, which drops packets with a remote pod's
// source address that did not arrive through the tunnel.
type filterState string

const (
	filterEnforced    filterState = "enforced"
	filterNotEnforced filterState = "not enforced"
	filterOff         filterState = "off" // by the configuration
	filterUnknown     filterState = "unknown"
)

type filterReport struct {
	State filterState `json:"state"`
	// Error is set when State is not enforced or unknown.
	Error string `json:"error,omitempty"`
}

// origins returns the device and pod subnets of each admitted remote; nil when the
// filter is switched off.
func (a *agent) origins() []routes.Origin {
	if !a.cfg.SourceFilter {
		return nil
	}
	admitted := a.admitted()
	origins := make([]routes.Origin, len(admitted))
	for i, r := range admitted {
		origins[i] = routes.Origin{Device: r.device.Name(), Subnets: r.cfg.PodSubnets}
	}
	return origins
}

func (a *agent) syncFilter(ctx context.Context) error {
	_, err := a.filter.Sync(ctx, a.origins())
	return err
}

// filterStatus reads the filter's state and its counts of dropped packets by device.
func (a *agent) filterStatus(ctx context.Context) (filterReport, routes.Dropped) {
	if !a.cfg.SourceFilter {
		return filterReport{State: filterOff}, nil
	}
	if len(a.origins()) == 0 {
		return filterReport{State: filterEnforced}, routes.Dropped{} // All remotes are refused.
	}
	dropped, enforced, err := a.filter.Status(ctx, a.origins())
	switch {
	case enforced:
		return filterReport{State: filterEnforced}, dropped
	case err != nil && !errors.Is(err, routes.ErrNoFilter):
		return filterReport{State: filterUnknown, Error: err.Error()}, nil
	}
	rep := filterReport{State: filterNotEnforced}
	if a.filtering != nil && a.filtering.Err() != nil {
		err = a.filtering.Err() // why the installation failed
	}
	if err != nil {
		rep.Error = err.Error()
	}
	return rep, nil
}

// filterCollector reads the metrics of the source filter at each scrape.
type filterCollector struct {
	agent             *agent
	enforced, dropped *prometheus.Desc
}

func newFilterCollector(a *agent) *filterCollector {
	return &filterCollector{
		agent: a,
		enforced: prometheus.NewDesc("semaphore_wg_source_filter_enforced",
			"1 if packets with a remote pod's source address that did not arrive through the tunnel are dropped, else 0; absent when that is switched off.", nil, nil),
		dropped: prometheus.NewDesc("semaphore_wg_forged_packets_total",
			"Packets dropped because they had the source address of a pod of this remote and did not arrive through its device.",
			[]string{"cluster", "device"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *filterCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.enforced
	ch <- c.dropped
}

// Collect implements prometheus.Collector.
func (c *filterCollector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), statusTimeout)
	defer cancel()
	rep, dropped := c.agent.filterStatus(ctx)
	switch rep.State {
	case filterEnforced:
		ch <- prometheus.MustNewConstMetric(c.enforced, prometheus.GaugeValue, 1)
	case filterOff:
		return
	default:
		ch <- prometheus.MustNewConstMetric(c.enforced, prometheus.GaugeValue, 0)
		return // The counters were not read.
	}
	for _, r := range c.agent.remotes {
		device := r.device.Name()
		ch <- prometheus.MustNewConstMetric(c.dropped, prometheus.CounterValue, float64(dropped[device]), r.cfg.Name, device)
	}
}
