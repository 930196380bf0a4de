package peers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/synctest"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// device records what is configured.
type device struct {
	gone      bool
	err       error
	calls     int
	peers     []tunnel.Peer
	published map[tunnel.Key]netip.AddrPort

	reads    int
	resets   []tunnel.Key
	statuses map[tunnel.Key]tunnel.PeerStatus // empty for silent peers
}

func (d *device) Nudge(_ context.Context, decide func(tunnel.PeerStatus) tunnel.Nudge) (tunnel.Nudges, error) {
	d.reads++
	if d.err != nil {
		return tunnel.Nudges{}, d.err
	}
	for _, p := range d.peers {
		status := d.statuses[p.PublicKey]
		status.Peer = p
		if decide(status) == tunnel.NudgeReset {
			d.resets = append(d.resets, p.PublicKey)
		}
	}
	return tunnel.Nudges{Resets: len(d.resets)}, nil
}

func (d *device) PublicKey() tunnel.Key { return tunnel.Key{} } // The smallest: we initiate.

func (d *device) Name() string                                     { return "wireguard.gcp" }
func (d *device) Index() (int, bool)                               { return 7, !d.gone }
func (d *device) RestoreEndpoints(e map[tunnel.Key]netip.AddrPort) { d.published = e }
func (d *device) keys() (keys []tunnel.Key) {
	for _, p := range d.peers {
		keys = append(keys, p.PublicKey)
	}
	return keys
}

func (d *device) Configure(_ context.Context, want []tunnel.Peer) (tunnel.Changes, error) {
	d.calls++
	if d.err != nil {
		return tunnel.Changes{}, d.err
	}
	changes := tunnel.Changes{Added: max(0, len(want)-len(d.peers)), Removed: max(0, len(d.peers)-len(want))}
	d.peers = want
	return changes, nil
}

// remote is the state of the remote's API server.
type remote struct {
	nodes  []*Node
	synced bool
}

// read is a Source.
type read func() ([]*Node, bool)

func (r read) Snapshot() ([]*Node, bool) { return r() }

func (r read) Decided(time.Time, bool) time.Time { return time.Time{} }

func start(t *testing.T, d *device, r *remote, store *Store, logs io.Writer) *Controller {
	t.Helper()
	return NewController(ControllerConfig{
		Cluster: "gcp", Device: d, Store: store,
		Source: read(func() ([]*Node, bool) { return r.nodes, r.synced }),
		Rules:  func() Rules { return rules },
		Logger: slog.New(slog.NewTextHandler(logs, nil)),
	})
}

// probeable adds the addresses for probes to peers.
func probeable(peers ...tunnel.Peer) []tunnel.Peer {
	for i := range peers {
		peers[i].AllowedIPs = append(slices.Clone(peers[i].AllowedIPs), netip.PrefixFrom(tunnel.LinkLocal(peers[i].PublicKey), 128))
	}
	return peers
}

