package main

import (
	"context"
	"net/netip"
	"time"

	"github.com/kube-semaphore/kube-semaphore/routes"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// underlaySpacing is how close two looks at the ways to the peers follow each other.
const underlaySpacing = 2 * time.Second

// fit is what is known of the room for a remote's device.
type fit struct {
	largest   int        // MTU that isn't fragmented, in bytes
	narrowest netip.Addr // the endpoint that allows no more
}

// fitMTUs gives the devices the MTUs that suit the ways to their peers, where the
// configuration doesn't say, and notices where it says too much.
func (a *agent) fitMTUs(context.Context) error {
	of := make([][]netip.Addr, len(a.remotes))
	var all []netip.Addr
	for i, r := range a.remotes {
		of[i] = r.endpoints()
		all = append(all, of[i]...)
	}
	found, err := a.underlay.Paths(all)
	if err != nil {
		return err
	}
	paths := make(map[netip.Addr]tunnel.Path, len(found))
	for _, p := range found {
		paths[p.To] = p
	}
	for i, r := range a.remotes {
		mine := make([]tunnel.Path, 0, len(of[i]))
		for _, to := range of[i] {
			if p, known := paths[to]; known {
				mine = append(mine, p)
			}
		}
		r.fitMTU(mine)
	}
	return nil
}

// endpoints returns where the remote's nodes say that they are. Of peers that say
// nothing it is anywhere, where the default routes lead.
func (r *remote) endpoints() []netip.Addr {
	peers := r.controller.State().Peers
	var addrs []netip.Addr
	for i := range peers {
		if endpoint := peers[i].Endpoint; endpoint.IsValid() {
			addrs = append(addrs, endpoint.Addr())
		}
	}
	if len(addrs) == 0 && len(peers) > 0 {
		return routes.Nowhere()
	}
	return addrs
}

// fitMTU considers the paths to the remote's nodes. While none is known the device's
// MTU stays as it is: a restart must not change it for a moment.
func (r *remote) fitMTU(paths []tunnel.Path) {
	mtu, known := tunnel.MTUFor(paths)
	if !known {
		r.fit.Store(nil)
		return
	}
	if r.cfg.MTU != 0 {
		mtu = r.cfg.MTU
	} else if r.fitted != mtu {
		r.fitted = mtu
		r.device.SetMTU(mtu)
		r.linking.Fire()
	}
	largest, narrowest, _ := tunnel.LargestMTU(paths)
	now := fit{largest: largest, narrowest: narrowest.To}
	if before := r.fit.Load(); mtu > largest && (before == nil || *before != now) {
		r.agent.log.Warn("MTU is larger than what the way to a peer carries: packets are fragmented",
			"cluster", r.cfg.Name, "device", r.device.Name(), "mtu", mtu, "largest", largest, "endpoint", now.narrowest)
	}
	r.fit.Store(&now)
}

// syncPeers brings the peers to what they must be, and has the ways to them looked
// at.
func (r *remote) syncPeers(ctx context.Context) error {
	err := r.controller.Reconcile(ctx)
	r.agent.fitting.Fire()
	return err
}
