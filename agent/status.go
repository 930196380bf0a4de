package agent

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
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
		Published: a.publisher.Published(), Local: a.local.known.Load() != nil, Conditions: a.partConditions(),
		Unsourced: a.withoutSource(), Pods: a.podsStatus(), Networkd: networkdRemoves("/"),
		Forwarding:  a.forwardingStatus(),
		Credentials: a.checks.Report(), RemotesFrom: a.cfg.RemotesFrom,
	}
	if a.lock.StandsBy() {
		rep.Standby = &statuspage.Standby{Holder: a.lock.Holder()}
	}
	var packets routes.State
	rep.Filter, rep.Exit, rep.Translation, packets = a.filterStatus(ctx)
	rep.Removed = a.host.removed.report(time.Now(), packets.Stopped)
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
			last, recent := a.host.stops.last(time.Now(), r.device.Name())
			rep.Remotes[i].Stopped, rep.Remotes[i].LastStopped, rep.Remotes[i].Stopping = &n, some(last), recent
		}
	}
	return rep
}

// part is a part of the agent that may fail.
type part interface {
	String() string
	Err() error
}

// partConditions returns the conditions of all parts, in the order of their names. Watches of remotes
// are in the reports of these.
func (a *agent) partConditions() []statuspage.Condition {
	all := []statuspage.Condition{}
	for server, err := range a.failingServers() {
		all = append(all, statuspage.Condition{Type: statuspage.Failing, Reason: statuspage.ReasonNotListening, Object: server, Message: err})
	}
	parts := []part{a.lock, a.self, a.prefixes, a.local.nodes}
	for _, t := range a.table {
		for _, s := range t.steps {
			parts = append(parts, s)
			if s.Err() == nil && !s.passed.Load() && !a.lock.StandsBy() {
				all = append(all, statuspage.Condition{Type: statuspage.Pending, Reason: statuspage.ReasonNotCompleted, Object: s.name})
			}
		}
	}
	for _, p := range parts {
		all = append(all, failing(p)...)
	}
	slices.SortStableFunc(all, func(x, y statuspage.Condition) int { return cmp.Compare(x.Object, y.Object) })
	return all
}

// failing returns the conditions of a part that fails: one for each known reason, or one for an error.
func failing(p part) (all []statuspage.Condition) {
	err := p.Err()
	if err == nil {
		return nil
	}
	c := statuspage.Condition{Type: statuspage.Failing, Object: p.String(), Message: err.Error()}
	if lasting, is := p.(interface{ Since() time.Time }); is {
		c.Since = some(lasting.Since())
	}
	for reason, is := range map[string]bool{
		statuspage.ReasonPortTaken: errors.Is(err, tunnel.ErrPortTaken), statuspage.ReasonRouteInTheWay: errors.Is(err, routes.ErrInTheWay),
		statuspage.ReasonUndone: errors.Is(err, errUndone), statuspage.ReasonRefused: kube.RefusedByAdmission(err.Error()),
	} {
		if c.Reason = reason; is {
			all = append(all, c)
		}
	}
	if c.Reason = statuspage.ReasonError; len(all) == 0 {
		all = append(all, c)
	}
	slices.SortFunc(all, func(x, y statuspage.Condition) int { return cmp.Compare(x.Reason, y.Reason) })
	return all
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
