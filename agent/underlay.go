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

// fitMTU sets the device's MTU by the paths to its peers, unless configured, and warns of a
// configured one that is too large. On the links of paths to peers inside pod subnets a strict
// reverse path filter is made to consider marks. Without paths the device keeps its MTU: a restart
// must not change it for a moment.
func (r *remote) fitMTU(context.Context) (effect, error) {
	if r.refused() != nil {
		return effect{}, nil
	}
	paths, err := r.underlay.Paths(endpointsOf(r.controller.State().Peers))
	if err != nil {
		return effect{}, err
	}
	shared := *r.shared.Load()
	links := r.underlay.Links(func(to netip.Addr) bool {
		return to.Is4() && slices.ContainsFunc(shared, func(s netip.Prefix) bool { return s.Contains(to) })
	})
	changed, err := routes.ConsiderMarks(r.agent.log, links)
	mtu, known := tunnel.MTUFor(paths)
	if !known {
		r.fit.Store(nil)
		return effect{links, changed}, err
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
