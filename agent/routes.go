package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/peers"
	"github.com/kube-semaphore/kube-semaphore/routes"
)

// syncRoutes reconciles the routes and policy rules of all remotes. Routes of an earlier
// process are retained until their inputs are known: a device route until the device has
// been verified, its source until this node's pod prefixes have been read.
func (h *host) syncRoutes(ctx context.Context) (effect, error) {
	h.settled = false
	if err := h.findRemoved(ctx); err != nil {
		return effect{}, err
	}
	a := h.agent
	want, err := h.wantedRoutes()
	errs := []error{err}
	var changes, copies routes.Changes
	if want != nil {
		changes, err = h.table.Sync(ctx, want)
		errs = append(errs, err)
	}
	// The rules come second: once one is installed, only our own table decides.
	fenced, err := h.table.Fence(ctx, a.guarded())
	h.noteGuards(fenced.Subnets)
	for _, r := range a.remotes {
		missing := func(s netip.Prefix) bool { return !slices.Contains(fenced.Subnets, s) }
		if !slices.ContainsFunc(r.cfg.PodSubnets, missing) {
			r.fenced.Store(true)
		}
		barred := func(s netip.Prefix) bool { return !slices.Contains(fenced.Passable, s) }
		passes := !slices.ContainsFunc(r.cfg.PodSubnets, barred) && !r.passable.Swap(true)
		if !r.routed.Swap(true) || passes {
			a.happened(hostPrepared, r)
		}
	}
	if err = errors.Join(append(errs, err)...); err == nil {
		copies, err = h.table.RemoveCopies(ctx)
	}
	changed := changes != routes.Changes{} || fenced.Changes != routes.Changes{} || copies != routes.Changes{}
	return effect{[]any{want, a.guarded()}, changed}, err
}

// findShared finds the pod subnets that contain published endpoints of the remote's nodes,
// before those are accepted. It reports whether the packet filter exempts their packets, and the
// policy rules were synced since start.
func (r *remote) findShared() bool {
	if nodes, synced := r.nodes.Snapshot(); synced && r.agent.cfg.Mark != 0 {
		found := peers.Shared(r.cfg.PodSubnets, nodes)
		if !slices.Equal(found, *r.shared.Load()) {
			r.shared.Store(&found)
		}
	}
	if !r.exempted() {
		r.agent.happened(sharedFound, r)
		return false
	}
	return r.routed.Load()
}

// exempted reports whether the packet filter was last synced with the remote's shared subnets.
func (r *remote) exempted() bool { return r.exempt.Load() == r.shared.Load() }

// wantedRoutes returns the routes that all remotes need. With an error they may be nil:
// then all routes are retained.
func (h *host) wantedRoutes() ([]routes.Route, error) {
	a := h.agent
	var (
		all   []routes.Route // as if every link with a device's name were our device
		unset []bool         // by remote: its device was not verified yet
		index []int
	)
	for _, r := range a.remotes {
		i, seen, err := r.link()
		if err != nil {
			return nil, err
		}
		if r.refused() != nil || !a.translates() {
			i, seen = 0, true // Its device is deleted, or nothing may enter it; the guards stay.
		}
		index, unset = append(index, i), append(unset, !seen)
		all = append(all, routes.Desired(r.guarded(), i, nil)...)
	}
	all = append(all, routes.Desired(a.virtual(), 0, nil)...)
	installed, err := h.table.Installed(all)
	if err != nil {
		return nil, err
	}
	var srcErr error
	h.src, h.settled, srcErr = a.routeSources(installed)
	want := routes.Desired(a.virtual(), 0, nil)
	for i, r := range a.remotes {
		desired := routes.Desired(r.guarded(), index[i], h.src)
		if unset[i] || !h.settled {
			desired = routes.Retain(desired, installed, !unset[i])
		}
		want = append(want, desired...)
	}
	return want, srcErr
}

// routeSources returns the configured preferred source addresses, at most one per
// family. settled is false while they are provisional: then installed routes keep theirs.
func (a *agent) routeSources(installed []routes.Route) (src []netip.Addr, settled bool, err error) {
	switch a.cfg.RouteSrc {
	case config.RouteSrcNone:
		return nil, true, nil
	case config.RouteSrcAuto:
		if prefixes, known := a.podCIDRs(); known {
			src, err = routes.Source(prefixes)
			return src, err == nil, err
		}
		// Until the prefixes of our pods are known, use those of installed routes.
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
