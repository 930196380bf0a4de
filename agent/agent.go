package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-semaphore/kube-semaphore/internal/authz"
	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/endpoint"
	"github.com/kube-semaphore/kube-semaphore/internal/event"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/process"
	"github.com/kube-semaphore/kube-semaphore/internal/run"
	"github.com/kube-semaphore/kube-semaphore/internal/tokens"
	"github.com/kube-semaphore/kube-semaphore/internal/wireguardpeers/v1alpha1"
	"github.com/kube-semaphore/kube-semaphore/peers"
	"github.com/kube-semaphore/kube-semaphore/peers/pods"
	"github.com/kube-semaphore/kube-semaphore/routes"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// Intervals of the loops: full resync without an event, and minimum spacing of passes.
const (
	slowPass     = 30 * time.Second
	burstSpacing = 20 * time.Millisecond
	saveSpacing  = 5 * time.Second
	// hostBurst passes of the host, as at a start, aren't spaced. What other programs do to the
	// kernel all the time costs two passes a second, and is repaired within one.
	hostSpacing, hostBurst = 500 * time.Millisecond, 8
	// publishSpacing is the minimum interval between annotation writes; it batches bursts
	// such as a node drain.
	publishSpacing = 100 * time.Millisecond
	// linkRetry is the first back-off of a remote's passes. Events of the kernel or the
	// engine, also those caused by the failed pass itself, retry no sooner.
	linkRetry = 100 * time.Millisecond
	// selfPeriod is the minimum interval of reading this node, where it can't be watched.
	selfPeriod = 10 * time.Second
	// restShare is the minimum pause after a pass over a remote's nodes, as a multiple of
	// the pass's duration: a large remote that keeps changing uses at most a fifth of a
	// processor.
	restShare = 4
)

// agent is the process on one node: what all remotes share, and the remotes.
type agent struct {
	cfg       config.Wireguard
	log       *slog.Logger
	registry  *prometheus.Registry
	metrics   *loopMetrics
	location  endpoint.Source // as configured for all nodes
	self      *kube.Watch[peers.Self]
	local     *local
	relayed   *relayed // nil: the clusters' API servers are read
	publisher *peers.Publisher
	prefixes  *pods.Source    // of this node's pods
	events    *event.Recorder // nil: the pod that Events refer to is not configured
	reporter  *peers.Reporter // of paths; nil: no pod to own the report
	ports     tunnel.Ports    // of the remotes' devices

	// What belongs to one task each.
	host      *host
	admission *admission
	unreplied *unreplied

	remotes []*remote
	table   []*task                         // all of them
	checks  *tokens.CredentialChecks        // of credentials for remotes
	guard   func(http.Handler) http.Handler // of metrics and status; nil: none
	servers run.Servers
	lock    *run.ActiveLock // host lock: one agent of this node is active
}

// oneNode is a request for a part of what an agent reads of clusters.
const oneNode = "/api/v1/nodes?limit=1"

