package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/routes"
)

// syncRoutes brings the routes of all remotes to what they must be. What an earlier
// process left stays as it is until more is known: a device route until the device
// has been looked at, its source until this node's addresses are known.
func (a *agent) syncRoutes(ctx context.Context) error {
	want, err := a.wantedRoutes()
	errs := []error{err}
	if want != nil {
		_, err := a.table.Sync(ctx, want)
		errs = append(errs, err)
	}
	// The rules come second: from the first of them on only our table decides.
	fenced, err := a.table.Fence(ctx, a.guarded())
	for _, r := range a.remotes {
		missing := func(s netip.Prefix) bool { return !slices.Contains(fenced.Subnets, s) }
		if !slices.ContainsFunc(r.cfg.PodSubnets, missing) {
			r.fenced.Store(true)
		}
	}
	return errors.Join(append(errs, err)...)
}

// wantedRoutes returns the routes that all remotes need, as far as that is known.
// They are nil when so little is known that all must stay as it is.
func (a *agent) wantedRoutes() ([]routes.Route, error) {
	var (
		all   []routes.Route // if everything that is there were as it should be
		unset []bool         // remotes that nobody has looked at the device of
		index []int
	)
	for _, r := range a.remotes {
		i, seen, err := r.link()
		if err != nil {
			return nil, err
		}
		if r.refused() != nil {
			i, seen = 0, true // Its device goes; guards stay.
		}
		index, unset = append(index, i), append(unset, !seen)
		all = append(all, routes.Desired(r.guarded(), i, nil)...)
	}
	installed, err := a.table.Installed(all)
	if err != nil {
		return nil, err
	}
	src, settled, srcErr := a.routeSources(installed)
	a.sources.Store(&src)
	want := []routes.Route{}
	for i, r := range a.remotes {
		desired := routes.Desired(r.guarded(), index[i], src)
		if unset[i] || !settled {
			desired = routes.Retain(desired, installed, !unset[i])
		}
		want = append(want, desired...)
	}
	return want, srcErr
}

// routeSources returns the preferred source addresses that the configuration asks
// for, at most one per family. They aren't settled when they are the best that is
// known, and installed routes may have better ones.
func (a *agent) routeSources(installed []routes.Route) (src []netip.Addr, settled bool, err error) {
	switch a.cfg.RouteSrc {
	case config.RouteSrcNone:
		return nil, true, nil
	case config.RouteSrcAuto:
		if prefixes, known := a.podCIDRs(); known {
			src, err = routes.Source(prefixes)
			return src, err == nil, err
		}
		// Until the prefixes of our pods are known, what an earlier process
		// found out is the best there is.
		src, err = routes.Sources(installed)
		return src, false, err
	}
	addr, err := netip.ParseAddr(a.cfg.RouteSrc)
	if err != nil {
		return nil, false, fmt.Errorf("SEMAPHORE_WG_ROUTE_SRC: %w", err)
	}
	local, err := routes.Local(addr)
	if err == nil && !local {
		err = fmt.Errorf("SEMAPHORE_WG_ROUTE_SRC: %s is not an address of this host", addr)
	}
	if err != nil {
		return nil, false, err
	}
	return []netip.Addr{addr}, true, nil
}
