package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"

	"github.com/kube-semaphore/kube-semaphore/peers"
	"github.com/kube-semaphore/kube-semaphore/routes"
)

// apiAddrs returns the addresses at which this process reaches the local API server:
// that of its configuration, when it is no name, and that of the service in pods.
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

// occupiedBy returns what a node depends on, as far as the API server has told.
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

// judge refuses the remotes whose pod subnets have something that this node depends
// on, by all that is known now, and admits the others. What was known stays known
// while an API server is away. It reports whether the judgement of any changed.
//
// What the host says refuses a remote when the agent starts only: an address that comes
// to a link later, as those of services do, may be anybody's choice, and takes no tunnel
// away that works.
func (a *agent) judge(ctx context.Context) (changed bool, err error) {
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
	if told := a.local.services.Load(); told != nil {
		services = *told
	}
	told := occupiedBy(a.apiAddrs, self, services)
	// What has a name comes before what is only an address.
	all := append(slices.Clone(told), host...)
	for _, r := range a.remotes {
		judged, before, occupied := r.refusal.Load() != nil, r.refused(), all
		if judged && before == nil {
			occupied = told
		}
		err := routes.Collision(r.cfg.PodSubnets, occupied)
		free := slices.DeleteFunc(slices.Clone(r.cfg.PodSubnets), func(s netip.Prefix) bool {
			return routes.Collision([]netip.Prefix{s}, occupied) != nil
		})
		if was := r.free.Swap(&free); was != nil && !slices.Equal(*was, free) {
			changed = true
		}
		if err != nil {
			err = fmt.Errorf("%s: %w: name only what the pods of %s have", r.cfg.PodSubnetsFrom, err, r.cfg.Name)
		}
		r.refusal.Store(&err)
		changed = a.verdicts.NoteOf(ctx, r.cfg.Name, err, "cluster", r.cfg.Name) || changed
	}
	return changed, nil
}

// rejudge judges, and has everything follow.
func (a *agent) rejudge(ctx context.Context) error {
	changed, err := a.judge(ctx)
	if changed {
		a.publishing.Fire()
		a.routing.Fire()
		a.sourcing.Fire()
		a.filterTrigger.Fire()
		a.surveying.Fire()
		for _, r := range a.remotes {
			r.linking.Fire()
			r.peering.Fire()
		}
	}
	return err
}

// guarded returns the subnets whose packets leave through a tunnel or not at all: those
// of the remotes, but what this node depends on of those that are refused.
func (a *agent) guarded() []netip.Prefix {
	var subnets []netip.Prefix
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

// admitted returns the remotes that aren't refused.
func (a *agent) admitted() []*remote {
	var admitted []*remote
	for _, r := range a.remotes {
		if r.refused() == nil {
			admitted = append(admitted, r)
		}
	}
	return admitted
}

// refused says why nothing is set up for this remote; nil when that isn't so.
func (r *remote) refused() error {
	if err := r.refusal.Load(); err != nil {
		return *err
	}
	return nil
}

// unlessRefused runs a pass, which a remote that is refused doesn't need.
func (r *remote) unlessRefused(pass func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if r.refused() != nil {
			return nil
		}
		return pass(ctx)
	}
}
