package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/routes"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// syncSources assigns the source addresses of our routes to our devices, too, for
// kube-proxy to masquerade with. While they are unknown, assigned addresses are retained.
func (h *host) syncSources(ctx context.Context) (effect, error) {
	if !h.settled {
		return effect{}, nil
	}
	a := h.agent
	links, err := tunnel.List(ctx)
	if err != nil {
		return effect{}, err
	}
	var targets []routes.Target
	for _, l := range links {
		for _, r := range a.admitted() {
			if r.device.Name() == l.Name {
				targets = append(targets, routes.Target{Device: l.Index, Subnets: r.cfg.PodSubnets})
			}
		}
	}
	addresses, unsourced := routes.DesiredAddresses(targets, h.src), a.unsourcedTargets(h.src)
	changes, err := h.table.SyncAddresses(ctx, addresses)
	changed, icmpErr := routes.SyncICMP(ctx, a.log, unsourced)
	return effect{[]any{addresses, unsourced}, changed || changes != routes.Changes{}}, errors.Join(err, icmpErr)
}

// unsourcedTargets returns the remotes' subnets of address families without a source of
// routes: ICMP errors to them need another one, see [routes.SyncICMP].
func (a *agent) unsourcedTargets(src []netip.Addr) (targets []routes.ICMPTarget) {
	for _, r := range a.admitted() {
		target := routes.ICMPTarget{Device: r.device.Name()}
		for _, s := range r.cfg.PodSubnets {
			if !slices.ContainsFunc(src, func(a netip.Addr) bool { return a.Is4() == s.Addr().Is4() }) {
				target.Subnets = append(target.Subnets, s)
			}
		}
		if len(target.Subnets) > 0 {
			targets = append(targets, target)
		}
	}
	return targets
}

// withoutSource returns the pod prefixes of this node in whose family remotes have pods
// but this host has no source address, so that responses to the host itself get lost.
// Empty when there are none, or when the prefixes are unknown.
func (a *agent) withoutSource() string {
	prefixes, known := a.podCIDRs()
	if !known || a.cfg.RouteSrc != config.RouteSrcAuto {
		return ""
	}
	src, err := routes.Source(prefixes)
	if err != nil {
		return ""
	}
	var subnets []netip.Prefix
	for _, r := range a.admitted() {
		subnets = append(subnets, r.cfg.PodSubnets...)
	}
	return unsourced(prefixes, subnets, src)
}

// maxNamed bounds the prefixes listed in a line.
const maxNamed = 4

// unsourced lists the podCIDRs whose family is among subnets but not in src, at most
// maxNamed of them.
func unsourced(podCIDRs, subnets []netip.Prefix, src []netip.Addr) string {
	var lacking []string
	for _, p := range podCIDRs {
		remote := slices.ContainsFunc(subnets, func(s netip.Prefix) bool { return s.Addr().Is4() == p.Addr().Is4() })
		sourced := slices.ContainsFunc(src, func(a netip.Addr) bool { return a.Is4() == p.Addr().Is4() })
		if remote && !sourced {
			lacking = append(lacking, p.String())
		}
	}
	if len(lacking) > maxNamed {
		lacking = append(lacking[:maxNamed], fmt.Sprintf("and %d more", len(lacking)-maxNamed))
	}
	return strings.Join(lacking, ",")
}

// hostLine describes the consequence of a missing source address.
func hostLine(podCIDRs string) string {
	return fmt.Sprintf("host has no address in %s: pods reach remote pods, the node itself and hostNetwork pods don't", podCIDRs)
}
