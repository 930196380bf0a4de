package agent

import (
	"context"
	"net/netip"
	"slices"

	"github.com/kube-semaphore/kube-semaphore/peers"
	"github.com/kube-semaphore/kube-semaphore/routes"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// fit is the result of the path MTUs for a remote's device.
type fit struct {
	largest   int        // MTU without fragmentation, in bytes
	narrowest netip.Addr // the endpoint that limits it
}

// fitMTUs sets the devices' MTUs by the paths to their peers, unless configured, and
// warns of configured ones that are too large. On the links of paths to peers inside pod
// subnets a strict reverse path filter is made to consider marks.
func (h *host) fitMTUs(context.Context) (effect, error) {
	a := h.agent
	of := make([][]netip.Addr, len(a.remotes))
	var all []netip.Addr
	for i, r := range a.remotes {
		of[i] = *r.endpoints.Load()
		all = append(all, of[i]...)
	}
	found, err := h.underlay.Paths(all)
	if err != nil {
		return effect{}, err
	}
	paths := make(map[netip.Addr]tunnel.UnderlayPath, len(found))
	for _, p := range found {
		paths[p.To] = p
	}
	for i, r := range a.remotes {
		own := make([]tunnel.UnderlayPath, 0, len(of[i]))
		for _, to := range of[i] {
			if p, known := paths[to]; known {
				own = append(own, p)
			}
		}
		r.fitMTU(own)
	}
	var shared []netip.Prefix
	for _, r := range a.remotes {
		shared = append(shared, *r.shared.Load()...)
	}
	links := h.underlay.Links(func(to netip.Addr) bool {
		return to.Is4() && slices.ContainsFunc(shared, func(s netip.Prefix) bool { return s.Contains(to) })
	})
	changed, err := h.table.ConsiderMarks(links)
	return effect{links, changed}, err
}

// endpointsOf returns the published endpoint addresses of peers. When none is published, peers may
// be anywhere: then it returns addresses behind the default routes.
func endpointsOf(peers []peers.Peer) []netip.Addr {
	var addrs []netip.Addr
	for i := range peers {
		if endpoint := peers[i].Endpoint; endpoint.IsValid() {
			addrs = append(addrs, endpoint.Addr())
		}
	}
	if len(addrs) == 0 && len(peers) > 0 {
		return routes.DocumentationAddrs()
	}
	return addrs
}

// fitMTU applies the paths to the remote's nodes. Without any, the device keeps its MTU:
// a restart must not change it for a moment.
func (r *remote) fitMTU(paths []tunnel.UnderlayPath) {
	mtu, known := tunnel.MTUFor(paths)
	if !known {
		r.fit.Store(nil)
		return
	}
	if r.cfg.MTU != 0 {
		mtu = int(r.cfg.MTU)
	} else if r.fitted.Swap(int64(mtu)) != int64(mtu) {
		r.device.SetMTU(mtu)
		r.agent.happened(linkChanged, r)
	}
	largest, narrowest, _ := tunnel.LargestMTU(paths)
	now := fit{largest: largest, narrowest: narrowest.To}
	if before := r.fit.Load(); mtu > largest && (before == nil || *before != now) {
		r.agent.log.Warn("MTU exceeds the path to a peer: packets are fragmented",
			"cluster", r.cfg.Name, "device", r.device.Name(), "mtu", mtu, "largest", largest, "endpoint", now.narrowest)
	}
	r.fit.Store(&now)
}
