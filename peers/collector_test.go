package peers

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// crowd is a remote with many peers, in the order in which they were configured.
type crowd struct {
	state  State
	status tunnel.Status
}

func (c *crowd) add(first, count int, since time.Time, allowedIPs int) {
	if c.state.Configured == nil {
		c.state.Configured = map[tunnel.Key]time.Time{}
	}
	for i := range count {
		p := peer(first + i)
		for j := range allowedIPs {
			p.AllowedIPs = append(p.AllowedIPs, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5, byte(first + i), byte(j)}), 32))
		}
		c.state.Peers = append(c.state.Peers, p)
		c.state.Configured[p.PublicKey] = since
		c.status.Peers = append(c.status.Peers, tunnel.PeerStatus{Peer: p.Peer})
	}
	slices.SortFunc(c.status.Peers, func(a, b tunnel.PeerStatus) int { return a.PublicKey.Compare(b.PublicKey) })
}

// gather returns the nodes whose peers have series, and the number of series of peers. It
// fails when semaphore_wg_peers_without_metrics isn't as expected.
func (c *crowd) gather(t *testing.T, most, without int) (nodes []string, series int) {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(NewCollector(slog.New(slog.DiscardHandler), most, Observed{
		Cluster: "gcp", Device: "wireguard.gcp", Heard: unheardOf, State: func() *State { return &c.state },
		Status: func(context.Context) (tunnel.Status, error) { return c.status, nil },
	}))
	want := fmt.Sprintf(`
# HELP semaphore_wg_peers_without_metrics Number of peers of a remote cluster without metrics of their own, because there are more than SEMAPHORE_WG_PEER_METRICS.
# TYPE semaphore_wg_peers_without_metrics gauge
semaphore_wg_peers_without_metrics{cluster="gcp",device="wireguard.gcp"} %d
# HELP semaphore_wg_peers Number of peers of a remote cluster by health: up (packets pass in both directions), connecting (configured less than 90 s ago, no handshake yet), waiting (it publishes no endpoint, and has to send first), silent (a session, but nothing received for 45 s) or down.
# TYPE semaphore_wg_peers gauge
semaphore_wg_peers{cluster="gcp",device="wireguard.gcp",health="connecting"} 0
semaphore_wg_peers{cluster="gcp",device="wireguard.gcp",health="down"} %d
semaphore_wg_peers{cluster="gcp",device="wireguard.gcp",health="silent"} 0
semaphore_wg_peers{cluster="gcp",device="wireguard.gcp",health="up"} 0
semaphore_wg_peers{cluster="gcp",device="wireguard.gcp",health="waiting"} 0
`, without, len(c.status.Peers))
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "semaphore_wg_peers_without_metrics", "semaphore_wg_peers"); err != nil {
		t.Error(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "semaphore_wg_peer_") {
			continue
		}
		series += len(f.GetMetric())
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if f.GetName() == "semaphore_wg_peer_info" && l.GetName() == "node" {
					nodes = append(nodes, l.GetValue())
				}
			}
		}
	}
	slices.Sort(nodes)
	return nodes, series
}

func TestCollectorBoundsPeers(t *testing.T) {
	t.Run("fewer than the bound: all", func(t *testing.T) {
		var c crowd
		c.add(1, 5, epoch, 0)
		if nodes, series := c.gather(t, 5, 0); len(nodes) != 5 || series != 25 {
			t.Errorf("%d series of %v", series, nodes)
		}
	})
	t.Run("zero: none", func(t *testing.T) {
		var c crowd
		c.add(1, 5, epoch, 0)
		if nodes, series := c.gather(t, 0, 5); len(nodes) != 0 || series != 0 {
			t.Errorf("%d series of %v", series, nodes)
		}
	})
	t.Run("later peers displace no others", func(t *testing.T) {
		var c crowd
		c.add(20, 3, epoch, 0)
		before, _ := c.gather(t, 3, 0)
		c.add(1, 19, epoch.Add(time.Hour), 0) // smaller keys
		for range 3 {
			if after, _ := c.gather(t, 3, 19); !slices.Equal(before, after) {
				t.Errorf("%v became %v", before, after)
			}
		}
	})
	t.Run("a peer with hundreds of prefixes", func(t *testing.T) {
		var c crowd
		c.add(1, 2, epoch, 256)
		if nodes, series := c.gather(t, 10, 0); len(nodes) != 2 || series != 2*(4+maxAllowedIPSeries) {
			t.Errorf("%d series of %v", series, nodes)
		}
	})
}

// unheardOf is Observed.Heard for peers that were never heard.
func unheardOf(time.Time, *tunnel.PeerStatus) time.Time { return time.Time{} }
