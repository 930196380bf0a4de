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

	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// Source says on whose word the peers of a device are.
type Source string

// Where the peers of a device come from.
const (
	SourceNone Source = "none" // nothing known yet: the device's peers are left as they are
	SourceDisk Source = "disk" // the last applied ones: the remote hasn't answered since start
	SourceAPI  Source = "api"
)

// Device is what a Controller configures: a tunnel.Device.
type Device interface {
	Name() string
	// Index tells whether the device exists now.
	Index() (int, bool)
	Configure(ctx context.Context, want []tunnel.Peer) (tunnel.Changes, error)
	// Published tells what an earlier process had applied.
	Published(endpoints map[tunnel.Key]netip.AddrPort)
	PublicKey() tunnel.Key
	// Contact does with each peer on the device what decide says.
	Contact(ctx context.Context, decide func(tunnel.PeerStatus) tunnel.Contact) (tunnel.Contacts, error)
}

// ControllerConfig is what a Controller needs.
type ControllerConfig struct {
	Cluster string // the remote
	Device  Device
	// Nodes returns the remote's nodes and whether they are all of them, as the
	// remote's API server said since start.
	Nodes func() ([]Node, bool)
	// Rules returns the bounds of trust as they are now.
	Rules func() Rules
	// Fresh, unless nil, is called when Reconcile has configured new peers, for
	// Rehandshake. It must not block.
	Fresh func()
	// Prober returns what asks the device's peers for signs of life; nil: nothing
	// does. It is closed after use.
	Prober func() (Prober, error)
	// PathChanged, unless nil, is called when Probe has found that the state of a path
	// is another one, and Renew when Renew has something to do. They must not block.
	PathChanged, Renew func()

	Store  *Store
	Logger *slog.Logger
}

// Controller keeps the peers of one device equal to what the nodes of one
// remote cluster publish.
type Controller struct {
	cfg ControllerConfig
	log *slog.Logger

	restored   []Node                  // last applied, from disk
	known      map[netip.Addr]struct{} // endpoints of the same
	accepted   Accepted
	remembered bool // since the remote answered
	rejected   map[Rejection]struct{}
	disputed   map[string]string // what was logged of peers, by node
	rejections *rate.Limiter
	suppressed int

	state atomic.Pointer[State]

	handshakes handshakes
	signs      signs
	paths      paths
	probing    probing
	renewing   renewing
	unprobed   atomic.Pointer[string] // why; nil: peers are probed
	index      int                    // of the link whose peers are in state
	saveMu     sync.Mutex
	toSave     *applied // nil: nothing new
}

// State is what a Controller last applied. It is never changed once it is
// handed out.
type State struct {
	Source     Source
	Peers      []Peer
	Rejected   []Rejection
	Configured map[tunnel.Key]time.Time // since when each peer is on the device
	// Disputed says, by node, which node of this cluster has the address of an endpoint by
	// its own word, since that was accepted.
	Disputed map[string]string
}

// applied is what Reconcile applied, for Save. Nothing of it changes any more.
type applied struct {
	accepted Accepted
	nodes    []Node
	peers    []Peer
}

// NewController returns a controller that starts from what the store holds. A
// store that can't be read is logged and counts as empty.
func NewController(cfg ControllerConfig) *Controller {
	c := &Controller{
		cfg:      cfg,
		log:      cfg.Logger.With("cluster", cfg.Cluster, "device", cfg.Device.Name()),
		rejected: map[Rejection]struct{}{},
		// A remote decides how often its nodes change; it must not fill our disk.
		rejections: rate.NewLimiter(rate.Every(time.Second), 50),
	}
	c.handshakes.fresh = map[tunnel.Key]*contact{}
	c.state.Store(&State{Source: SourceNone})
	last, err := cfg.Store.Load()
	if err != nil {
		c.log.Warn("last applied peers are lost: the mesh starts when the remote's API server answers", "err", err)
		return c
	}
	nodes, accepted := recall(last)
	c.restored, c.accepted = nodes, accepted
	published := make(map[tunnel.Key]netip.AddrPort, len(nodes))
	c.known = make(map[netip.Addr]struct{}, len(nodes))
	for _, n := range nodes {
		key, keyErr := tunnel.ParseKey(n.PublicKey)
		endpoint, endpointErr := netip.ParseAddrPort(n.Endpoint)
		if keyErr == nil && endpointErr == nil {
			published[key] = netip.AddrPortFrom(endpoint.Addr().Unmap(), endpoint.Port())
			c.known[endpoint.Addr().Unmap()] = struct{}{}
		}
	}
	cfg.Device.Published(published)
	return c
}

