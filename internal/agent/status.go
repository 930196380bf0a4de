package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/process"
	"github.com/kube-semaphore/kube-semaphore/internal/tokens"
	"github.com/kube-semaphore/kube-semaphore/peers"
	"github.com/kube-semaphore/kube-semaphore/routes"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// statusTimeout bounds reading the devices for /status.
const statusTimeout = 5 * time.Second

// maxForeign bounds the foreign routes and rules in the report; the metrics count all.
const maxForeign = 100

// recently is for how long packets that the exit filter has dropped are a fault.
const recently = 5 * time.Minute

// agentReport is what /status serves. It holds nothing secret.
type agentReport struct {
	Version   string            `json:"version"`
	Cluster   string            `json:"cluster"`
	Node      string            `json:"node"`
	Published bool              `json:"published"`  // this node has all our annotations
	Local     bool              `json:"localKnown"` // the addresses of this cluster have been read
	Pods      podsReport        `json:"pods"`
	Failing   map[string]string `json:"failing,omitempty"`
	Pending   []string          `json:"pending,omitempty"` // loops without a completed pass since start
	// Standby names the active agent; nil: this one is active.
	Standby *standbyReport `json:"standby,omitempty"`
	Filter  filterReport   `json:"sourceFilter"`
	// Forwarding is not known while the agent stands by.
	Forwarding forwardingReport `json:"forwarding"`
	Exit       filterReport     `json:"exitFilter"`
	Removed    *removedReport   `json:"removedSubnets,omitempty"` // whose packets are refused for a time
	// Unsourced are podCIDRs of this node in which the host has no address, so that
	// responses of remote pods to the host itself get lost.
	Unsourced string `json:"podCIDRsWithoutHostAddress,omitempty"`
	// Networkd is set when systemd-networkd removes our rules and routes.
	Networkd bool           `json:"networkdRemovesRoutes,omitempty"`
	Remotes  []remoteReport `json:"remotes"`
	// Credentials are the results of requests with the credentials that are on disk.
	Credentials map[string]tokens.Trial `json:"credentials,omitempty"`
}

type remoteReport struct {
	Name       string            `json:"name"`
	PodSubnets []string          `json:"podSubnets"`
	Refused    string            `json:"refused,omitempty"` // why nothing is set up for it
	API        apiReport         `json:"api"`
	Device     deviceReport      `json:"device"`
	Source     peers.Source      `json:"source"` // of the peers: api, disk or none
	Peers      []peerReport      `json:"peers"`
	Rejected   []peers.Rejection `json:"rejected"`
	Foreign    []string          `json:"foreignRoutes,omitempty"` // to its subnets or parts of them
	Forged     *uint64           `json:"forgedPackets,omitempty"` // dropped by the source filter; nil: not known
	// Rules are foreign policy rules that come first and lead its packets past the tunnel.
	Rules []ruleReport `json:"foreignRules,omitempty"`
	// Stopped are packets to its pods that the exit filter dropped because they would have
	// left in plaintext, the last of them at LastStopped; nil: not known, or not since start.
	Stopped     *uint64    `json:"stoppedPackets,omitempty"`
	LastStopped *time.Time `json:"lastStopped,omitempty"`
	Stopping    bool       `json:"stopping,omitempty"` // LastStopped was recently
}

// ruleReport is a foreign policy rule.
type ruleReport struct {
	Rule   string `json:"rule"`             // like in ip-rule(8), and its route
	Marked bool   `json:"marked,omitempty"` // it selects packets by a firewall mark
}

type apiReport struct {
	Synced      bool       `json:"synced"` // at least once since start
	LastContact *time.Time `json:"lastContact,omitempty"`
	Error       string     `json:"error,omitempty"`
}

type deviceReport struct {
	Name       string `json:"name"`
	Index      int    `json:"index,omitempty"`
	Backend    string `json:"backend,omitempty"`
	PublicKey  string `json:"publicKey"`
	ListenPort int    `json:"listenPort"`
	MTU        int    `json:"mtu"`
	// LargestMTU is the largest MTU without fragmentation on the paths to all endpoints,
	// of which that to NarrowestEndpoint is the smallest; 0: not known.
	LargestMTU        int    `json:"largestMtu,omitempty"`
	NarrowestEndpoint string `json:"narrowestEndpoint,omitempty"`
	// Unprobed is why its peers can't be probed, so that a broken path is detected only
	// after minutes.
	Unprobed string `json:"unprobed,omitempty"`
	Error    string `json:"error,omitempty"`
}

type peerReport struct {
	Node          string       `json:"node"` // empty for a peer without a known node
	PublicKey     string       `json:"publicKey"`
	Endpoint      string       `json:"endpoint"` // current, may have roamed; empty: not known
	AllowedIPs    []string     `json:"allowedIPs"`
	Health        peers.Health `json:"health"`
	Path          *pathReport  `json:"path,omitempty"` // nil: a peer without a known node
	LastHandshake *time.Time   `json:"lastHandshake,omitempty"`
	LastHeard     *time.Time   `json:"lastHeard,omitempty"` // nil: not since the agent's start
	RxBytes       int64        `json:"rxBytes"`
	TxBytes       int64        `json:"txBytes"`
	// Disputed is the node of this cluster that claims the address of its endpoint after
	// that was accepted.
	Disputed string `json:"disputed,omitempty"`
}

