package main

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/endpoint"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/reconcile"
	"github.com/kube-semaphore/kube-semaphore/internal/run"
	"github.com/kube-semaphore/kube-semaphore/peers"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// remote is everything that belongs to one remote cluster. Nothing in it waits
// for another remote.
type remote struct {
	agent      *agent
	cfg        config.Remote
	device     *tunnel.Device
	store      *peers.Store
	nodes      *kube.Watch[peers.Node]
	controller *peers.Controller

	fit    atomic.Pointer[fit] // nil: not known
	fitted int                 // MTU that the device was given, by the loop that does

	linking, peering, contacting, renewing *reconcile.Trigger

	refusal atomic.Pointer[error]          // see agent.judge; nil: not judged yet
	free    atomic.Pointer[[]netip.Prefix] // its subnets that have nothing that this node depends on

	// fenced says that its subnets' rules have been there since start.
	fenced atomic.Bool
	// foreign are the routes of others to its subnets; nil: not looked yet.
	foreign atomic.Pointer[[]string]

	failed atomic.Bool // see unreachable
}

// unreachable reports whether the remote's API server was seen to fail since start.
func (r *remote) unreachable() bool {
	if r.nodes.Err() != nil {
		r.failed.Store(true)
	}
	return r.failed.Load()
}

func newRemote(a *agent, cfg config.Remote, metrics *kube.Metrics) (*remote, error) {
	r := &remote{agent: a, cfg: cfg, linking: reconcile.NewTrigger(), peering: reconcile.NewTrigger(), contacting: reconcile.NewTrigger(), renewing: reconcile.NewTrigger()}
	var err error
	r.device, err = tunnel.Open(tunnel.Config{
		Name:       tunnel.DeviceName(cfg.Name),
		Alias:      tunnel.Alias(cfg.Name),
		KeyPath:    a.cfg.KeyPath,
		Backend:    a.cfg.Backend,
		ListenPort: cfg.ListenPort,
		MTU:        cfg.MTU,
		Engine:     enginePath(a.cfg.Engine),
		Ports:      &a.ports,
		Logger:     a.log,
	})
	if err != nil {
		return nil, err
	}
	r.device.Notify(r.linking.Fire)

	bounds := kube.Bounds{Answer: cfg.MaxAnswer, Objects: cfg.MaxObjects}
	client := kube.LazyClient(kube.ClientConfig{
		Access: cfg.Access, UserAgent: a.userAgent(), Bounds: bounds, Logger: a.log.With("cluster", cfg.Name),
	})
	keep := peers.NodeFor(a.cfg.ClusterName, cfg.MaxPrefixes)
	r.nodes = kube.NewWatch(kube.WatchConfig[peers.Node]{
		Cluster: cfg.Name, Kind: "nodes", Object: &corev1.Node{},
		ListWatch: kube.ListWatch(kube.Of(client, kube.Nodes), nil),
		Keep: func(obj runtime.Object) (peers.Node, bool) {
			n, ok := obj.(*corev1.Node)
			if !ok {
				return peers.Node{}, false
			}
			return keep(n)
		},
		Equal:   peers.Node.Equal,
		Notify:  r.peering.Fire,
		Bounds:  bounds,
		Logger:  a.log,
		Metrics: metrics,
	})
	r.store = peers.NewStore(a.cfg.KeyPath, r.device.Name(), cfg.Name)
	r.controller = peers.NewController(peers.ControllerConfig{
		Cluster: cfg.Name, Device: r.device, Nodes: r.nodes.Snapshot, Rules: r.rules, Fresh: r.contacting.Fire,
		Prober: r.prober, PathChanged: a.pathChanged, Renew: r.renewing.Fire, Store: r.store, Logger: a.log,
	})
	return r, nil
}

// enginePath is the program that is started where no engine answers, empty when
// none is.
func enginePath(setting string) string {
	self, err := os.Executable()
	if setting != config.EngineStart || err != nil {
		return ""
	}
	return filepath.Join(filepath.Dir(self), "semaphore-engine")
}

