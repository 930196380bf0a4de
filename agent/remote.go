package agent

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/endpoint"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/reconcile"
	"github.com/kube-semaphore/kube-semaphore/internal/run"
	"github.com/kube-semaphore/kube-semaphore/peers"
	"github.com/kube-semaphore/kube-semaphore/peers/paths"
	"github.com/kube-semaphore/kube-semaphore/routes"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// remote is the state of one remote cluster. It never waits for another remote.
type remote struct {
	agent      *agent
	cfg        config.Remote
	device     *tunnel.Device
	store      *peers.Store
	nodes      nodeSource
	controller *peers.Controller

	fit    atomic.Pointer[fit] // nil: not known
	fitted atomic.Int64        // last MTU given to the device by fitMTU

	linking, peering, handshaking, renewing *reconcile.Trigger

	refusal atomic.Pointer[error]          // see agent.checkSubnets; nil: not checked yet
	free    atomic.Pointer[[]netip.Prefix] // its subnets without those that collide with this node

	// fenced is set once the policy rules of its subnets were installed since start.
	fenced atomic.Bool
	// passable is set once the tunnel's own packets pass these rules, routed once routes and rules
	// were synced since start, if only in part.
	passable, routed atomic.Bool
	// shared are its pod subnets with nodes inside, and exempt those that the packet filter was
	// last synced with; nil: not since start.
	shared, exempt atomic.Pointer[[]netip.Prefix]

	failed atomic.Bool // see unreachable

	deviceRepairs, peerRepairs repairs // each owned by its loop
}

// unreachable reports whether reading the remote's nodes has failed since start.
func (r *remote) unreachable() bool {
	if r.nodes.Err() != nil {
		r.failed.Store(true)
	}
	return r.failed.Load()
}

func newRemote(a *agent, cfg config.Remote, metrics *kube.Metrics) (*remote, error) {
	r := &remote{agent: a, cfg: cfg, linking: reconcile.NewTrigger(), peering: reconcile.NewTrigger(), handshaking: reconcile.NewTrigger(), renewing: reconcile.NewTrigger()}
	r.deviceRepairs, r.peerRepairs = a.newRepairs("device "+cfg.Name), a.newRepairs("peers "+cfg.Name)
	var err error
	r.device, err = tunnel.Open(tunnel.Config{
		Name:       tunnel.DeviceName(cfg.Name),
		Alias:      tunnel.Alias(cfg.Name),
		KeyPath:    a.cfg.KeyPath,
		Backend:    a.cfg.Backend,
		ListenPort: cfg.ListenPort,
		Mark:       a.cfg.Mark,
		MTU:        int(cfg.MTU),
		Engine:     enginePath(a.cfg.Engine),
		Ports:      &a.ports,
		Logger:     a.log,
	})
	if err != nil {
		return nil, err
	}
	r.device.Notify(r.linking.Fire)

	if a.relayed != nil {
		r.nodes = a.relayed.of(cfg.Name, r.peering.Fire)
	} else {
		r.nodes = newDirect(a, &r.cfg, r.peering.Fire, metrics)
	}
	r.store = peers.NewStore(a.cfg.KeyPath, r.device.Name(), cfg.Name)
	r.controller = peers.NewController(peers.ControllerConfig{
		Cluster: cfg.Name, Device: r.device, Source: r.nodes, Rules: r.rules, Fresh: r.handshaking.Fire,
		Prober: r.prober, PathChanged: a.pathChanged, Renew: r.renewing.Fire, Store: r.store, Logger: a.log,
	})
	shared := []netip.Prefix{}
	if a.cfg.Mark != 0 {
		restored := peers.Around(cfg.PodSubnets, r.controller.State().Restored)
		// As an earlier process has left them: the remote's nodes may not be on disk yet.
		before, err := routes.Exempted(context.Background(), a.cfg.Mark, routes.Origin{Device: r.device.Name(), Subnets: cfg.PodSubnets}, cfg.ListenPort)
		if err != nil && !errors.Is(err, routes.ErrNoFilter) {
			return nil, err
		}
		for _, s := range cfg.PodSubnets {
			if slices.Contains(restored, s) || slices.Contains(before, s) {
				shared = append(shared, s)
			}
		}
	}
	r.shared.Store(&shared)
	return r, nil
}

// enginePath returns the program to start when no engine runs; empty: none.
func enginePath(setting string) string {
	self, err := os.Executable()
	if setting != config.EngineStart || err != nil {
		return ""
	}
	return filepath.Join(filepath.Dir(self), "semaphore-engine")
}

