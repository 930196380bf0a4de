package peers

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/kube-semaphore/peers/paths"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// scrapeTimeout bounds reading the devices in a scrape.
const scrapeTimeout = 5 * time.Second

// Bounds of the series of one remote, beside the number of peers with series of their own.
const (
	maxRejectedSeries  = 500
	maxAllowedIPSeries = 16 // of one peer
)

// Observed gives a Collector access to one remote's device and peers.
type Observed struct {
	Cluster string // the remote
	Device  string
	Status  func(context.Context) (tunnel.Status, error)
	State   func() *State
	// Heard returns when a peer was last heard, see [Controller.Heard].
	Heard func(now time.Time, p *tunnel.PeerStatus) time.Time
	// Paths returns the paths to the peers; may be nil.
	Paths func() []paths.Path
}

// Collector exposes the devices and peers of all remotes. A missing device doesn't affect
// the others. Metrics of the original tool keep their names, so that its dashboards go on
// working.
type Collector struct {
	remotes    []Observed
	peerSeries int
	log        *slog.Logger

	deviceUp, deviceInfo, peerInfo, peerAllowedIPs, peerReceived, peerTransmitted, peerHandshake,
	peers, peersWithout, rejected, rejectedInfo, source, paths, pathsSmall, peerPath, peerRTT *prometheus.Desc
}

// NewCollector returns a collector for the given remotes. At most peerSeries peers of
// each have series of their own.
func NewCollector(log *slog.Logger, peerSeries int, remotes ...Observed) *Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("semaphore_wg_"+name, help, labels, nil)
	}
	return &Collector{
		remotes:         remotes,
		peerSeries:      peerSeries,
		log:             log,
		deviceUp:        desc("device_up", "1 if the device to a remote cluster exists and responds, else 0.", "cluster", "device"),
		deviceInfo:      desc("device_info", "Metadata about a device.", "device", "public_key", "cluster", "backend"),
		peerInfo:        desc("peer_info", "Metadata about a peer. The public_key label on peer metrics refers to the peer's public key; not the device's public key.", "device", "public_key", "endpoint", "cluster", "node"),
		peerAllowedIPs:  desc("peer_allowed_ips_info", "Metadata about each of a peer's allowed IP subnets for a given device.", "device", "public_key", "allowed_ips"),
		peerReceived:    desc("peer_receive_bytes_total", "Number of bytes received from a given peer.", "device", "public_key"),
		peerTransmitted: desc("peer_transmit_bytes_total", "Number of bytes transmitted to a given peer.", "device", "public_key"),
		peerHandshake:   desc("peer_last_handshake_seconds", "UNIX timestamp for the last handshake with a given peer, 0 if there was none.", "device", "public_key"),
		peers:           desc("peers", "Number of peers of a remote cluster by health: up (packets pass in both directions), connecting (configured less than 90 s ago, no handshake yet), waiting (it publishes no endpoint, and has to send first), silent (a session, but nothing received for 45 s) or down.", "cluster", "device", "health"),
		peersWithout:    desc("peers_without_metrics", "Number of peers of a remote cluster without metrics of their own, because there are more than SEMAPHORE_WG_PEER_METRICS.", "cluster", "device"),
		rejected:        desc("rejected_nodes", "Number of a remote cluster's nodes that were rejected, in whole or in part, by reason.", "cluster", "reason"),
		rejectedInfo:    desc("rejected_node_info", "A remote node that was rejected, in whole or in part. /status has the details.", "cluster", "node", "reason"),
		paths:           desc("paths", "Number of paths to peers of a remote cluster by state (up, unknown or down) and by the sign that it was derived from: answer (to a probe), received (bytes), handshake, no_answer, one_way (packets from the peer arrive, ours don't), no_handshake, silence or none.", "cluster", "device", "state", "sign"),
		pathsSmall:      desc("paths_small_only", "Number of paths to peers of a remote cluster that carry small packets and lose those of the device's full size.", "cluster", "device"),
		peerPath:        desc("peer_path_since_seconds", "UNIX timestamp since when the path to a peer is in this state, with the sign that it was derived from.", "device", "public_key", "state", "sign"),
		peerRTT:         desc("peer_rtt_seconds", "Median round trip time in seconds of the last seven small probes through the tunnel. Absent for a peer that doesn't answer probes.", "device", "public_key"),
		source:          desc("peers_source_info", "Source of the peers of a remote cluster: api, disk (last applied peers, the remote's API server has not been read since start) or none.", "cluster", "source"),
	}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.deviceUp, c.deviceInfo, c.peerInfo, c.peerAllowedIPs, c.peerReceived, c.peerTransmitted,
		c.peerHandshake, c.peers, c.peersWithout, c.rejected, c.rejectedInfo, c.source, c.paths, c.pathsSmall, c.peerPath, c.peerRTT,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	// Concurrently, so that a device that hangs doesn't use up the timeout of the others.
	statuses, errs := make([]tunnel.Status, len(c.remotes)), make([]error, len(c.remotes))
	var reading sync.WaitGroup
	for i, r := range c.remotes {
		reading.Go(func() { statuses[i], errs[i] = r.Status(ctx) })
	}
	reading.Wait()
	for i, r := range c.remotes {
		state := r.State()
		c.collectState(ch, r, state)
		if err := errs[i]; err != nil {
			c.log.Debug("reading device for metrics failed", "cluster", r.Cluster, "device", r.Device, "err", err)
			ch <- prometheus.MustNewConstMetric(c.deviceUp, prometheus.GaugeValue, 0, r.Cluster, r.Device)
			continue
		}
		ch <- prometheus.MustNewConstMetric(c.deviceUp, prometheus.GaugeValue, 1, r.Cluster, r.Device)
		c.collectDevice(ch, r, state, statuses[i])
	}
}

