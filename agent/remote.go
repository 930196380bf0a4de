package agent

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/endpoint"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
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

	underlay *routes.Underlay

	refusal atomic.Pointer[error]          // see admission; nil: not checked yet
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
}

// unreachable reports whether reading the remote's nodes has failed since start.
func (r *remote) unreachable() bool {
	if r.nodes.Err() != nil {
		r.failed.Store(true)
	}
	return r.failed.Load()
}

func newRemote(a *agent, cfg config.Remote, metrics *kube.Metrics) (*remote, error) {
	r := &remote{agent: a, cfg: cfg, underlay: routes.NewUnderlay(a.cfg.Mark)}
	happened := func(c change) func() { return func() { a.happened(c, r) } }
	r.device = tunnel.Open(tunnel.Config{
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
	r.device.Notify(happened(linkChanged))

	if a.relayed != nil {
		r.nodes = a.relayed.of(cfg.Name, happened(nodesChanged))
	} else {
		r.nodes = newDirect(a, &r.cfg, happened(nodesChanged), metrics)
	}
	r.store = peers.NewStore(a.cfg.KeyPath, r.device.Name(), cfg.Name)
	r.controller = peers.NewController(peers.ControllerConfig{
		Cluster: cfg.Name, Device: r.device, Source: r.nodes, Rules: r.rules, Prober: r.prober,
		PathChanged: happened(pathChanged), Wake: happened(sessionsDue), Store: r.store, Logger: a.log,
	})
	if err := r.recallShared(); err != nil {
		return nil, err
	}
	return r, nil
}

// recallShared finds the pod subnets that contain endpoints of the remote's nodes, as an earlier
// process has left them: by its stored nodes, and by its packet filter, as these may not be on disk.
func (r *remote) recallShared() error {
	mark, shared := r.agent.cfg.Mark, []netip.Prefix{}
	if mark != 0 {
		restored := peers.Around(r.cfg.PodSubnets, r.controller.State().Restored)
		before, err := routes.Exempted(context.Background(), mark, routes.Origin{Device: r.device.Name(), Subnets: r.cfg.PodSubnets}, r.cfg.ListenPort)
		// What can't be read without NET_ADMIN is what Preflight reports.
		if err != nil && !errors.Is(err, routes.ErrNoFilter) && !errors.Is(err, fs.ErrPermission) {
			return err
		}
		for _, s := range r.cfg.PodSubnets {
			if slices.Contains(restored, s) || slices.Contains(before, s) {
				shared = append(shared, s)
			}
		}
	}
	r.shared.Store(&shared)
	return nil
}

// enginePath returns the program to start when no engine runs; empty: none.
func enginePath(setting string) string {
	self, err := os.Executable()
	if setting != config.EngineStart || err != nil {
		return ""
	}
	return filepath.Join(filepath.Dir(self), "semaphore-engine")
}

// prober returns a prober of the remote's nodes.
func (r *remote) prober() (paths.Prober, error) {
	p, err := r.device.Prober()
	if err != nil {
		return nil, err
	}
	return p, nil
}

// ensureDevice creates or repairs the device. The device of a refused remote is deleted.
func (r *remote) ensureDevice(ctx context.Context) (effect, error) {
	if r.refused() != nil {
		return effect{want: "refused"}, r.device.Delete(ctx)
	}
	want := r.fitted.Load()
	index, _ := r.device.Index()
	port, _ := r.device.ListenPort()
	changed, err := r.device.Ensure(ctx)
	nowIndex, _ := r.device.Index()
	if nowPort, _ := r.device.ListenPort(); changed || nowIndex != index || nowPort != port {
		r.agent.happened(deviceChanged, r)
	}
	return effect{want, changed}, err
}

// syncPeers reconciles the peers, once the routes are as they need. That a refused remote has
// none is up to ensureDevice.
func (r *remote) syncPeers(ctx context.Context) (effect, error) {
	if r.refused() != nil || !r.findShared() {
		return effect{}, nil
	}
	before := r.controller.State().Repairs
	err := r.controller.Reconcile(ctx)
	return effect{changed: r.controller.State().Repairs != before}, err
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
		Subnets: r.cfg.PodSubnets, OwnAddrs: *r.agent.host.addrs.Load(),
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
