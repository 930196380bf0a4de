package main

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/routes"
)

// How often the main table is searched for routes of others. It may have many, and
// what is found is for people.
const (
	surveySpacing = 10 * time.Second
	surveyPeriod  = 5 * time.Minute
)

// newMonitor has the loops look at the kernel again when something there changed
// that concerns them.
func (a *agent) newMonitor() *routes.Monitor {
	cfg := routes.MonitorConfig{Logger: a.log, Source: a.mayBeSource}
	for _, r := range a.remotes {
		cfg.Subnets = append(cfg.Subnets, r.cfg.PodSubnets...)
		cfg.Devices = append(cfg.Devices, r.device.Name())
	}
	cfg.Notify = func(c routes.Concern) {
		if c&routes.ConcernRoutes != 0 {
			a.routing.Fire()
			a.sourcing.Fire()
		}
		if c&routes.ConcernAddresses != 0 {
			a.addressing.Fire()
			a.judging.Fire()
		}
		if c&routes.ConcernForeign != 0 {
			a.surveying.Fire()
		}
		if c&routes.ConcernLinks != 0 {
			for _, r := range a.remotes {
				r.linking.Fire()
			}
		}
	}
	return routes.NewMonitor(cfg)
}

// mayBeSource reports whether routes may need another source because an address of
// this host came or went.
func (a *agent) mayBeSource(addr netip.Addr) bool {
	if slices.Contains(*a.sources.Load(), addr) {
		return true
	}
	switch a.cfg.RouteSrc {
	case config.RouteSrcNone:
		return false
	case config.RouteSrcAuto:
		prefixes, _ := a.podCIDRs()
		return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(addr) })
	}
	wanted, err := netip.ParseAddr(a.cfg.RouteSrc)
	return err != nil || addr == wanted
}

// readForeign looks for routes of others to the remotes' pods.
func (a *agent) readForeign(context.Context) error {
	var subnets []netip.Prefix
	var devices []int
	for _, r := range a.admitted() {
		subnets = append(subnets, r.cfg.PodSubnets...)
		if index, _, err := r.link(); err == nil && index != 0 {
			devices = append(devices, index)
		}
	}
	found, err := a.table.Foreign(subnets, devices...)
	if err != nil {
		return err
	}
	for _, r := range a.remotes {
		if r.refused() != nil {
			r.foreign.Store(nil)
			continue
		}
		lies := func(f routes.Foreign) bool {
			return slices.ContainsFunc(r.cfg.PodSubnets, func(s netip.Prefix) bool { return s.Contains(f.Prefix.Addr()) })
		}
		var own []string
		for _, f := range found {
			if lies(f) {
				own = append(own, f.Text)
			}
		}
		if before := r.foreign.Swap(&own); before != nil && len(*before) != len(own) || before == nil && len(own) > 0 {
			a.log.Info("routes of others to pods of a remote: its packets don't follow them", "cluster", r.cfg.Name, "routes", len(own))
		}
	}
	return nil
}

// foreignCollector counts routes of others when metrics are asked for.
type foreignCollector struct {
	agent *agent
	count *prometheus.Desc
}

func newForeignCollector(a *agent) *foreignCollector {
	return &foreignCollector{agent: a, count: prometheus.NewDesc("semaphore_wg_foreign_routes",
		"Routes of others in the main table to pod subnets of this remote or parts of them; packets don't follow them.", []string{"cluster"}, nil)}
}

// Describe implements prometheus.Collector.
func (c *foreignCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.count }

// Collect implements prometheus.Collector.
func (c *foreignCollector) Collect(ch chan<- prometheus.Metric) {
	for _, r := range c.agent.remotes {
		if found := r.foreign.Load(); found != nil {
			ch <- prometheus.MustNewConstMetric(c.count, prometheus.GaugeValue, float64(len(*found)), r.cfg.Name)
		}
	}
}
