package agent

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/peers"
	"github.com/kube-semaphore/kube-semaphore/routes"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// removed are pod subnets that are no longer configured, mostly of a removed remote. For a time their
// packets leave by no device: controllers retain the remote's mirrors and network sets as
// long, and pods may have connections and addresses left. The zero value has none.
type removed struct {
	mu       sync.Mutex
	found    bool
	devices  []string // of removed remotes
	until    time.Time
	retained []netip.Prefix
	occupied []routes.Occupied // that this node depends on
}

// findRemoved finds them, in the first pass since start, by the policy rules and the devices that an
// earlier process left.
func (h *host) findRemoved(ctx context.Context) error {
	a, removed := h.agent, &h.removed
	removed.mu.Lock()
	defer removed.mu.Unlock()
	if removed.found {
		return nil
	}
	fenced, err := h.table.Fenced()
	if err != nil {
		return err
	}
	links, err := tunnel.List(ctx)
	if err != nil {
		return err
	}
	for _, l := range links {
		if !a.configured(l.Name) {
			removed.devices = append(removed.devices, l.Name)
		}
	}
	for _, own := range a.cfg.PodSubnetsMap.Virtuals() {
		fenced = without(fenced, own)
	}
	removed.found, removed.until = true, time.Now().Add(a.cfg.RemovalGrace)
	for _, r := range a.remotes {
		for _, configured := range r.cfg.PodSubnets {
			fenced = without(fenced, configured)
		}
		// Its packets go there outside of the tunnel.
		nodes := peers.Around(fenced, r.controller.State().Restored)
		fenced = slices.DeleteFunc(fenced, func(s netip.Prefix) bool { return slices.Contains(nodes, s) })
	}
	removed.retained = fenced
	if len(fenced) > 0 && a.cfg.RemovalGrace > 0 {
		a.log.Info("packets to pod subnets that are no longer configured are refused for a time",
			"subnets", fenced, "until", removed.until)
	}
	return nil
}

// without returns the prefixes less another one: those that contain it are split.
func without(prefixes []netip.Prefix, other netip.Prefix) []netip.Prefix {
	var rest []netip.Prefix
	for _, p := range prefixes {
		switch {
		case !p.Overlaps(other):
			rest = append(rest, p)
		case p.Bits() < other.Bits():
			rest = append(rest, without(halves(p), other)...)
		}
	}
	return rest
}

// halves splits a prefix that isn't a single address.
func halves(p netip.Prefix) []netip.Prefix {
	upper := p.Addr().AsSlice()
	upper[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
	addr, _ := netip.AddrFromSlice(upper)
	return []netip.Prefix{netip.PrefixFrom(p.Addr(), p.Bits()+1), netip.PrefixFrom(addr, p.Bits()+1)}
}

// links returns the names of the devices of removed remotes.
func (r *removed) links() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.devices
}

// exclude leaves out the subnets that overlap something this node depends on.
func (r *removed) exclude(occupied []routes.Occupied) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.occupied = occupied
}

// subnets returns those whose packets don't leave at the given time.
func (r *removed) subnets(now time.Time) []netip.Prefix {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !now.Before(r.until) {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(r.retained), func(s netip.Prefix) bool {
		return routes.Collision([]netip.Prefix{s}, r.occupied) != nil
	})
}

// report returns nil without any.
func (r *removed) report(now time.Time, stopped routes.Dropped) *statuspage.Removed {
	subnets := r.subnets(now)
	if len(subnets) == 0 {
		return nil
	}
	rep := &statuspage.Removed{Until: r.until}
	for _, s := range subnets {
		rep.PodSubnets = append(rep.PodSubnets, s.String())
	}
	if n, known := stopped[""]; known {
		rep.Stopped = &n
	}
	return rep
}
