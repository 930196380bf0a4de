package agent

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/kube-semaphore/kube-semaphore/routes"
)

// host is what all remotes need in the kernel of this node. Only its task changes it.
type host struct {
	agent   *agent
	table   *routes.Table
	filter  *routes.Filter
	removed removed // subnets of remotes that are no longer configured
	stops   stops   // counts of the exit filter

	// src are the sources of routes, one per family at most; settled: not provisional ones.
	src     []netip.Addr
	settled bool

	addrs    atomic.Pointer[[]netip.Addr] // of this host, last read
	forwards atomic.Pointer[[]string]     // settings by which this host doesn't forward, last read; nil: not yet
	// translated is set while the packet filter translates by the map of pod subnets,
	// guardsVirtual once policy rules guard the virtual ones.
	translated, guardsVirtual atomic.Bool
}

// newHost opens the routing table. It changes nothing.
func newHost(a *agent) (*host, error) {
	h := &host{agent: a, filter: routes.NewFilter(a.log)}
	h.addrs.Store(&[]netip.Addr{})
	var err error
	if h.table, err = routes.NewTable(a.log, a.cfg.Mark); err != nil {
		return nil, err
	}
	return h, nil
}

// steps returns the steps of the host's passes. No route leads packets to a remote before the exit
// filter watches them, and no peer of a remote is configured before both were made.
func (h *host) steps() []*step {
	a := h.agent
	return []*step{
		a.step("host addresses", h.readAddrs),
		a.repairing("packet filter", h.syncFilter),
		a.repairing("routes", h.syncRoutes),
		a.repairing("source addresses", h.syncSources),
		a.repairing("forwarding", h.checkForwarding),
	}
}

// readAddrs reads the addresses of this host, which no endpoint of a remote node may have.
func (h *host) readAddrs(context.Context) error {
	addrs, err := hostAddrs()
	if err != nil {
		return err
	}
	if !slices.Equal(addrs, *h.addrs.Load()) {
		h.addrs.Store(&addrs)
		h.agent.happened(hostAddrsChanged, nil)
	}
	return nil
}

// hostAddrs returns the addresses of this host and the broadcast addresses of its
// links, sorted. Those that no endpoint can have are left out: each link of a pod has a link-local
// one.
func hostAddrs() ([]netip.Addr, error) {
	found, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("read this host's addresses: %w", err)
	}
	addrs := make([]netip.Addr, 0, len(found))
	for _, f := range found {
		if p, err := netip.ParsePrefix(f.String()); err == nil && p.Addr().IsGlobalUnicast() {
			addrs = append(append(addrs, p.Addr().Unmap()), onLink(p)...)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return addrs, nil
}
