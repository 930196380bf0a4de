package agent

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/routes"
)

// How often the main table is searched for foreign routes. The search is expensive in
// large tables, and its result is informational.
const (
	foreignSpacing = 10 * time.Second
	foreignPeriod  = 5 * time.Minute
	// rulesSpacing is the minimum interval between reads of the policy rules, of which
	// network plugins add one or two for each pod. Their tables are read every slowPass.
	rulesSpacing = 2 * time.Second
)

// newMonitor returns a monitor that triggers the loops on events of the kernel.
func (a *agent) newMonitor() *routes.Monitor {
	cfg := routes.MonitorConfig{Logger: a.log, Source: a.mayBeSource, Subnets: a.cfg.PodSubnetsMap.Virtuals()}
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
		if c&routes.ConcernForeignRules != 0 {
			a.foreignRules.Fire()
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

// tunnelled returns the pod subnets of the admitted remotes, and the indices of their
// devices.
func (a *agent) tunnelled() (subnets []netip.Prefix, devices []int) {
	for _, r := range a.admitted() {
		subnets = append(subnets, r.cfg.PodSubnets...)
		if index, _, err := r.link(); err == nil && index != 0 {
			devices = append(devices, index)
		}
	}
	return subnets, devices
}

// readForeignRules lists the foreign policy rules that lead packets to the pods of remotes
// past the tunnel.
func (a *agent) readForeignRules(context.Context) error {
	subnets, devices := a.tunnelled()
	found, err := a.table.ForeignRules(subnets, devices...)
	if err != nil {
		return err
	}
	for _, r := range a.remotes {
		own := []statuspage.ForeignRule{}
		for _, f := range found {
			if slices.ContainsFunc(f.Subnets, func(s netip.Prefix) bool { return r.refused() == nil && slices.Contains(r.cfg.PodSubnets, s) }) {
				own = append(own, statuspage.ForeignRule{Rule: f.Text, Marked: f.Marked})
			}
		}
		before := r.foreignRules.Swap(&own)
		if len(own) > 0 && (before == nil || !slices.Equal(*before, own)) {
			a.log.Warn("policy rules of other programs come first and lead packets to pods of a remote past the tunnel",
				"cluster", r.cfg.Name, "rules", len(own), "first", own[0].Rule)
		}
		if before != nil && len(*before) > 0 && len(own) == 0 {
			a.log.Info("no foreign policy rule leads packets to pods of the remote past the tunnel any more", "cluster", r.cfg.Name)
		}
	}
	return nil
}

// readForeign lists foreign routes to the pod subnets of the remotes.
func (a *agent) readForeign(context.Context) error {
	subnets, devices := a.tunnelled()
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

// foreignCollector counts foreign routes and rules at each scrape.
type foreignCollector struct {
	agent         *agent
	routes, rules *prometheus.Desc
}

func newForeignCollector(a *agent) *foreignCollector {
	return &foreignCollector{
		agent: a,
		routes: prometheus.NewDesc("semaphore_wg_foreign_routes",
			"Foreign routes in the main table to pod subnets of this remote or parts of them; packets don't follow them.", []string{"cluster"}, nil),
		rules: prometheus.NewDesc("semaphore_wg_foreign_rules",
			"Foreign policy rules that come before the agent's and lead packets to pods of this remote past the tunnel.", []string{"cluster"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *foreignCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.routes
	ch <- c.rules
}

// Collect implements prometheus.Collector.
func (c *foreignCollector) Collect(ch chan<- prometheus.Metric) {
	for _, r := range c.agent.remotes {
		if found := r.foreign.Load(); found != nil {
			ch <- prometheus.MustNewConstMetric(c.routes, prometheus.GaugeValue, float64(len(*found)), r.cfg.Name)
		}
		if found := r.foreignRules.Load(); found != nil {
			ch <- prometheus.MustNewConstMetric(c.rules, prometheus.GaugeValue, float64(len(*found)), r.cfg.Name)
		}
	}
}
