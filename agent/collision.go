package agent

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"time"

	"github.com/kube-semaphore/kube-semaphore/peers"
	"github.com/kube-semaphore/kube-semaphore/routes"
)

// apiAddrs returns the addresses by which this process reaches the local API server:
// the configured one unless it is a host name, and KUBERNETES_SERVICE_HOST.
func apiAddrs(configured string) (addrs []netip.Addr) {
	host := configured
	if u, err := url.Parse(configured); err == nil && u.Hostname() != "" {
		host = u.Hostname()
	} else if h, _, err := net.SplitHostPort(configured); err == nil {
		host = h
	}
	for _, text := range []string{host, os.Getenv("KUBERNETES_SERVICE_HOST")} {
		if addr, err := netip.ParseAddr(text); err == nil {
			addrs = append(addrs, addr.Unmap().WithZone(""))
		}
	}
	return addrs
}

// occupiedBy returns the addresses and prefixes that this node depends on, as known from
// the API server.
func occupiedBy(api []netip.Addr, self peers.Self, services []netip.Prefix) []routes.Occupied {
	var occupied []routes.Occupied
	single := func(addrs []netip.Addr, what string) {
		for _, a := range addrs {
			occupied = append(occupied, routes.Occupied{Prefix: netip.PrefixFrom(a, a.BitLen()), What: what})
		}
	}
	single(api, "the API server of this cluster")
	single(self.InternalIPs, "the InternalIP of this node")
	for _, p := range self.PodCIDRs {
		occupied = append(occupied, routes.Occupied{Prefix: p, What: "the pods of this node"})
	}
	for _, p := range services {
		occupied = append(occupied, routes.Occupied{Prefix: p, What: "the services of this cluster"})
	}
	return occupied
}

// checkSubnets refuses remotes whose pod subnets overlap something that this node
// depends on, and admits the others. It reports whether the result changed for any of
// them. While the API server can't be reached, the last known state counts.
//
// Addresses of the host refuse a remote only at start. An address that appears on a link
// later, such as that of a service, may have been chosen by any user and must not take
// down a working tunnel.
func (a *agent) checkSubnets(ctx context.Context) (changed bool, err error) {
	host, err := routes.OccupiedByHost()
	if err != nil {
		return false, err
	}
	if self, known := a.knownSelf(); known {
		self.PodCIDRs = a.lastSelf.PodCIDRs
		if prefixes, known := a.podCIDRs(); known {
			self.PodCIDRs = prefixes
		}
		a.lastSelf = self
	}
	self := a.lastSelf
	var services []netip.Prefix
	if ranges := a.local.services.Load(); ranges != nil {
		services = *ranges
	}
	named := occupiedBy(a.apiAddrs, self, services)
	// Named first, for the better error: an address may be in both.
	all := append(slices.Clone(named), host...)
	a.removed.exclude(all)
	mapErr := a.checkMap(named, all)
	for _, r := range a.remotes {
		checked, before, occupied := r.refusal.Load() != nil, r.refused(), all
		if checked && before == nil {
			occupied = named
		}
		err := routes.Collision(r.cfg.PodSubnets, occupied)
		free := slices.DeleteFunc(slices.Clone([]netip.Prefix(r.cfg.PodSubnets)), func(s netip.Prefix) bool {
			return routes.Collision([]netip.Prefix{s}, occupied) != nil
		})
		if was := r.free.Swap(&free); was != nil && !slices.Equal(*was, free) {
			changed = true
		}
		if err != nil {
			err = fmt.Errorf("%s: %w: list only the pod subnets of %s", r.cfg.PodSubnetsFrom, err, r.cfg.Name)
		}
		err = cmp.Or(mapErr, err)
		r.refusal.Store(&err)
		changed = a.refusals.NoteOf(ctx, r.cfg.Name, err, "cluster", r.cfg.Name) || changed
	}
	return changed, nil
}

// recheckSubnets runs checkSubnets and triggers all dependent loops on a change.
func (a *agent) recheckSubnets(ctx context.Context) error {
	changed, err := a.checkSubnets(ctx)
	if changed {
		a.publishing.Fire()
		a.routing.Fire()
		a.sourcing.Fire()
		a.filterTrigger.Fire()
		for _, r := range a.remotes {
			r.linking.Fire()
			r.peering.Fire()
		}
	}
	return err
}

// guarded returns the subnets whose packets leave through a tunnel or not at all: the
// pod subnets of all remotes, for refused ones without those that overlap something this
// node depends on, the virtual ones of this cluster, and for a time those of remotes that are no
// longer configured.
func (a *agent) guarded() []netip.Prefix {
	subnets := append(a.removed.subnets(time.Now()), a.virtual()...)
	for _, r := range a.remotes {
		subnets = append(subnets, r.guarded()...)
	}
	return subnets
}

func (r *remote) guarded() []netip.Prefix {
	if free := r.free.Load(); free != nil && r.refused() != nil {
		return *free
	}
	return r.cfg.PodSubnets
}

// admitted returns the remotes that are not refused.
func (a *agent) admitted() []*remote {
	var admitted []*remote
	for _, r := range a.remotes {
		if r.refused() == nil {
			admitted = append(admitted, r)
		}
	}
	return admitted
}

// refused returns why nothing is set up for this remote; nil if it is admitted.
func (r *remote) refused() error {
	if err := r.refusal.Load(); err != nil {
		return *err
	}
	return nil
}

// unlessRefused wraps a pass that is skipped while the remote is refused.
func (r *remote) unlessRefused(pass func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if r.refused() != nil {
			return nil
		}
		return pass(ctx)
	}
}
