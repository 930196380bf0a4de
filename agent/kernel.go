package agent

import (
	"net/netip"
	"slices"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/routes"
)

// newMonitor returns a monitor that triggers the loops on events of the kernel.
func (a *agent) newMonitor() *routes.Monitor {
	cfg := routes.MonitorConfig{Logger: a.log, Source: a.mayBeSource}
	for _, r := range a.remotes {
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