func (c *Collector) collectState(ch chan<- prometheus.Metric, r Observed, state *State) {
	ch <- prometheus.MustNewConstMetric(c.source, prometheus.GaugeValue, 1, r.Cluster, string(state.Origin))
	type series struct {
		node   string
		reason Reason
	}
	seen := map[series]struct{}{}
	counts := map[Reason]int{
		ReasonPublicKey: 0, ReasonDuplicateKey: 0, ReasonEndpoint: 0, ReasonNoEndpoint: 0, ReasonPodCIDR: 0, ReasonDuplicatePrefix: 0,
		ReasonTooManyPeers: 0, ReasonManyPrefixes: 0, ReasonUndecided: 0,
	}
	for _, rejection := range state.Rejected {
		s := series{rejection.Node, rejection.Reason}
		if _, twice := seen[s]; twice {
			continue
		}
		seen[s] = struct{}{}
		counts[s.reason]++
		if len(seen) <= maxRejectedSeries {
			ch <- prometheus.MustNewConstMetric(c.rejectedInfo, prometheus.GaugeValue, 1, r.Cluster, s.node, string(s.reason))
		}
	}
	for reason, n := range counts {
		ch <- prometheus.MustNewConstMetric(c.rejected, prometheus.GaugeValue, float64(n), r.Cluster, string(reason))
	}
}

func (c *Collector) collectDevice(ch chan<- prometheus.Metric, r Observed, state *State, status tunnel.Status) {
	ch <- prometheus.MustNewConstMetric(c.deviceInfo, prometheus.GaugeValue, 1,
		r.Device, status.PublicKey.String(), r.Cluster, status.Backend)
	nodes := make(map[tunnel.Key]string, len(state.Peers))
	for i := range state.Peers {
		nodes[state.Peers[i].PublicKey] = state.Peers[i].Node
	}
	now := time.Now()
	health := map[paths.Health]int{}
	all := c.collectPaths(ch, r)
	for i := range status.Peers {
		p := &status.Peers[i]
		is := paths.HealthAt(now, state.Configured[p.PublicKey], p.LastHandshake, r.Heard(now, p), p.Endpoint.IsValid())
		if path, known := all[p.PublicKey]; known {
			is = path.Health(is)
		}
		health[is]++
	}
	for _, h := range paths.Healths() {
		ch <- prometheus.MustNewConstMetric(c.peers, prometheus.GaugeValue, float64(health[h]), r.Cluster, r.Device, string(h))
	}
	shown := longest(status.Peers, state.Configured, c.peerSeries)
	ch <- prometheus.MustNewConstMetric(c.peersWithout, prometheus.GaugeValue, float64(len(status.Peers)-len(shown)), r.Cluster, r.Device)
	for i := range shown {
		key := shown[i].PublicKey
		c.collectPeer(ch, r, &shown[i], nodes[key])
		if path, known := all[key]; known {
			ch <- prometheus.MustNewConstMetric(c.peerPath, prometheus.GaugeValue, float64(path.Since.Unix()),
				r.Device, key.String(), string(path.State), string(path.Sign))
			if path.RTT > 0 {
				ch <- prometheus.MustNewConstMetric(c.peerRTT, prometheus.GaugeValue, path.RTT.Seconds(), r.Device, key.String())
			}
		}
	}
}

