package peers

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/kube-semaphore/kube-semaphore/peers/paths"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// Origin is where the peers of a device come from.
type Origin string

// Origins of peers.
const (
	OriginNone Origin = "none" // not known yet: the device's peers are retained
	OriginDisk Origin = "disk" // last applied: the remote's nodes are not synced since start
	OriginAPI  Origin = "api"
)

// Device is what a Controller configures: a tunnel.Device.
type Device interface {
	paths.Device
	Name() string
	Configure(ctx context.Context, want []tunnel.Peer) (tunnel.Changes, error)
	// RestoreEndpoints sets the endpoints that an earlier process had applied.
	RestoreEndpoints(endpoints map[tunnel.Key]netip.AddrPort)
	PublicKey() tunnel.Key
}

// ControllerConfig describes a Controller.
type ControllerConfig struct {
	Cluster string // the remote
	Device  Device
	Source  Source
	// Rules returns the current bounds of trust.
	Rules func() Rules
	// Prober, PathChanged and Wake are Prober, Changed and Wake of paths.Config.
	Prober            func() (paths.Prober, error)
	PathChanged, Wake func()

	Store  *Store
	Logger *slog.Logger
}

// Controller keeps the peers of one device equal to what the nodes of one
// remote cluster publish, and monitors the paths to them.
type Controller struct {
	*paths.Monitor
	cfg ControllerConfig
	log *slog.Logger

	restored          []*Node                 // last applied, from disk
	restoredEndpoints map[netip.Addr]struct{} // endpoints of restored
	accepted          Accepted
	queued            bool // nodes of the API were queued for Save since start
	rejected          map[Rejection]struct{}
	disputed          map[string]string // logged, by node
	lines             *rate.Limiter     // of the log
	suppressed        int

	state atomic.Pointer[State]
	again atomic.Pointer[time.Time] // when Reconcile is due without a change

	index  int // of the link whose peers are in state
	saveMu sync.Mutex
	toSave func() []Remembered // what Reconcile applied; nil: nothing new
}

// State is what a Controller last applied. It is immutable.
type State struct {
	Origin     Origin
	Peers      []Peer
	Rejected   []Rejection
	Configured map[tunnel.Key]time.Time // since when each peer is on the device
	// Disputed holds, by node, the claim of a node of this cluster to an endpoint that was
	// accepted before.
	Disputed map[string]string
	// Restored are the endpoints of an earlier process, while Origin is OriginNone.
	Restored []netip.Addr
	// Repairs counts the passes that restored what another program had changed on the device.
	Repairs int
}

// NewController returns a controller that starts from the stored nodes, see [Controller.Restore].
func NewController(cfg ControllerConfig) *Controller {
	log := cfg.Logger.With("cluster", cfg.Cluster, "device", cfg.Device.Name())
	c := &Controller{
		Monitor:  paths.NewMonitor(paths.Config{Device: cfg.Device, Prober: cfg.Prober, Changed: cfg.PathChanged, Wake: cfg.Wake, Logger: log}),
		cfg:      cfg,
		log:      log,
		rejected: map[Rejection]struct{}{},
		// The remote controls how often its nodes change; it must not flood the log.
		lines: rate.NewLimiter(rate.Every(time.Second), 50),
	}
	c.state.Store(&State{Origin: OriginNone})
	c.Restore()
	return c
}

// Restore starts from the stored nodes, once more if another process has stored others. A store that
// can't be read is logged, and nothing changes. It must not be called after Reconcile.
func (c *Controller) Restore() {
	last, err := c.cfg.Store.Load()
	if err != nil {
		c.log.Warn("reading last applied peers failed: the mesh starts when the remote's API server has been read", "err", err)
		return
	}
	nodes, accepted := recall(last)
	c.restored, c.accepted = nodes, accepted
	published := make(map[tunnel.Key]netip.AddrPort, len(nodes))
	c.restoredEndpoints = make(map[netip.Addr]struct{}, len(nodes))
	for _, n := range nodes {
		key, keyErr := tunnel.ParseKey(n.PublicKey)
		endpoint, endpointErr := netip.ParseAddrPort(n.Endpoint)
		if keyErr == nil && endpointErr == nil {
			published[key] = netip.AddrPortFrom(endpoint.Addr().Unmap(), endpoint.Port())
			c.restoredEndpoints[endpoint.Addr().Unmap()] = struct{}{}
		}
	}
	c.cfg.Device.RestoreEndpoints(published)
	c.state.Store(&State{Origin: OriginNone, Restored: slices.Collect(maps.Keys(c.restoredEndpoints))})
}

// ReconcileDue returns when Reconcile is due without a change; zero: never.
func (c *Controller) ReconcileDue() time.Time {
	if again := c.again.Load(); again != nil {
		return *again
	}
	return time.Time{}
}

// State returns the last applied state.
func (c *Controller) State() *State { return c.state.Load() }

