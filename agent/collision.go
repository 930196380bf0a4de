package agent

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/errlog"
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

// admission decides which remotes are refused, and whether the map of pod subnets is.
type admission struct {
	agent      *agent
	apiAddrs   []netip.Addr          // of the local API server
	lastSelf   peers.Self            // last known state of this node
	refusals   errlog.Log            // by remote
	refusedMap atomic.Pointer[error] // why the map can't be used; nil: not checked yet
}

// newAdmission returns an admission that knows the address of the local API server.
func newAdmission(a *agent, api string) *admission {
	return &admission{agent: a, apiAddrs: apiAddrs(api), refusals: errlog.Log{
		Logger: a.log, Level: slog.LevelError, Failing: "remote refused: it gets no tunnel", Over: "remote admitted again",
	}}
}

// check refuses remotes whose pod subnets overlap something that this node
// depends on, and admits the others. It reports whether the result changed for any of
// them. While the API server can't be reached, the last known state counts.
//
// Addresses of the host refuse a remote only at start. An address that appears on a link
// later, such as that of a service, may have been chosen by any user and must not take
// down a working tunnel.
func (d *admission) check(ctx context.Context) (changed bool, err error) {
	a := d.agent
	host, err := routes.OccupiedByHost()
	if err != nil {
		return false, err
	}
	if self, known := a.knownSelf(); known {
		self.PodCIDRs = d.lastSelf.PodCIDRs
		if prefixes, known := a.podCIDRs(); known {
			self.PodCIDRs = prefixes
		}
		d.lastSelf = self
	}
	self := d.lastSelf
	var services []netip.Prefix
	if ranges := a.local.services.Load(); ranges != nil {
		services = *ranges
	}
	named := occupiedBy(d.apiAddrs, self, services)
	// Named first, for the better error: an address may be in both.
	all := append(slices.Clone(named), host...)
	a.host.removed.exclude(all)
	mapErr := d.checkMap(named, all)
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
		changed = d.refusals.NoteOf(ctx, r.cfg.Name, err, "cluster", r.cfg.Name) || changed
	}
	return changed, nil
}

// recheck is check as a step.
func (d *admission) recheck(ctx context.Context) error {
	changed, err := d.check(ctx)
	if changed {
		d.agent.happened(refusalsChanged, nil)
	}
	return err
}

// guarded returns the subnets whose packets leave through a tunnel or not at all: the
// pod subnets of all remotes, for refused ones without those that overlap something this
// node depends on, the virtual ones of this cluster, and for a time those of remotes that are no
// longer configured.
func (a *agent) guarded() []netip.Prefix {
	subnets := append(a.host.removed.subnets(time.Now()), a.virtual()...)
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