// State returns what was last applied.
func (c *Controller) State() *State { return c.state.Load() }

// Reconcile computes the desired peers and applies the difference. Until the
// remote's nodes are synced the last applied ones from disk stand in; without
// any it leaves the device as it is. While the device isn't there it does
// nothing. It must not be called twice at the same time.
func (c *Controller) Reconcile(ctx context.Context) error {
	index, exists := c.cfg.Device.Index()
	if !exists {
		return nil
	}
	source := SourceAPI
	nodes, synced := c.cfg.Nodes()
	if !synced {
		if len(c.restored) == 0 {
			return nil
		}
		nodes, source = c.restored, SourceDisk
	}
	rules := c.cfg.Rules()
	if rules.LocalUnknown {
		rules.known = c.known
	} else {
		c.known = nil
	}
	if synced && len(c.restored) > 0 {
		// What an earlier process accepted counts before what is new.
		_, _, c.accepted = DesiredAfter(c.accepted, c.restored, rules)
		c.restored = nil
	}
	peers, rejected, accepted := DesiredAfter(c.accepted, nodes, rules)
	if !rules.LocalUnknown {
		// What isn't checked yet must not count as accepted later.
		c.accepted = accepted
	}
	c.logRejected(rejected)
	c.logDisputed(accepted.disputed)

	want := make([]tunnel.Peer, len(peers))
	for i := range peers {
		want[i] = peers[i].Peer
	}
	own := c.cfg.Device.PublicKey()
	addrs := probeAddresses(own, peers, tunnel.LinkLocal)
	allowProbes(want, addrs)
	before := time.Now()
	changes, err := c.cfg.Device.Configure(ctx, want)
	if changes != (tunnel.Changes{}) {
		c.log.Info("peers changed", "added", changes.Added, "updated", changes.Updated, "removed", changes.Removed,
			"total", len(want), "source", source)
	}
	if err != nil {
		return fmt.Errorf("configure peers of %s: %w", c.cfg.Device.Name(), err)
	}
	previous := c.state.Load()
	configured := previous.Configured
	if changes != (tunnel.Changes{}) || index != c.index || len(configured) != len(peers) {
		var fresh []Peer
		configured, fresh = since(before, previous, peers, index == c.index)
		if changes.Added > len(fresh) {
			// The device has lost its peers.
			configured, fresh = since(before, previous, peers, false)
		}
		c.handshakes.add(before, fresh)
		defer c.fresh()
	}
	c.index = index
	c.state.Store(&State{Source: source, Peers: peers, Rejected: rejected, Configured: configured, Disputed: accepted.disputed})
	c.paths.set(time.Now(), own, peers, addrs, configured)
	if source == SourceAPI {
		if !rules.LocalUnknown && (!c.remembered || changes != (tunnel.Changes{})) {
			c.saveMu.Lock()
			c.toSave = &applied{accepted, nodes, peers}
			c.saveMu.Unlock()
			c.remembered = true
		}
	}
	return nil
}