func reconcileOnce(t *testing.T, c *Controller) {
	t.Helper()
	if err := c.Reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestControllerFollowsTheRemote(t *testing.T) {
	d, r := &device{}, &remote{nodes: []*Node{node(1), node(2)}, synced: true}
	var logs strings.Builder
	c := start(t, d, r, NewStore(t.TempDir(), "wireguard.gcp", "gcp"), &logs)
	reconcileOnce(t, c)
	if diff := cmp.Diff([]tunnel.Key{key(1), key(2)}, d.keys()); diff != "" {
		t.Fatalf("after the first pass (-want +got):\n%s", diff)
	}
	since := c.State().Configured[key(2)]
	if since.IsZero() {
		t.Error("it isn't known since when a peer is configured")
	}
	logs.Reset()
	reconcileOnce(t, c)
	if logs.Len() > 0 {
		t.Errorf("a pass that changed nothing logged %q", logs.String())
	}

	r.nodes = []*Node{node(2, func(n *Node) { n.PublicKey = "" }), node(3), node(2)}
	r.nodes[0].Name = "bad"
	reconcileOnce(t, c)
	if diff := cmp.Diff([]tunnel.Key{key(2), key(3)}, d.keys()); diff != "" {
		t.Errorf("after nodes came, went and went bad (-want +got):\n%s", diff)
	}
	if got := c.State().Configured[key(2)]; !got.Equal(since) {
		t.Errorf("a peer that stayed is configured since %s, was %s", got, since)
	}
	if !strings.Contains(logs.String(), "node=bad") {
		t.Errorf("the rejected node isn't logged: %s", logs.String())
	}
	logs.Reset()
	reconcileOnce(t, c)
	if logs.Len() > 0 {
		t.Errorf("an unchanged rejection is logged again: %q", logs.String())
	}

	r.nodes = nil
	reconcileOnce(t, c)
	if len(d.peers) != 0 {
		t.Errorf("the remote has no nodes, the device has %v", d.keys())
	}
}

func TestControllerWaits(t *testing.T) {
	t.Run("for the remote, removing nothing", func(t *testing.T) {
		d, r := &device{peers: []tunnel.Peer{peer(1).Peer}}, &remote{}
		c := start(t, d, r, NewStore(t.TempDir(), "wireguard.gcp", "gcp"), io.Discard)
		reconcileOnce(t, c)
		if d.calls != 0 || c.State().Origin != OriginNone {
			t.Errorf("configured %d times, source %s", d.calls, c.State().Origin)
		}
	})
	t.Run("for the device", func(t *testing.T) {
		d, r := &device{gone: true}, &remote{nodes: []*Node{node(1)}, synced: true}
		c := start(t, d, r, NewStore(t.TempDir(), "wireguard.gcp", "gcp"), io.Discard)
		reconcileOnce(t, c)
		if d.calls != 0 {
			t.Error("a device that isn't there was configured")
		}
	})
}

func TestControllerStartsFromDisk(t *testing.T) {
	dir := t.TempDir()
	d, r := &device{}, &remote{nodes: []*Node{node(1), node(2), node(3, func(n *Node) { n.Endpoint = "127.0.0.1:1" })}, synced: true}
	c := start(t, d, r, NewStore(dir, "wireguard.gcp", "gcp"), io.Discard)
	reconcileOnce(t, c)
	if err := c.Save(t.Context()); err != nil {
		t.Fatal(err)
	}

	d, r = &device{}, &remote{}
	c = start(t, d, r, NewStore(dir, "wireguard.gcp", "gcp"), io.Discard)
	want := map[tunnel.Key]netip.AddrPort{key(1): peer(1).Endpoint, key(2): peer(2).Endpoint}
	if diff := cmp.Diff(want, d.published, comparers); diff != "" {
		t.Errorf("endpoints that the earlier process applied (-want +got):\n%s", diff)
	}
	reconcileOnce(t, c)
	if diff := cmp.Diff([]tunnel.Key{key(1), key(2)}, d.keys()); diff != "" {
		t.Errorf("from disk (-want +got):\n%s", diff)
	}
	if got := c.State().Origin; got != OriginDisk {
		t.Errorf("source %s", got)
	}
	r.nodes, r.synced = []*Node{node(2)}, true
	reconcileOnce(t, c)
	if diff := cmp.Diff([]tunnel.Key{key(2)}, d.keys()); diff != "" {
		t.Errorf("once the remote answers (-want +got):\n%s", diff)
	}

	// One on standby starts from what the active process has stored by its end.
	standby := start(t, &device{}, &remote{}, NewStore(dir, "wireguard.gcp", "gcp"), io.Discard)
	if err := c.Save(t.Context()); err != nil {
		t.Fatal(err)
	}
	standby.Restore()
	if got, want := len(standby.State().Restored), 1; got != want {
		t.Errorf("restored %d endpoints, want %d", got, want)
	}
}

func TestControllerRetriesAfterAnError(t *testing.T) {
	d, r := &device{err: os.ErrPermission}, &remote{nodes: []*Node{node(1)}, synced: true}
	c := start(t, d, r, NewStore(t.TempDir(), "wireguard.gcp", "gcp"), io.Discard)
	if err := c.Reconcile(t.Context()); !errors.Is(err, os.ErrPermission) {
		t.Fatalf("got %v", err)
	}
	if got := c.State(); got.Origin != OriginNone || len(got.Peers) != 0 {
		t.Errorf("state %+v though nothing was applied", got)
	}
	d.err = nil
	reconcileOnce(t, c)
	if got := c.State(); got.Origin != OriginAPI || len(got.Peers) != 1 {
		t.Errorf("state %+v", got)
	}
}

func TestCollector(t *testing.T) {
	good, missing := &State{
		Origin: OriginAPI, Peers: []Peer{peer(1)},
		Rejected: []Rejection{{Node: "bad", Reason: ReasonEndpoint}, {Node: "bad", Reason: ReasonEndpoint}},
	}, &State{Origin: OriginNone}
	c := NewCollector(slog.New(slog.DiscardHandler), 1000,
		Observed{Cluster: "merit", Device: "wireguard.merit", Heard: unheardOf, State: func() *State { return missing },
			Status: func(context.Context) (tunnel.Status, error) { return tunnel.Status{}, os.ErrNotExist }},
		Observed{Cluster: "gcp", Device: "wireguard.gcp", Heard: unheardOf, State: func() *State { return good },
			Status: func(context.Context) (tunnel.Status, error) {
				return tunnel.Status{Backend: "userspace", PublicKey: key(9), Peers: []tunnel.PeerStatus{{Peer: peer(1).Peer, RxBytes: 3, TxBytes: 4}}}, nil
			}},
	)
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	const want = `
# HELP semaphore_wg_device_up 1 if the device to a remote cluster exists and responds, else 0.
# TYPE semaphore_wg_device_up gauge
semaphore_wg_device_up{cluster="gcp",device="wireguard.gcp"} 1
semaphore_wg_device_up{cluster="merit",device="wireguard.merit"} 0
# HELP semaphore_wg_peer_receive_bytes_total Number of bytes received from a given peer.
# TYPE semaphore_wg_peer_receive_bytes_total counter
semaphore_wg_peer_receive_bytes_total{device="wireguard.gcp",public_key="AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="} 3
# HELP semaphore_wg_peers Number of peers of a remote cluster by health: up (packets pass in both directions), connecting (configured less than 90 s ago, no handshake yet), waiting (it publishes no endpoint, and has to send first), silent (a session, but nothing received for 45 s) or down.
# TYPE semaphore_wg_peers gauge
semaphore_wg_peers{cluster="gcp",device="wireguard.gcp",health="connecting"} 0
semaphore_wg_peers{cluster="gcp",device="wireguard.gcp",health="down"} 1
semaphore_wg_peers{cluster="gcp",device="wireguard.gcp",health="silent"} 0
semaphore_wg_peers{cluster="gcp",device="wireguard.gcp",health="up"} 0
semaphore_wg_peers{cluster="gcp",device="wireguard.gcp",health="waiting"} 0
# HELP semaphore_wg_rejected_node_info A remote node that was rejected, in whole or in part. /status has the details.
# TYPE semaphore_wg_rejected_node_info gauge
semaphore_wg_rejected_node_info{cluster="gcp",node="bad",reason="endpoint"} 1
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "semaphore_wg_device_up",
		"semaphore_wg_peer_receive_bytes_total", "semaphore_wg_peers", "semaphore_wg_rejected_node_info"); err != nil {
		t.Error(err)
	}
}

// TestAcceptedEndpointsAreUsedBeforeLocalIsKnown starts while the addresses of the local
// cluster, against which endpoints are checked, are unknown.
func TestAcceptedEndpointsAreUsedBeforeLocalIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		d, r := &device{}, &remote{nodes: []*Node{node(1)}, synced: true}
		c := start(t, d, r, NewStore(dir, "wireguard.gcp", "gcp"), io.Discard)
		reconcileOnce(t, c)
		save := func() {
			t.Helper()
			if err := c.Save(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		save()

		now := rules
		now.LocalUnknown = true
		restart := func() {
			d, r = &device{}, &remote{nodes: []*Node{node(1), node(2)}, synced: true}
			c = NewController(ControllerConfig{
				Cluster: "gcp", Device: d, Store: NewStore(dir, "wireguard.gcp", "gcp"),
				Source: read(func() ([]*Node, bool) { return r.nodes, r.synced }),
				Rules:  func() Rules { return now },
				Logger: slog.New(slog.DiscardHandler),
			})
		}
		silent := peer(2).Peer
		silent.Endpoint, silent.Keepalive = netip.AddrPort{}, 0
		// Unchecked endpoints are not accepted at the next start either.
		for range 2 {
			restart()
			reconcileOnce(t, c)
			if diff := cmp.Diff(probeable(peer(1).Peer, silent), d.peers, comparers); diff != "" {
				t.Errorf("while the local cluster is unknown (-want +got):\n%s", diff)
			}
			runDue(t, c)
			if diff := cmp.Diff([]tunnel.Key{key(1)}, d.resets); diff != "" {
				t.Errorf("handshakes restarted (-want +got):\n%s", diff)
			}
			save()
		}

		// A node of ours claims the address of an accepted endpoint.
		now.LocalUnknown, now.Local = false, NewLocal([]LocalNode{{Name: "own", Addrs: []netip.Addr{peer(1).Endpoint.Addr()}}}, nil, nil)
		reconcileOnce(t, c)
		if diff := cmp.Diff(probeable(peer(1).Peer, peer(2).Peer), d.peers, comparers); diff != "" {
			t.Errorf("once it is known (-want +got):\n%s", diff)
		}
		now.Local = NewLocal(nil, nil, prefixes("10.22.0.1/32"))
		reconcileOnce(t, c)
		if diff := cmp.Diff(probeable(peer(2).Peer), d.peers, comparers); diff != "" {
			t.Errorf("in a subnet of ours (-want +got):\n%s", diff)
		}
		save()
		now.LocalUnknown, now.Local = true, nil
		restart()
		r.synced = false
		reconcileOnce(t, c)
		if diff := cmp.Diff(probeable(peer(2).Peer), d.peers, comparers); diff != "" {
			t.Errorf("from disk (-want +got):\n%s", diff)
		}
	})
}

// BenchmarkReconcile changes the key of one node before each pass.
func BenchmarkReconcile(b *testing.B) {
	for _, n := range []int{100, 1000, 5000} {
		b.Run(fmt.Sprintf("%d nodes", n), func(b *testing.B) {
			all := make(map[string]*Node, n) // in random order, as of a watch
			change := func(i int, key byte) {
				k := tunnel.Key{byte(i), byte(i >> 8), key}
				one := &Node{
					Name: fmt.Sprintf("node-%d", i), Created: epoch.Add(time.Duration(i%7) * time.Second), PublicKey: k.String(),
					Endpoint: fmt.Sprintf("192.168.%d.%d:51820", i>>8, i&0xff), PodCIDRs: []string{fmt.Sprintf("10.%d.%d.0/26", 64+i>>8, i&0xff)},
				}
				one = one.parse(0) // as NodeFor does
				all[one.Name] = one
			}
			for i := range n {
				change(i, 1)
			}
			wide := rules
			wide.Subnets, wide.MaxPeers = []netip.Prefix{netip.MustParsePrefix("10.64.0.0/10")}, n
			c := NewController(ControllerConfig{
				Cluster: "gcp", Device: &changing{}, Store: NewStore(b.TempDir(), "wireguard.gcp", "gcp"), Logger: slog.New(slog.DiscardHandler),
				Source: read(func() ([]*Node, bool) { return slices.Collect(maps.Values(all)), true }),
				Rules:  func() Rules { return wide },
			})
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				change(i%n, byte(2+i/n))
				if err := c.Reconcile(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			if got := len(c.State().Peers); got != n {
				b.Fatalf("%d peers", got)
			}
		})
	}
}

// changing is a device that reports a changed peer in each pass.
type changing struct{ device }

// Configure implements Device.
func (*changing) Configure(context.Context, []tunnel.Peer) (tunnel.Changes, error) {
	return tunnel.Changes{Updated: 1}, nil
}

// undoing is a device that another program changes before each pass.
type undoing struct{ device }

// Configure implements Device.
func (*undoing) Configure(context.Context, []tunnel.Peer) (tunnel.Changes, error) {
	return tunnel.Changes{Updated: 1, Repaired: true}, nil
}

func TestRepairsOfPeersAreCounted(t *testing.T) {
	c := NewController(ControllerConfig{
		Cluster: "gcp", Device: &undoing{}, Store: NewStore(t.TempDir(), "wireguard.gcp", "gcp"), Logger: slog.New(slog.DiscardHandler),
		Source: read(func() ([]*Node, bool) { return nil, true }),
		Rules:  func() Rules { return rules },
	})
	for want := range 3 {
		if got := c.State().Repairs; got != want {
			t.Errorf("after %d passes: %d repairs", want, got)
		}
		reconcileOnce(t, c)
	}
}