// newAgent reads or creates the keys and prepares everything else. It changes
// nothing in the kernel and makes no request.
func newAgent(cfg config.Wireguard, log *slog.Logger) (*agent, error) {
	a := &agent{cfg: cfg, log: log, registry: prometheus.NewRegistry()}
	a.unreplied = &unreplied{agent: a}
	credentials, files, readLocally := cfg.Remotes, cfg.TokenFiles(), oneNode
	if cfg.RemotesFrom == config.RemotesFromRelay {
		credentials, files, readLocally = nil, nil, fmt.Sprintf("/apis/%s/namespaces/%s/%s?limit=1", v1alpha1.GroupVersion(), cfg.Namespace, v1alpha1.Resource)
	}
	a.metrics, a.checks = newLoopMetrics(), tokens.NewCredentialChecks(tokens.CredentialCheckConfig{
		Remotes: credentials, UserAgent: a.userAgent(), Cluster: cfg.ClusterName, Local: cfg.Local,
		FromRemotes: []string{oneNode}, FromLocal: []string{readLocally},
	})
	a.lock = run.NewActiveLock(run.ActiveLockConfig{
		Path: turnFile(cfg.KeyPath), Self: describe(&cfg), Begin: a.begin, End: a.release, Grace: turnGrace, Logger: log,
	})
	watchMetrics := kube.NewMetrics("semaphore_wg", "semaphore_wg_node_watcher_failures_total")
	a.registry.MustRegister(
		a.metrics, watchMetrics, run.BuildInfo("semaphore_wg"), a.lock.Collector("semaphore_wg"),
		tokens.NewCollector("semaphore_wg", files),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)

	var err error
	if a.location, err = endpoint.Parse(cfg.Endpoint); err != nil {
		return nil, fmt.Errorf("SEMAPHORE_WG_ENDPOINT: %w", err)
	}
	local, err := kube.RESTConfig(kube.ClientConfig{Access: cfg.Local, UserAgent: a.userAgent(), Logger: a.log.With("cluster", cfg.ClusterName)})
	if err != nil {
		return nil, fmt.Errorf("access to the local cluster %s: %w", cfg.ClusterName, err)
	}
	client, err := kube.NewClient(local)
	if err != nil {
		return nil, fmt.Errorf("access to the local cluster %s: %w", cfg.ClusterName, err)
	}
	if cfg.ListenAuth == config.ListenAuthToken {
		a.guard = authz.New(client, log).Wrap
	}
	server := kube.NewServer(kube.ServerConfig{Cluster: cfg.ClusterName, Logger: log})
	readSelf := kube.ListWatch(
		kube.Of(func() (kube.Client, error) { return client, nil }, kube.Nodes),
		func(options *metav1.ListOptions) {
			options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, cfg.NodeName).String()
		})
	var polled func() time.Duration
	if cfg.RemotesFrom == config.RemotesFromRelay {
		polled = func() time.Duration { return selfPeriod + a.local.spread() }
		a.relayed = newRelayed(&cfg, client, server, watchMetrics, log, func() { a.happened(relayChanged, nil) })
		readSelf = kube.PollNode(client, cfg.NodeName, polled)
	}
	a.self = kube.NewWatch(kube.WatchConfig[peers.Self]{
		Cluster: cfg.ClusterName, Server: server, Kind: "own node",
		ListWatch: readSelf,
		Keep: func(obj runtime.Object) (peers.Self, bool) {
			n, ok := obj.(*corev1.Node)
			if !ok || n.Name != cfg.NodeName {
				return peers.Self{}, false
			}
			return peers.TrimSelf(n), true
		},
		Equal: peers.Self.Equal,
		Notify: func() {
			a.prefixes.Wake()
			a.happened(thisNodeChanged, nil)
		},
		Logger: log, Metrics: watchMetrics,
	})
	if a.prefixes, err = newPrefixes(a, local, client, server, watchMetrics); err != nil {
		return nil, err
	}
	a.admission = newAdmission(a, local.Host)
	a.local = newLocal(&cfg, client, server, a.relayed, watchMetrics, log, func(c change) { a.happened(c, nil) })

	names := make([]string, len(cfg.Remotes))
	for i := range cfg.Remotes {
		names[i] = cfg.Remotes[i].Name
	}
	if err := tunnel.CheckNames(names); err != nil {
		return nil, err
	}
	if a.host, err = newHost(a); err != nil {
		return nil, err
	}
	for i := range cfg.Remotes {
		r, err := newRemote(a, cfg.Remotes[i], watchMetrics)
		if err != nil {
			return nil, errors.Join(err, a.close())
		}
		a.remotes = append(a.remotes, r)
	}
	a.publisher = peers.NewPublisher(peers.PublisherConfig{
		Polled: polled,
		Nodes:  client.Nodes(), Self: a.knownSelf, Publications: a.publications, Pods: a.pods,
		PodSubnets: cfg.PodSubnetsMap, Spacing: publishSpacing, Logger: log,
	})
	if pod := cfg.Pod; pod.Known() {
		a.events = event.NewRecorder(event.Config{
			Client: client, Component: "semaphore-wireguard", About: event.Pod(pod.Namespace, pod.Name, pod.UID), Spread: event.Spread,
		})
	}
	a.reporter = a.newReporter(client)
	// Before the kernel is changed.
	if _, err := a.admission.check(context.Background()); err != nil {
		return nil, errors.Join(err, a.close())
	}
	a.registry.MustRegister(peers.NewCollector(log, cfg.PeerMetrics, a.observed()...), newFilterCollector(a), newForwardingCollector(a),
		newNeighbourCollector(os.DirFS(neighbourStats)))
	a.makeLoops()
	return a, nil
}

func (a *agent) userAgent() string {
	return fmt.Sprintf("semaphore-wireguard/%s (%s)", process.Version(), a.cfg.ClusterName)
}

// publications returns what this node publishes for each admitted remote.
func (a *agent) publications() []peers.Publication {
	var all []peers.Publication
	for _, r := range a.admitted() {
		port, _ := r.device.ListenPort()
		all = append(all, peers.Publication{
			Remote: r.cfg.Name, PublicKey: r.device.PublicKey(), ListenPort: port, Location: a.location,
		})
	}
	return all
}

