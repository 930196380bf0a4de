package agent

import (
	"context"
	"sync"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/process"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/peers"
	"github.com/kube-semaphore/kube-semaphore/peers/paths"
	"github.com/kube-semaphore/kube-semaphore/routes"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// statusTimeout bounds reading the devices for /status.
const statusTimeout = 5 * time.Second

func (a *agent) status() any {
	ctx, cancel := context.WithTimeout(context.Background(), statusTimeout)
	defer cancel()
	rep := statuspage.Agent{
		Version: process.Build(), Cluster: a.cfg.ClusterName, Node: a.cfg.NodeName,
		Published: a.publisher.Published(), Local: a.local.known.Load() != nil, Failing: a.failingServers(),
		Unsourced: a.withoutSource(), Pods: a.podsStatus(), Networkd: networkdRemoves("/"),
		Forwarding:  a.forwardingStatus(),
		Credentials: a.checks.Report(), RemotesFrom: a.cfg.RemotesFrom,
	}
	if a.lock.StandsBy() {
		rep.Standby = &statuspage.Standby{Holder: a.lock.Holder()}
	}
	if err := a.lock.Err(); err != nil {
		rep.Failing[a.lock.String()] = err.Error()
	}
	for _, l := range a.loops {
		if err := l.Err(); err != nil {
			rep.Failing[l.String()] = err.Error()
		} else if !l.Passed() && rep.Standby == nil {
			rep.Pending = append(rep.Pending, l.String())
		}
	}
	// Watches of the local cluster; those of remotes are in their reports.
	if err := a.self.Err(); err != nil {
		rep.Failing[a.self.String()] = err.Error()
	}
	if err := a.prefixes.Err(); err != nil {
		rep.Failing[a.prefixes.String()] = err.Error()
	}
	if err := a.local.nodes.Err(); err != nil {
		rep.Failing[a.local.nodes.String()] = err.Error()
	}
	var packets routes.State
	rep.Filter, rep.Exit, rep.Translation, packets = a.filterStatus(ctx)
	rep.Removed = a.removed.report(time.Now(), packets.Stopped)
	if a.relayed != nil {
		rep.Relay = a.relayed.leases(ctx)
	}
	// Concurrently, so that a device that hangs doesn't use up the timeout of the others.
	rep.Remotes = make([]statuspage.Remote, len(a.remotes))
	var reading sync.WaitGroup
	for i, r := range a.remotes {
		reading.Go(func() { rep.Remotes[i] = r.status(ctx) })
	}
	reading.Wait()
	for i, r := range a.remotes {
		if n, known := packets.Forged[r.device.Name()]; known {
			rep.Remotes[i].Forged = &n
		}
		if n, known := packets.Stopped[r.device.Name()]; known {
			last, recent := a.stops.last(time.Now(), r.device.Name())
			rep.Remotes[i].Stopped, rep.Remotes[i].LastStopped, rep.Remotes[i].Stopping = &n, some(last), recent
		}
	}
	return rep
}

func (r *remote) status(ctx context.Context) statuspage.Remote {
	state := r.controller.State()
	rep := statuspage.Remote{
		Name: r.cfg.Name, Source: string(state.Origin),
		API: r.nodes.status(),
		Device: statuspage.Device{
			Name: r.device.Name(), ListenPort: r.cfg.ListenPort, MTU: int(r.cfg.MTU),
		},
		Peers: []statuspage.Peer{}, Rejected: []statuspage.Rejection{},
	}
	for _, no := range state.Rejected {
		rep.Rejected = append(rep.Rejected, statuspage.Rejection{Node: no.Node, Reason: string(no.Reason), Detail: no.Detail, Partial: no.Partial})
	}
	if key := r.device.PublicKey(); !key.IsZero() {
		rep.Device.PublicKey = key.String()
	}
	for _, p := range r.cfg.PodSubnets {
		rep.PodSubnets = append(rep.PodSubnets, p.String())
	}
	rep.PodSubnetsMap = r.cfg.PodSubnetsMap.String()
	if err := r.refused(); err != nil {
		rep.Refused = err.Error()
	}
	if rep.Refused != "" {
		return rep // It has no device.
	}
	if known := r.fit.Load(); known != nil && known.narrowest.IsValid() {
		rep.Device.LargestMTU, rep.Device.NarrowestEndpoint = known.largest, known.narrowest.String()
	}
	device, err := r.device.Status(ctx)
	if err != nil {
		rep.Device.Error = err.Error()
		return rep
	}
	rep.Device.Index, rep.Device.Backend = device.Index, device.Backend
	rep.Device.ListenPort, rep.Device.MTU = device.ListenPort, device.MTU
	rep.Device.Unprobed = r.controller.Unprobed()
	nodes := make(map[tunnel.Key]string, len(state.Peers))
	for i := range state.Peers {
		nodes[state.Peers[i].PublicKey] = state.Peers[i].Node
	}
	now := time.Now()
	for i := range device.Peers {
		p := &device.Peers[i]
		heard := r.controller.Heard(now, p)
		health := paths.HealthAt(now, state.Configured[p.PublicKey], p.LastHandshake, heard, p.Endpoint.IsValid())
		peer := statuspage.Peer{
			Node: nodes[p.PublicKey], PublicKey: p.PublicKey.String(), Disputed: state.Disputed[nodes[p.PublicKey]],
			LastHandshake: some(p.LastHandshake), LastHeard: some(heard), RxBytes: p.RxBytes, TxBytes: p.TxBytes,
		}
		if path, known := r.controller.Path(p.PublicKey); known {
			health = path.Health(health)
			peer.Path = &statuspage.Path{State: string(path.State), Since: path.Since, Sign: string(path.Sign), Answers: path.Answers, SmallOnly: path.SmallOnly, RTT: path.RTT.Seconds()}
		}
		peer.Health = string(health)
		if p.Endpoint.IsValid() {
			peer.Endpoint = p.Endpoint.String()
		}
		for _, ip := range p.AllowedIPs {
			peer.AllowedIPs = append(peer.AllowedIPs, ip.String())
		}
		rep.Peers = append(rep.Peers, peer)
	}
	return rep
}

// observed returns the remotes for the metrics collector.
func (a *agent) observed() []peers.Observed {
	var all []peers.Observed
	for _, r := range a.remotes {
		all = append(all, peers.Observed{
			Cluster: r.cfg.Name, Device: r.device.Name(), Status: r.device.Status, State: r.controller.State, Heard: r.controller.Heard,
			Paths: r.controller.Paths,
		})
	}
	return all
}

// some returns nil for the zero time, which JSON would encode as the year 1.
func some(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
