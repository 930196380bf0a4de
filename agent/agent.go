package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
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
	"github.com/kube-semaphore/kube-semaphore/internal/errlog"
	"github.com/kube-semaphore/kube-semaphore/internal/event"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/process"
	"github.com/kube-semaphore/kube-semaphore/internal/reconcile"
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
	// publishSpacing is the minimum interval between annotation writes; it batches bursts
	// such as a node drain.
	publishSpacing = 100 * time.Millisecond
	// linkRetry is the first back-off of a device's loop. Events of the kernel or the
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
	table     *routes.Table
	filter    *routes.Filter
	ports     tunnel.Ports // of the remotes' devices
	underlay  *routes.Underlay
	filtering *reconcile.Loop // of the packet filter; nil before tasks
	stops     stops           // counts of the exit filter
	removed   removed         // subnets of remotes that are no longer configured
	// translated is set while the packet filter translates by the map of pod subnets,
	// guardsVirtual once policy rules guard the virtual ones. refusedMap is why the map can't be
	// used; nil: not checked yet.
	translated, guardsVirtual atomic.Bool
	refusedMap                atomic.Pointer[error]
	apiAddrs                  []netip.Addr // of the local API server
	lastSelf                  peers.Self   // last known state of this node, for checkSubnets
	refusals                  *errlog.Log  // of checkSubnets, by remote
	remotes                   []*remote
	checks                    *tokens.CredentialChecks // of credentials for remotes
	loops                     []*reconcile.Loop
	guard                     func(http.Handler) http.Handler // of metrics and status; nil: none
	servers                   run.Servers
	lock                      *run.ActiveLock // host lock: one agent of this node is active

	hostAddrs atomic.Pointer[[]netip.Addr] // last read
	sources   atomic.Pointer[[]netip.Addr] // preferred source addresses of routes, last computed

	publishing, routing, addressing, sourcing, checking, fitting, filterTrigger, reporting, unreplied *reconcile.Trigger

	unrepliedState unrepliedState

	routeRepairs, sourceRepairs, forwardingRepairs, pathRepairs repairs    // each owned by its loop
	filterMu                                                    sync.Mutex // held while the packet filter is computed and installed
	filterRepairs                                               repairs    // guarded by filterMu

	forwarding *reconcile.Trigger
	forwards   atomic.Pointer[[]string] // settings by which this host doesn't forward, as last read; nil: not yet
}

// oneNode is a request for a part of what an agent reads of clusters.
const oneNode = "/api/v1/nodes?limit=1"