// tasks returns the remote's tasks while this agent is active.
func (r *remote) tasks() []run.Task {
	resync := slowPass
	if r.cfg.ResyncPeriod > 0 {
		resync = min(resync, r.cfg.ResyncPeriod)
	}
	return []run.Task{
		r.agent.loop(reconcile.Config{
			Name: "device " + r.cfg.Name, Reconcile: r.ensureDevice, Trigger: r.linking,
			MinInterval: burstSpacing, BackoffMin: linkRetry, Resync: slowPass,
		}),
		r.agent.loop(reconcile.Config{
			Name: "peers " + r.cfg.Name, Reconcile: r.unlessRefused(r.syncPeers), Trigger: r.peering,
			MinInterval: burstSpacing, RestShare: restShare, Resync: resync, Due: r.controller.ReconcileDue, Observe: r.agent.metrics.peerSync(r.device.Name()),
		}),
		r.agent.loop(reconcile.Config{
			Name: "handshakes " + r.cfg.Name, Reconcile: r.unlessRefused(r.controller.Rehandshake), Trigger: r.handshaking,
			MinInterval: burstSpacing, Due: r.handshakeDue,
		}),
		r.agent.loop(reconcile.Config{
			Name: "signs of life " + r.cfg.Name, Reconcile: r.unlessRefused(r.controller.Listen), Trigger: reconcile.NewTrigger(),
			Resync: paths.ListenSpacing,
		}),
		r.agent.loop(reconcile.Config{
			Name: "paths " + r.cfg.Name, Reconcile: r.unlessRefused(r.controller.Probe), Trigger: reconcile.NewTrigger(),
			Due: r.controller.ProbeDue,
		}),
		r.agent.loop(reconcile.Config{
			Name: "silent peers " + r.cfg.Name, Reconcile: r.unlessRefused(r.controller.Renew), Trigger: r.renewing,
			MinInterval: burstSpacing, Due: r.controller.RenewDue,
		}),
		r.agent.loop(reconcile.Config{
			Name: "save peers " + r.cfg.Name, Reconcile: r.controller.Save, Trigger: reconcile.NewTrigger(),
			Resync: saveSpacing,
		}),
	}
}

// prober returns a prober of the remote's nodes.
func (r *remote) prober() (paths.Prober, error) {
	p, err := r.device.Prober()
	if err != nil {
		return nil, err
	}
	return p, nil
}

// handshakeDue returns when the next handshake pass is due; never for a refused remote,
// all of whose peers are new when it is admitted again.
func (r *remote) handshakeDue() time.Time {
	if r.refused() != nil {
		return time.Time{}
	}
	return r.controller.RehandshakeDue()
}

// ensureDevice creates or repairs the device, and triggers the dependent loops when its
// link or listen port changes. The device of a refused remote is deleted.
func (r *remote) ensureDevice(ctx context.Context) error {
	if r.refused() != nil {
		r.deviceRepairs.want = "" // It is created when the remote is admitted again.
		return r.device.Delete(ctx)
	}
	want := r.fitted.Load()
	index, _ := r.device.Index()
	port, _ := r.device.ListenPort()
	changed, err := r.device.Ensure(ctx)
	if now, _ := r.device.ListenPort(); now != port {
		r.agent.publishing.Fire()
		r.agent.filterTrigger.Fire()
	}
	if now, _ := r.device.Index(); changed || now != index {
		r.peering.Fire()
		r.agent.routing.Fire()
		r.agent.forwarding.Fire()
	}
	return errors.Join(err, r.deviceRepairs.note(time.Now(), want, changed, err))
}

// link returns the index of the link with the device's name; 0: none. seen is false
// until [tunnel.Device.Ensure] has verified, since start or since the link was recreated,
// that it is our device.
func (r *remote) link() (index int, seen bool, err error) {
	if index, err = tunnel.Index(r.device.Name()); err != nil {
		return 0, false, err
	}
	known, _ := r.device.Index()
	return index, index == 0 || index == known, nil
}

// present reports whether the device exists and was verified.
func (r *remote) present() bool {
	index, seen, err := r.link()
	return err == nil && seen && index != 0
}

// rules returns the current bounds within which this remote is trusted.
func (r *remote) rules() peers.Rules {
	local := r.agent.local.known.Load()
	rules := peers.Rules{
		Subnets: r.cfg.PodSubnets, OwnAddrs: *r.agent.hostAddrs.Load(),
		NodeSubnets: r.cfg.NodeSubnets, MaxPeers: r.cfg.MaxPeers, Local: local, LocalUnknown: local == nil,
		Borrowed: r.cfg.Borrowed, MaxPrefixes: r.cfg.MaxPrefixes, MaxAllowedIPs: r.cfg.MaxAllowedIPs,
		Hidden: r.agent.location.Type == endpoint.None,
	}
	if self, known := r.agent.knownSelf(); known {
		rules.OwnAddrs = append(append([]netip.Addr{}, rules.OwnAddrs...), self.InternalIPs...)
		// An invalid annotation leaves the published endpoint in place.
		rules.Hidden = self.Hidden(r.cfg.Name, r.agent.location)
	}
	for _, other := range r.agent.remotes {
		shared := other == r && r.passable.Load() && r.device.Marked()
		if other.refused() == nil && !shared {
			rules.Tunneled = append(rules.Tunneled, other.cfg.PodSubnets...)
		}
		if key := other.device.PublicKey(); !key.IsZero() {
			rules.OwnKeys = append(rules.OwnKeys, key)
		}
	}
	return rules
}