// Reconcile computes the desired peers and applies the difference. Until the remote's
// nodes are synced it uses the last applied ones from disk; without those it retains the
// device's peers. While the device doesn't exist it does nothing. It must not be called
// concurrently.
func (c *Controller) Reconcile(ctx context.Context) error {
	index, exists := c.cfg.Device.Index()
	if !exists {
		return nil
	}
	origin := OriginAPI
	nodes, synced := c.cfg.Source.Snapshot()
	if !synced {
		if len(c.restored) == 0 {
			return nil
		}
		nodes, origin = c.restored, OriginDisk
	}
	rules := c.cfg.Rules()
	if rules.LocalUnknown {
		rules.known = c.restoredEndpoints
	} else {
		c.restoredEndpoints = nil
	}
	if synced && len(c.restored) > 0 {
		// Nodes that an earlier process accepted take precedence over new ones.
		_, _, c.accepted = DesiredAfter(c.accepted, c.restored, rules)
		c.restored = nil
	}
	peers, rejected, accepted := DesiredAfter(c.accepted, nodes, rules)
	if !rules.LocalUnknown {
		// Unchecked endpoints must not count as accepted later.
		c.accepted = accepted
	}
	if synced {
		again := c.cfg.Source.Decided(time.Now(), accepted.undecided)
		c.again.Store(&again)
	}
	c.logRejected(rejected)
	c.logDisputed(accepted.disputed)

	want := make([]tunnel.Peer, len(peers))
	for i := range peers {
		want[i] = peers[i].Peer
	}
	own := c.cfg.Device.PublicKey()
	addrs := paths.AllowProbes(own, want)
	before := time.Now()
	changes, err := c.cfg.Device.Configure(ctx, want)
	if changes != (tunnel.Changes{}) {
		level := slog.LevelInfo
		if !c.lines.Allow() {
			level = slog.LevelDebug
		}
		c.log.Log(ctx, level, "peers changed", "added", changes.Added, "updated", changes.Updated, "removed", changes.Removed,
			"total", len(want), "source", origin)
	}
	if err != nil {
		return fmt.Errorf("configure peers of %s: %w", c.cfg.Device.Name(), err)
	}
	previous := c.state.Load()
	configured := previous.Configured
	var fresh map[tunnel.Key]struct{}
	if changes != (tunnel.Changes{}) || index != c.index || len(configured) != len(peers) {
		configured, fresh = configuredSince(before, previous, peers, index == c.index)
		if changes.Added > len(fresh) {
			// The device lost its peers.
			configured, fresh = configuredSince(before, previous, peers, false)
		}
	}
	c.index = index
	state := &State{Origin: origin, Peers: peers, Rejected: rejected, Configured: configured, Disputed: accepted.disputed, Repairs: previous.Repairs}
	if changes.Repaired {
		state.Repairs++
	}
	c.state.Store(state)
	monitored := make([]paths.Peer, len(peers))
	for i := range peers {
		p := &peers[i]
		monitored[i] = paths.Peer{Node: p.Node, PublicKey: p.PublicKey, Addr: addrs[i], Passive: !p.Endpoint.IsValid(), Since: configured[p.PublicKey]}
	}
	c.Set(time.Now(), own, monitored, fresh)
	if origin == OriginAPI {
		if !rules.LocalUnknown && (!c.queued || changes != (tunnel.Changes{})) {
			c.saveMu.Lock()
			c.toSave = func() []Remembered { return accepted.remember(nodes, peers) }
			c.saveMu.Unlock()
			c.queued = true
		}
	}
	return nil
}

// configuredSince returns since when each peer is configured, and the new ones. On another
// device all are new. So is a peer that now has an endpoint and had none before.
func configuredSince(now time.Time, before *State, peers []Peer, same bool) (configured map[tunnel.Key]time.Time, fresh map[tunnel.Key]struct{}) {
	fresh = map[tunnel.Key]struct{}{}
	configured = make(map[tunnel.Key]time.Time, len(peers))
	passive := map[tunnel.Key]bool{}
	for i := range before.Peers {
		if !before.Peers[i].Endpoint.IsValid() {
			passive[before.Peers[i].PublicKey] = true
		}
	}
	for i := range peers {
		key := peers[i].PublicKey
		at, known := before.Configured[key]
		if !known || !same || passive[key] && peers[i].Endpoint.IsValid() {
			at = now
			fresh[key] = struct{}{}
		}
		configured[key] = at
	}
	return configured, fresh
}

// Save writes to disk what Reconcile applied since the last call. It may run
// concurrently with Reconcile. It should run seldom: its cost grows with the mesh.
func (c *Controller) Save(context.Context) error {
	c.saveMu.Lock()
	last := c.toSave
	c.toSave = nil
	c.saveMu.Unlock()
	if last == nil {
		return nil
	}
	err := c.cfg.Store.Save(last())
	if err != nil {
		c.saveMu.Lock()
		if c.toSave == nil {
			c.toSave = last
		}
		c.saveMu.Unlock()
	}
	return err
}

// logRejected logs new rejections, and those that are gone.
func (c *Controller) logRejected(rejected []Rejection) {
	now := make(map[Rejection]struct{}, len(rejected))
	for _, r := range rejected {
		now[r] = struct{}{}
		if _, known := c.rejected[r]; known {
			continue
		}
		if !c.lines.Allow() {
			c.suppressed++
			continue
		}
		c.log.Warn("remote node rejected", "node", r.Node, "reason", r.Reason, "detail", r.Detail, "partial", r.Partial,
			"suppressed", c.suppressed)
		c.suppressed = 0
	}
	for r := range c.rejected {
		if _, still := now[r]; !still {
			c.log.Debug("remote node no longer rejected", "node", r.Node, "reason", r.Reason)
		}
	}
	c.rejected = now
}

// logDisputed logs new disputes: peers that are retained although a node of this cluster
// claims their endpoint's address.
func (c *Controller) logDisputed(disputed map[string]string) {
	for _, node := range slices.Sorted(maps.Keys(disputed)) {
		claim := disputed[node]
		switch {
		case c.disputed[node] == claim:
		case !c.lines.Allow():
			c.suppressed++
		default:
			c.log.Warn("endpoint disputed: peer retained, it was accepted before", "node", node, "detail", claim)
		}
	}
	c.disputed = disputed
}
