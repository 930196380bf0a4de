package main

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/kube-semaphore/kube-semaphore/routes"
)

// removed are pod subnets that are no longer configured, mostly of a removed remote. For a time their
// packets leave by no device: controllers retain the remote's mirrors and network sets as
// long, and pods may have connections and addresses left. The zero value has none.
type removed struct {
	mu       sync.Mutex
	found    bool
	until    time.Time
	retained []netip.Prefix
	occupied []routes.Occupied // that this node depends on
}

// findRemoved finds them, in the first pass since start, by the policy rules that an earlier
// process left.
func (a *agent) findRemoved() error {
	a.removed.mu.Lock()
	defer a.removed.mu.Unlock()
	if a.removed.found {
		return nil
	}
	fenced, err := a.table.Fenced()
	if err != nil {
		return err
	}
	a.removed.found, a.removed.until = true, time.Now().Add(a.cfg.RemovalGrace)
	for _, r := range a.remotes {
		fenced = slices.DeleteFunc(fenced, func(s netip.Prefix) bool { return slices.ContainsFunc(r.cfg.PodSubnets, s.Overlaps) })
	}
	a.removed.retained = fenced
	if len(fenced) > 0 && a.cfg.RemovalGrace > 0 {
		a.log.Info("packets to pod subnets that are no longer configured are refused for a time",
			"subnets", fenced, "until", a.removed.until)
	}
	return nil
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

// removedReport is part of the report.
type removedReport struct {
	PodSubnets []string  `json:"podSubnets"`
	Until      time.Time `json:"until"`
	// Stopped are packets to them that were dropped; nil: not known.
	Stopped *uint64 `json:"stoppedPackets,omitempty"`
}

// report returns nil without any.
func (r *removed) report(now time.Time, stopped routes.Dropped) *removedReport {
	subnets := r.subnets(now)
	if len(subnets) == 0 {
		return nil
	}
	rep := &removedReport{Until: r.until}
	for _, s := range subnets {
		rep.PodSubnets = append(rep.PodSubnets, s.String())
	}
	if n, known := stopped[""]; known {
		rep.Stopped = &n
	}
	return rep
}