// newAgent reads or creates the keys and prepares everything else. It changes
// nothing in the kernel and makes no request.
func newAgent(cfg config.Wireguard, log *slog.Logger) (*agent, error) {
	a := &agent{
		cfg: cfg, log: log,
		registry:   prometheus.NewRegistry(),
		publishing: reconcile.NewTrigger(),
		routing:    reconcile.NewTrigger(),
		addressing: reconcile.NewTrigger(),
		sourcing:   reconcile.NewTrigger(),
		checking:   reconcile.NewTrigger(), filterTrigger: reconcile.NewTrigger(),
		fitting:   reconcile.NewTrigger(),
		underlay:  routes.NewUnderlay(cfg.Mark),
		reporting: reconcile.NewTrigger(), unreplied: reconcile.NewTrigger(),
		forwarding: reconcile.NewTrigger(),
		refusals:   &errlog.Log{Logger: log, Level: slog.LevelError, Failing: "remote refused: it gets no tunnel", Over: "remote admitted again"},
	}
	a.hostAddrs.Store(&[]netip.Addr{})
	a.sources.Store(&[]netip.Addr{})
	credentials, files, readLocally := cfg.Remotes, cfg.TokenFiles(), oneNode
	if cfg.RemotesFrom == config.RemotesFromRelay {
		credentials, files, readLocally = nil, nil, fmt.Sprintf("/apis/%s/namespaces/%s/%s?limit=1", v1alpha1.GroupVersion(), cfg.Namespace, v1alpha1.Resource)
	}
	a.metrics, a.filter, a.checks = newLoopMetrics(), routes.NewFilter(log), tokens.NewCredentialChecks(tokens.CredentialCheckConfig{
		Remotes: credentials, UserAgent: a.userAgent(), Cluster: cfg.ClusterName, Local: cfg.Local,
		FromRemotes: []string{oneNode}, FromLocal: []string{readLocally},
	})
	a.lock = run.NewActiveLock(run.ActiveLockConfig{
		Path: turnFile(cfg.KeyPath), Self: describe(&cfg), Begin: a.removeUnfinished, End: a.release, Grace: turnGrace, Logger: log,
	})
	a.routeRepairs, a.filterRepairs, a.sourceRepairs = a.newRepairs("routes"), a.newRepairs("packet filter"), a.newRepairs("source addresses")
	a.forwardingRepairs, a.pathRepairs = a.newRepairs("forwarding"), a.newRepairs("MTU")
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
	if cfg.RemotesFrom == config.RemotesFromRelay {
		a.relayed = newRelayed(&cfg, client, server, watchMetrics, log)
		readSelf = kube.PollNode(client, cfg.NodeName, func() time.Duration { return selfPeriod + a.local.spread() })
	}
	a.self = kube.NewWatch(kube.WatchConfig[peers.Self]{
		Cluster: cfg.ClusterName, Server: server, Kind: "own node", Object: &corev1.Node{},
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
			a.podsChanged()
			a.firePeering()
		},
		Logger: log, Metrics: watchMetrics,
	})
	if a.prefixes, err = newPrefixes(a, local, client, server, watchMetrics); err != nil {
		return nil, err
	}
	a.apiAddrs = apiAddrs(local.Host)
	a.local = newLocal(&cfg, client, server, a.relayed, watchMetrics, log, func() {
		a.checking.Fire()
		a.firePeering()
	})

	names := make([]string, len(cfg.Remotes))
	for i := range cfg.Remotes {
		names[i] = cfg.Remotes[i].Name
	}
	if err := tunnel.CheckNames(names); err != nil {
		return nil, err
	}
	if a.table, err = routes.NewTable(log); err != nil {
		return nil, err
	}
	a.table.SetMark(cfg.Mark)
	for i := range cfg.Remotes {
		r, err := newRemote(a, cfg.Remotes[i], watchMetrics)
		if err != nil {
			return nil, errors.Join(err, a.close())
		}
		a.remotes = append(a.remotes, r)
	}
	a.publisher = peers.NewPublisher(peers.PublisherConfig{
		Nodes: client.Nodes(), Self: a.knownSelf, Publications: a.publications, Pods: a.pods,
		PodSubnets: cfg.PodSubnetsMap, Spacing: publishSpacing, Logger: log,
	})
	if pod := cfg.Pod; pod.Known() {
		a.events = event.NewRecorder(event.Config{
			Client: client, Component: "semaphore-wireguard", About: event.Pod(pod.Namespace, pod.Name, pod.UID), Spread: event.Spread,
		})
	}
	a.reporter = a.newReporter(client)
	// Before the kernel is changed.
	if _, err := a.checkSubnets(context.Background()); err != nil {
		return nil, errors.Join(err, a.close())
	}
	a.registry.MustRegister(peers.NewCollector(log, cfg.PeerMetrics, a.observed()...), newFilterCollector(a), newForwardingCollector(a),
		newNeighbourCollector(os.DirFS(neighbourStats)))
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
	if a.table != nil {
		a.table.Close()
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
	tasks = append(tasks, a.local.tasks(a.loop)...)
	if a.relayed != nil {
		tasks = append(tasks, a.relayed.tasks(a.loop)...)
	}
	for _, r := range a.remotes {
		tasks = append(tasks, r.nodes.tasks()...)
	}
	tasks = append(tasks, a.loop(reconcile.Config{
		Name: "subnets of remotes", Reconcile: a.recheckSubnets, Trigger: a.checking,
		MinInterval: time.Second, Resync: slowPass,
	}), a.loop(reconcile.Config{
		Name: "host addresses", Reconcile: a.readHostAddrs, Trigger: a.addressing,
		MinInterval: time.Second, Resync: slowPass,
	}))
	a.lock.Add(a.activeTasks()...)
	return tasks
}