// probeAddresses returns where each peer is probed, invalid where it isn't: the address
// is this device's own, or another peer's. Of two with the same one, which somebody has
// worked hard for, the first has it, in the allowed IPs as in the paths, so that no peer
// answers in another one's name.
func probeAddresses(own tunnel.Key, peers []Peer, derive func(tunnel.Key) netip.Addr) []netip.Addr {
	addrs := make([]netip.Addr, len(peers))
	taken := make(map[netip.Addr]struct{}, len(peers)+1)
	taken[derive(own)] = struct{}{}
	for i := range peers {
		addr := derive(peers[i].PublicKey)
		if _, twice := taken[addr]; !twice {
			taken[addr], addrs[i] = struct{}{}, addr
		}
	}
	return addrs
}

// allowProbes adds to each peer's allowed IPs the address that it answers probes from.
func allowProbes(peers []tunnel.Peer, addrs []netip.Addr) {
	for i, addr := range addrs {
		if addr.IsValid() {
			// Not in place: the list is that of the desired peer, too.
			peers[i].AllowedIPs = append(slices.Clone(peers[i].AllowedIPs), netip.PrefixFrom(addr, addr.BitLen()))
		}
	}
}

// since returns since when each of the peers is configured: as before on the same
// device, or now, and those of the latter. One that had to speak first and is
// called from now on counts as new, too.
func since(now time.Time, before *State, peers []Peer, same bool) (configured map[tunnel.Key]time.Time, fresh []Peer) {
	configured = make(map[tunnel.Key]time.Time, len(peers))
	mute := map[tunnel.Key]bool{}
	for i := range before.Peers {
		if !before.Peers[i].Endpoint.IsValid() {
			mute[before.Peers[i].PublicKey] = true
		}
	}
	for i := range peers {
		key := peers[i].PublicKey
		at, known := before.Configured[key]
		if !known || !same || mute[key] && peers[i].Endpoint.IsValid() {
			at = now
			fresh = append(fresh, peers[i])
		}
		configured[key] = at
	}
	return configured, fresh
}

// fresh says that there may be new peers.
func (c *Controller) fresh() {
	if c.cfg.Fresh != nil {
		c.cfg.Fresh()
	}
}

// Save writes to disk what Reconcile applied since the last call. It may run
// beside Reconcile and is meant to run seldom: what it writes grows with the
// mesh.
func (c *Controller) Save(context.Context) error {
	c.saveMu.Lock()
	last := c.toSave
	c.toSave = nil
	c.saveMu.Unlock()
	if last == nil {
		return nil
	}
	err := c.cfg.Store.Save(last.accepted.remember(last.nodes, last.peers))
	if err != nil {
		c.saveMu.Lock()
		if c.toSave == nil {
			c.toSave = last
		}
		c.saveMu.Unlock()
	}
	return err
}

// logRejected logs what is rejected now and wasn't before, and the reverse.
func (c *Controller) logRejected(rejected []Rejection) {
	now := make(map[Rejection]struct{}, len(rejected))
	for _, r := range rejected {
		now[r] = struct{}{}
		if _, known := c.rejected[r]; known {
			continue
		}
		if !c.rejections.Allow() {
			c.suppressed++
			continue
		}
		c.log.Warn("remote node rejected", "node", r.Node, "reason", r.Reason, "detail", r.Detail, "partial", r.Partial,
			"not_logged_before", c.suppressed)
		c.suppressed = 0
	}
	for r := range c.rejected {
		if _, still := now[r]; !still {
			c.log.Debug("remote node no longer rejected", "node", r.Node, "reason", r.Reason)
		}
	}
	c.rejected = now
}

// logDisputed logs which nodes stay peers though a node of this cluster claims their
// addresses.
func (c *Controller) logDisputed(disputed map[string]string) {
	for _, node := range slices.Sorted(maps.Keys(disputed)) {
		if claim := disputed[node]; c.disputed[node] != claim {
			c.log.Warn("endpoint disputed: the peer stays, since it was accepted before", "node", node, "detail", claim)
		}
	}
	c.disputed = disputed
}
