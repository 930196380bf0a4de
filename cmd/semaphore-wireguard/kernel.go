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

// How often the main table is searched for foreign routes. The search is expensive in
// large tables, and its result is informational.
const (
	foreignSpacing = 10 * time.Second
	foreignPeriod  = 5 * time.Minute
)

// newMonitor returns a monitor that triggers the loops on events of the kernel.
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
			a.checking.Fire()
		}
		if c&routes.ConcernForeign != 0 {
			a.foreignRoutes.Fire()
		}
		if c&routes.ConcernLinks != 0 {
			for _, r := range a.remotes {
				r.linking.Fire()
			}
		}
	}
	return routes.NewMonitor(cfg)
}

// mayBeSource reports whether the appearance or removal of an address of this host may
// change the preferred source of routes.
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

// readForeign lists foreign routes to the pod subnets of the remotes.
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
		inside := func(f routes.Foreign) bool {
			return slices.ContainsFunc(r.cfg.PodSubnets, func(s netip.Prefix) bool { return s.Contains(f.Prefix.Addr()) })
		}
		var own []string
		for _, f := range found {
			if inside(f) {
				own = append(own, f.Text)
			}
		}
		if before := r.foreign.Swap(&own); before != nil && len(*before) != len(own) || before == nil && len(own) > 0 {
			a.log.Info("foreign routes to pod subnets of a remote: packets don't follow them", "cluster", r.cfg.Name, "routes", len(own))
		}
	}
	return nil
}

// foreignCollector counts foreign routes at each scrape.
type foreignCollector struct {
	agent *agent
	count *prometheus.Desc
}

func newForeignCollector(a *agent) *foreignCollector {
	return &foreignCollector{agent: a, count: prometheus.NewDesc("semaphore_wg_foreign_routes",
		"Foreign routes in the main table to pod subnets of this remote or parts of them; packets don't follow them.", []string{"cluster"}, nil)}
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