// activeTasks returns the tasks that run while this agent is active.
func (a *agent) activeTasks() []run.Task {
	tables := func() {
		a.filterTrigger.Fire()
		a.sourcing.Fire() // One of them is for ICMP errors.
	}
	tasks := []run.Task{a.newMonitor(), routes.NewFilterMonitor(a.log, tables)}
	// First, because the exit filter and the guard routes keep packets from leaving in
	// plaintext.
	tasks = append(tasks, a.loop(reconcile.Config{
		Name: "routes", Reconcile: a.syncRoutes, Trigger: a.routing,
		MinInterval: burstSpacing, Resync: slowPass,
	}))
	a.filtering = a.loop(reconcile.Config{
		Name: "packet filter", Reconcile: a.syncFilter, Trigger: a.filterTrigger,
		MinInterval: burstSpacing, Resync: slowPass,
	})
	tasks = append(tasks, a.filtering)
	tasks = append(tasks, a.loop(reconcile.Config{
		Name: "source addresses", Reconcile: a.syncSources, Trigger: a.sourcing,
		MinInterval: burstSpacing, Resync: slowPass,
	}))
	tasks = append(tasks, a.loop(reconcile.Config{
		Name: "orphans", Reconcile: a.removeOrphans, Trigger: reconcile.NewTrigger(),
	}))
	tasks = append(tasks, a.loop(reconcile.Config{
		Name: "publish", Reconcile: a.publish, Trigger: a.publishing,
		MinInterval: burstSpacing, Due: a.publisher.Due,
	}))
	if a.events != nil {
		tasks = append(tasks, a.loop(a.events.Loop(a.conditions)))
	}
	if a.reporter != nil {
		tasks = append(tasks, a.loop(reconcile.Config{
			Name: "report of paths", Reconcile: a.reporter.Reconcile, Trigger: a.reporting,
			MinInterval: burstSpacing, Due: a.reporter.Due,
		}))
	}
	tasks = append(tasks, a.loop(reconcile.Config{
		Name: "attempts to connect", Reconcile: a.deleteUnreplied, Trigger: a.unreplied,
		MinInterval: unrepliedSpacing, RestShare: unrepliedRest, Due: func() time.Time { return a.unrepliedState.due },
	}))
	tasks = append(tasks, routes.NewUnderlayMonitor(a.log, a.underlay, a.fitting.Fire), a.loop(reconcile.Config{
		Name: "MTU", Reconcile: a.fitMTUs, Trigger: a.fitting, MinInterval: underlaySpacing,
	}))
	tasks = append(tasks, routes.NewForwardingMonitor(a.log, a.forwarding.Fire), a.loop(reconcile.Config{
		Name: "forwarding", Reconcile: a.checkForwarding, Trigger: a.forwarding,
		MinInterval: forwardingSpacing, Resync: slowPass,
	}))
	for _, r := range a.remotes {
		tasks = append(tasks, r.tasks()...)
	}
	return tasks
}

// loop returns a loop with logger and metrics that health checks.
func (a *agent) loop(cfg reconcile.Config) *reconcile.Loop {
	cfg.Logger = a.log
	cfg.Observe = a.metrics.observer(cfg.Name, cfg.Observe)
	l := reconcile.NewLoop(cfg)
	a.loops = append(a.loops, l)
	return l
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

// readHostAddrs updates hostAddrs and triggers the peers loops on a change: a remote
// node's endpoint must not be an address of this host.
func (a *agent) readHostAddrs(context.Context) error {
	addrs, err := hostAddrs()
	if err != nil {
		return err
	}
	if slices.Equal(addrs, *a.hostAddrs.Load()) {
		return nil
	}
	a.hostAddrs.Store(&addrs)
	a.firePeering()
	return nil
}

// firePeering triggers the peers loops of all remotes.
func (a *agent) firePeering() {
	for _, r := range a.remotes {
		r.peering.Fire()
	}
}

// hostAddrs returns the addresses of this host and the broadcast addresses of its
// links, sorted.
func hostAddrs() ([]netip.Addr, error) {
	found, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("read this host's addresses: %w", err)
	}
	addrs := make([]netip.Addr, 0, len(found))
	for _, f := range found {
		if p, err := netip.ParsePrefix(f.String()); err == nil {
			addrs = append(append(addrs, p.Addr().Unmap()), onLink(p)...)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return addrs, nil
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

// removeOrphans removes the devices and the stored peers of remotes that are no
// longer configured, since devices would go on accepting packets from their peers.
func (a *agent) removeOrphans(ctx context.Context) error {
	configured := func(device string) bool {
		return slices.ContainsFunc(a.remotes, func(r *remote) bool { return r.device.Name() == device })
	}
	forgotten, forgetErr := peers.Forget(a.cfg.KeyPath, configured)
	for _, device := range forgotten {
		a.log.Info("removed the stored peers of a remote that is no longer configured", "device", device)
	}
	links, err := tunnel.List(ctx)
	errs := []error{forgetErr, err}
	for _, l := range links {
		if configured(l.Name) {
			continue
		}
		if err := tunnel.Remove(ctx, l.Name, l.Alias); err != nil {
			errs = append(errs, err)
			continue
		}
		a.log.Info("removed the device of a remote that is no longer configured", "cluster", l.Remote, "device", l.Name)
	}
	return errors.Join(errs...)
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
	_, err = a.table.Sync(ctx, nil)
	errs = append(errs, err)
	_, err = a.table.Fence(ctx, nil)
	errs = append(errs, err)
	_, err = a.table.RemoveCopies(ctx)
	errs = append(errs, err)
	_, err = a.filter.Sync(ctx, routes.Ruleset{})
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