// release stops probing, saves the peers for the next process and closes the devices,
// whose links stay up.
func (a *agent) release() error {
	var errs []error
	for _, r := range a.remotes {
		errs = append(errs, r.controller.StopProbing(), r.controller.Save(context.Background()), r.device.Close())
	}
	return errors.Join(errs...)
}

// close releases the devices and the routing table.
func (a *agent) close() error {
	err := a.release()
	if a.host != nil {
		a.host.table.Close()
	}
	return err
}

// tasks returns all tasks of the process. While another agent of this node is active,
// this one stands by: its watches run, and it changes nothing.
func (a *agent) tasks() []run.Task {
	a.servers = run.NewServers(run.ServersConfig{
		ProbeAddress: a.cfg.ProbeAddress, ProbeSocket: a.cfg.ProbeSocket, ListenAddress: a.cfg.ListenAddress,
		Guard: a.guard, Gatherer: a.registry, Health: a.health, Ready: a.ready, Status: a.status, Logger: a.log,
	})
	// Only the active agent listens on the ports.
	tasks := []run.Task{a.lock.WhenActive(a.servers.Probes), a.lock.WhenActive(a.servers.Status)}
	if a.servers.Socket != nil {
		tasks = append(tasks, a.servers.Socket)
	}
	tasks = append(tasks, a.lock, a.self, a.prefixes)
	if a.local.watch != nil {
		tasks = append(tasks, a.local.watch)
	}
	if a.relayed != nil {
		tasks = append(tasks, a.relayed.watch)
	}
	for _, r := range a.remotes {
		tasks = append(tasks, r.nodes.tasks()...)
	}
	a.lock.Add(a.monitors()...)
	a.lock.Add(a.loops(false)...)
	return append(tasks, a.loops(true)...)
}

// knownSelf returns this node's object; false before the first sync with the local
// API server.
func (a *agent) knownSelf() (peers.Self, bool) {
	nodes, synced := a.self.Snapshot()
	if !synced || len(nodes) == 0 {
		return peers.Self{}, false
	}
	return nodes[0], true
}

// begin prepares this process to act: it takes over what the agent that was active has left since this
// one started.
func (a *agent) begin() {
	a.removeUnfinished()
	for _, r := range a.remotes {
		r.controller.Restore()
		if err := r.recallShared(); err != nil {
			a.log.Warn("reading the packet filter failed: it is as at the start", "cluster", r.cfg.Name, "err", err)
		}
	}
}

// removeUnfinished removes temporary files of interrupted writes. Failures are only
// logged: devices work without it.
func (a *agent) removeUnfinished() {
	keys, keysErr := tunnel.RemoveUnfinished(a.cfg.KeyPath)
	stores, storesErr := peers.RemoveUnfinished(a.cfg.KeyPath)
	if removed := slices.Concat(keys, stores); len(removed) > 0 {
		a.log.Info("removed temporary files of an earlier process", "files", removed)
	}
	if err := errors.Join(keysErr, storesErr); err != nil {
		a.log.Warn("removing temporary files of an earlier process failed", "err", err)
	}
}

// cleanup removes everything that this and earlier runs set up on this node and on its
// Node object, except private keys: a node that joins again keeps its identity.
func (a *agent) cleanup(ctx context.Context) error {
	var errs []error
	for _, r := range a.remotes {
		errs = append(errs, r.device.Remove(ctx))
	}
	_, err := peers.Forget(a.cfg.KeyPath, func(string) bool { return false })
	errs = append(errs, err)
	links, err := tunnel.List(ctx)
	errs = append(errs, err)
	for _, l := range links {
		errs = append(errs, tunnel.Remove(ctx, l.Name, l.Alias))
	}
	errs = append(errs, tunnel.EndEngine(ctx))
	_, err = a.host.table.Sync(ctx, nil)
	errs = append(errs, err)
	_, err = a.host.table.Fence(ctx, nil)
	errs = append(errs, err)
	_, err = a.host.table.RemoveCopies(ctx)
	errs = append(errs, err)
	_, err = a.host.filter.Sync(ctx, routes.Ruleset{})
	errs = append(errs, err)
	_, err = routes.SyncICMP(ctx, a.log, nil)
	errs = append(errs, err)
	withdrawing, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	errs = append(errs, a.publisher.Withdraw(withdrawing, a.cfg.NodeName))
	if a.reporter != nil {
		errs = append(errs, a.reporter.Withdraw(withdrawing))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	a.log.Info("removed devices, routes, packet filter, sockets and annotations", "node", a.cfg.NodeName, "keys_stay_in", a.cfg.KeyPath)
	return nil
}