// tasks returns what runs for the remote while this agent acts.
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
			MinInterval: burstSpacing, RestShare: restShare, Resync: resync, Observe: r.agent.metrics.peerSync(r.device.Name()),
		}),
		r.agent.loop(reconcile.Config{
			Name: "handshakes " + r.cfg.Name, Reconcile: r.unlessRefused(r.controller.Rehandshake), Trigger: r.contacting,
			MinInterval: burstSpacing, Due: r.handshakeDue,
		}),
		r.agent.loop(reconcile.Config{
			Name: "signs of life " + r.cfg.Name, Reconcile: r.unlessRefused(r.controller.Listen), Trigger: reconcile.NewTrigger(),
			Resync: peers.ListenSpacing,
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

// prober returns what asks the remote's nodes for signs of life.
func (r *remote) prober() (peers.Prober, error) {
	p, err := r.device.Prober()
	if err != nil {
		return nil, err
	}
	return p, nil
}

// handshakeDue says when new peers are to be looked at next. Those of a remote that is
// refused aren't; when it is admitted again, all of its peers are new.
func (r *remote) handshakeDue() time.Time {
	if r.refused() != nil {
		return time.Time{}
	}
	return r.controller.RehandshakeDue()
}

// ensureDevice keeps the device there, and lets those who build on it know when
// it is another one, or is known for the first time. That of a remote that is
// refused goes.
func (r *remote) ensureDevice(ctx context.Context) error {
	if r.refused() != nil {
		return r.device.Delete(ctx)
	}
	index, _ := r.device.Index()
	port, _ := r.device.ListenPort()
	changed, err := r.device.Ensure(ctx)
	if now, _ := r.device.ListenPort(); now != port {
		r.agent.publishing.Fire()
	}
	if now, _ := r.device.Index(); changed || now != index {
		r.peering.Fire()
		r.agent.routing.Fire()
	}
	return err
}

// link returns the index of the link that has the device's name now, 0 when there
// is none. seen is false while nobody has found that link to be the device: since
// start, or since it was made anew. With an error nothing is known.
func (r *remote) link() (index int, seen bool, err error) {
	if index, err = tunnel.Index(r.device.Name()); err != nil {
		return 0, false, err
	}
	known, _ := r.device.Index()
	return index, index == 0 || index == known, nil
}

// present reports whether the device is there.
func (r *remote) present() bool {
	index, seen, err := r.link()
	return err == nil && seen && index != 0
}

// rules returns the bounds within which this remote is trusted, as they are now.
func (r *remote) rules() peers.Rules {
	local := r.agent.local.known.Load()
	rules := peers.Rules{
		Subnets: r.cfg.PodSubnets, OwnAddrs: *r.agent.hostAddrs.Load(),
		NodeSubnets: r.cfg.NodeSubnets, MaxPeers: r.cfg.MaxPeers, Local: local, LocalUnknown: local == nil,
		Borrowed: r.cfg.Borrowed, MaxPrefixes: r.cfg.MaxPrefixes, MaxAllowedIPs: r.cfg.MaxAllowedIPs, Now: time.Now(),
		Hidden: r.agent.location.Type == endpoint.None,
	}
	if self, known := r.agent.knownSelf(); known {
		rules.OwnAddrs = append(append([]netip.Addr{}, rules.OwnAddrs...), self.InternalIPs...)
		// What the publisher rejects leaves published what was.
		rules.Hidden = self.Hidden(r.cfg.Name, r.agent.location)
	}
	for _, other := range r.agent.remotes {
		if other.refused() == nil {
			rules.Tunneled = append(rules.Tunneled, other.cfg.PodSubnets...)
		}
		if key := other.device.PublicKey(); !key.IsZero() {
			rules.OwnKeys = append(rules.OwnKeys, key)
		}
	}
	return rules
}