// collectPaths exposes the counts of paths, and returns the paths by key.
func (c *Collector) collectPaths(ch chan<- prometheus.Metric, r Observed) map[tunnel.Key]paths.Path {
	if r.Paths == nil {
		return nil
	}
	type series struct {
		state paths.State
		sign  paths.Sign
	}
	all, counts, small := map[tunnel.Key]paths.Path{}, map[series]int{
		{paths.Up, paths.SignAnswer}: 0, {paths.Down, paths.SignNoAnswer}: 0, {paths.Down, paths.SignNoHandshake}: 0, {paths.Down, paths.SignOneWay}: 0, {paths.Unknown, paths.SignNone}: 0,
	}, 0
	for _, p := range r.Paths() {
		all[p.PublicKey] = p
		counts[series{p.State, p.Sign}]++
		if p.SmallOnly {
			small++
		}
	}
	for s, n := range counts {
		ch <- prometheus.MustNewConstMetric(c.paths, prometheus.GaugeValue, float64(n), r.Cluster, r.Device, string(s.state), string(s.sign))
	}
	ch <- prometheus.MustNewConstMetric(c.pathsSmall, prometheus.GaugeValue, float64(small), r.Cluster, r.Device)
	return all
}

func (c *Collector) collectPeer(ch chan<- prometheus.Metric, r Observed, p *tunnel.PeerStatus, node string) {
	key := p.PublicKey.String()
	endpoint := ""
	if p.Endpoint.IsValid() {
		endpoint = p.Endpoint.String()
	}
	ch <- prometheus.MustNewConstMetric(c.peerInfo, prometheus.GaugeValue, 1, r.Device, key, endpoint, r.Cluster, node)
	for _, ip := range p.AllowedIPs[:min(len(p.AllowedIPs), maxAllowedIPSeries)] {
		ch <- prometheus.MustNewConstMetric(c.peerAllowedIPs, prometheus.GaugeValue, 1, r.Device, key, ip.String())
	}
	ch <- prometheus.MustNewConstMetric(c.peerReceived, prometheus.CounterValue, float64(p.RxBytes), r.Device, key)
	ch <- prometheus.MustNewConstMetric(c.peerTransmitted, prometheus.CounterValue, float64(p.TxBytes), r.Device, key)
	handshake := 0.0
	if !p.LastHandshake.IsZero() {
		handshake = float64(p.LastHandshake.Unix())
	}
	ch <- prometheus.MustNewConstMetric(c.peerHandshake, prometheus.GaugeValue, handshake, r.Device, key)
}

// longest returns the peers that have been configured for longest, at most most of them,
// and of the same age those whose keys sort first. So a new peer never displaces another
// one.
func longest(peers []tunnel.PeerStatus, configured map[tunnel.Key]time.Time, most int) []tunnel.PeerStatus {
	if len(peers) <= most {
		return peers
	}
	sorted := slices.SortedFunc(slices.Values(peers), func(a, b tunnel.PeerStatus) int {
		if c := configured[a.PublicKey].Compare(configured[b.PublicKey]); c != 0 {
			return c
		}
		return a.PublicKey.Compare(b.PublicKey)
	})
	return sorted[:most]
}