// pathReport is the state of the path to a peer.
type pathReport struct {
	State     peers.PathState `json:"state"`
	Since     time.Time       `json:"since"`
	Sign      peers.Sign      `json:"sign"`
	Answers   bool            `json:"answers"`             // the peer answers probes
	SmallOnly bool            `json:"smallOnly,omitempty"` // full-size packets get lost
	RTT       float64         `json:"rtt,omitempty"`       // median round trip of the last probes in seconds; 0: not known
}

func (a *agent) status() any {
	ctx, cancel := context.WithTimeout(context.Background(), statusTimeout)
	defer cancel()
	rep := agentReport{
		Version: process.Build(), Cluster: a.cfg.ClusterName, Node: a.cfg.NodeName,
		Published: a.publisher.Published(), Local: a.local.known.Load() != nil, Failing: a.failingServers(),
		Unsourced: a.withoutSource(), Pods: a.podsStatus(), Networkd: networkdRemoves("/"),
		Forwarding:  a.forwardingStatus(),
		Credentials: a.trials.Report(),
	}
	if a.turn.StandsBy() {
		rep.Standby = &standbyReport{Holder: a.turn.Holder()}
	}
	if err := a.turn.Err(); err != nil {
		rep.Failing[a.turn.String()] = err.Error()
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
	rep.Filter, rep.Exit, packets = a.filterStatus(ctx)
	rep.Removed = a.removed.report(time.Now(), packets.Stopped)
	// Concurrently, so that a device that hangs doesn't use up the timeout of the others.
	rep.Remotes = make([]remoteReport, len(a.remotes))
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
			last := a.stops.last(r.device.Name())
			rep.Remotes[i].Stopped, rep.Remotes[i].LastStopped, rep.Remotes[i].Stopping = &n, some(last), time.Since(last) < recently
		}
	}
	return rep
}

func (r *remote) status(ctx context.Context) remoteReport {
	state := r.controller.State()
	rep := remoteReport{
		Name: r.cfg.Name, Source: state.Source,
		API: apiReport{Synced: r.nodes.Synced(), LastContact: some(r.nodes.LastContact())},
		Device: deviceReport{
			Name: r.device.Name(), ListenPort: r.cfg.ListenPort, MTU: int(r.cfg.MTU),
		},
		Peers: []peerReport{}, Rejected: append([]peers.Rejection{}, state.Rejected...),
	}
	if key := r.device.PublicKey(); !key.IsZero() {
		rep.Device.PublicKey = key.String()
	}
	if foreign := r.foreign.Load(); foreign != nil {
		rep.Foreign = (*foreign)[:min(len(*foreign), maxForeign)]
	}
	if rules := r.foreignRules.Load(); rules != nil {
		rep.Rules = (*rules)[:min(len(*rules), maxForeign)]
	}
	for _, p := range r.cfg.PodSubnets {
		rep.PodSubnets = append(rep.PodSubnets, p.String())
	}
	if err := r.refused(); err != nil {
		rep.Refused = err.Error()
	}
	if err := errors.Join(r.nodes.Err(), r.nodes.OverQuota()); err != nil {
		rep.API.Error = err.Error()
	}
	if rep.Refused != "" {
		return rep // It has no device.
	}
	if known := r.fit.Load(); known != nil && known.narrowest.IsValid() {
		rep.Device.LargestMTU, rep.Device.NarrowestEndpoint = known.largest, known.narrowest.String()
	}
	status, err := r.device.Status(ctx)
	if err != nil {
		rep.Device.Error = err.Error()
		return rep
	}
	rep.Device.Index, rep.Device.Backend = status.Index, status.Backend
	rep.Device.ListenPort, rep.Device.MTU = status.ListenPort, status.MTU
	rep.Device.Unprobed = r.controller.Unprobed()
	nodes := make(map[tunnel.Key]string, len(state.Peers))
	for i := range state.Peers {
		nodes[state.Peers[i].PublicKey] = state.Peers[i].Node
	}
	now := time.Now()
	for i := range status.Peers {
		p := &status.Peers[i]
		heard := r.controller.Heard(now, p)
		peer := peerReport{
			Node: nodes[p.PublicKey], PublicKey: p.PublicKey.String(), Disputed: state.Disputed[nodes[p.PublicKey]],
			Health:        peers.HealthAt(now, state.Configured[p.PublicKey], p.LastHandshake, heard, p.Endpoint.IsValid()),
			LastHandshake: some(p.LastHandshake), LastHeard: some(heard), RxBytes: p.RxBytes, TxBytes: p.TxBytes,
		}
		if path, known := r.controller.Path(p.PublicKey); known {
			peer.Health = path.Health(peer.Health)
			peer.Path = &pathReport{State: path.State, Since: path.Since, Sign: path.Sign, Answers: path.Answers, SmallOnly: path.SmallOnly, RTT: path.RTT.Seconds()}
		}
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
