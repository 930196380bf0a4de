package agent

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/routes"
)

// Virtual subnets of this cluster's pods take effect in this order, so that no packet with a real
// address leaves, and none to a virtual one leaves in plaintext:
//
//	rules that translate       installed with the exit filter
//	guards                     policy rules and routes of the virtual subnets
//	device routes              once the rules translate; removed when they no longer do
//	annotations of the node    once both are installed

// mapping returns the map of this cluster's pod subnets for the packet filter.
func (a *agent) mapping() []routes.Mapping {
	if a.mapRefusal() != nil {
		return nil
	}
	var all []routes.Mapping
	for _, m := range a.cfg.PodSubnetsMap {
		all = append(all, routes.Mapping(m))
	}
	return all
}

// virtual returns the virtual subnets of this cluster, packets to which leave by no link.
func (a *agent) virtual() []netip.Prefix {
	if a.mapRefusal() != nil {
		return nil
	}
	return a.cfg.PodSubnetsMap.Virtuals()
}

// mapRefusal returns why the map can't be used, for which all remotes are refused.
func (a *agent) mapRefusal() error {
	if err := a.admission.refusedMap.Load(); err != nil {
		return *err
	}
	return nil
}

// checkMap refuses the map if a virtual subnet overlaps something that this node depends on.
// Later addresses of the host count as little as for pod subnets of remotes, see checkSubnets.
func (d *admission) checkMap(named, all []routes.Occupied) error {
	occupied := all
	if d.refusedMap.Load() != nil && d.agent.mapRefusal() == nil {
		occupied = named
	}
	err := routes.Collision(d.agent.cfg.PodSubnetsMap.Virtuals(), occupied)
	if err != nil {
		err = fmt.Errorf("SEMAPHORE_POD_SUBNETS_MAP: %w: map to subnets that are unused", err)
	}
	d.refusedMap.Store(&err)
	return err
}

// translates reports whether packets to remotes leave with addresses by which these know the
// pods of this cluster.
func (a *agent) translates() bool { return len(a.cfg.PodSubnetsMap) == 0 || a.host.translated.Load() }

// noteTranslation notes whether the packet filter translates by a map.
func (h *host) noteTranslation(ctx context.Context, translates bool) {
	if h.translated.Swap(translates) == translates {
		return
	}
	a := h.agent
	if translates {
		a.log.InfoContext(ctx, "addresses of pods are translated", "map", a.cfg.PodSubnetsMap.String())
	} else {
		a.log.ErrorContext(ctx, "addresses of pods are no longer translated: packets to remotes are refused", "map", a.cfg.PodSubnetsMap.String())
	}
	a.happened(translationChanged, nil)
}

// noteGuards notes whether the virtual subnets are guarded by policy rules.
func (h *host) noteGuards(fenced []netip.Prefix) {
	missing := func(s netip.Prefix) bool { return !slices.Contains(fenced, s) }
	virtual := h.agent.cfg.PodSubnetsMap.Virtuals()
	guarded := !slices.ContainsFunc(virtual, missing)
	if len(virtual) > 0 && guarded && !h.guardsVirtual.Swap(true) {
		h.agent.happened(translationChanged, nil)
	}
}

// publish publishes this node. With a map it waits until packets that others then send are
// translated, and the guards refuse those that aren't.
func (a *agent) publish(ctx context.Context) error {
	if len(a.cfg.PodSubnetsMap) > 0 && (!a.host.translated.Load() || !a.host.guardsVirtual.Load()) {
		return nil
	}
	return a.publisher.Reconcile(ctx)
}

// translationStatus returns nil without a map.
func (a *agent) translationStatus(state routes.State, filter statuspage.Filter) *statuspage.Translation {
	if len(a.cfg.PodSubnetsMap) == 0 {
		return nil
	}
	rep := &statuspage.Translation{Map: a.cfg.PodSubnetsMap.String(), Filter: filter}
	if filter.State == statuspage.FilterEnforced {
		rep.OwnPods, rep.Untranslated = state.Hairpin, &state.Untranslated
	}
	return rep
}
