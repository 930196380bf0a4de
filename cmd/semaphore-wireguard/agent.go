package main

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
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-semaphore/kube-semaphore/internal/bearer"
	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/endpoint"
	"github.com/kube-semaphore/kube-semaphore/internal/errlog"
	"github.com/kube-semaphore/kube-semaphore/internal/event"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/process"
	"github.com/kube-semaphore/kube-semaphore/internal/reconcile"
	"github.com/kube-semaphore/kube-semaphore/internal/run"
	"github.com/kube-semaphore/kube-semaphore/internal/tokens"
	"github.com/kube-semaphore/kube-semaphore/peers"
	"github.com/kube-semaphore/kube-semaphore/peers/pods"
	"github.com/kube-semaphore/kube-semaphore/routes"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// How often each loop looks at the whole state without an event, and how close
// two of its passes may follow each other.
const (
	slowPass     = 30 * time.Second
	burstSpacing = 20 * time.Millisecond
	saveSpacing  = 5 * time.Second
	// publishSpacing has a burst, such as of a node that is drained, take a handful of
	// writes, and holds nothing up for longer than that.
	publishSpacing = 100 * time.Millisecond
	// linkRetry is how soon a device is looked at again after a failure, when the kernel
	// or the engine tells something: also what the failed pass did itself.
	linkRetry = 100 * time.Millisecond
	// restShare is how many times as long as a pass over its nodes took the next
	// one waits: a remote with many that change all the time takes no more than a
	// fifth of a processor with that.
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
	publisher *peers.Publisher
	prefixes  *pods.Source    // of this node's pods
	events    *event.Recorder // nil: nothing for Events to be about is known
	reporter  *peers.Reporter // of paths; nil: there is no pod for a report to go with
	table     *routes.Table
	filter    *routes.Filter
	ports     tunnel.Ports // of the remotes' devices
	underlay  *routes.Underlay
	filtering *reconcile.Loop // that keeps the filter; nil before tasks
	apiAddrs  []netip.Addr    // of the local API server
	lastSelf  peers.Self      // this node as it was last known, for judge
	verdicts  *errlog.Log     // of judge, by remote
	remotes   []*remote
	loops     []*reconcile.Loop
	guard     func(http.Handler) http.Handler // of metrics and status; nil: none
	servers   run.Servers
	turn      *run.Turn // of the agents of this node; one acts

	// hostAddrs are the addresses of this host, as last seen.
	hostAddrs atomic.Pointer[[]netip.Addr]

	// sources are the source addresses of routes, as last found out.
	sources atomic.Pointer[[]netip.Addr]

	publishing, routing, addressing, sourcing, judging, fitting, surveying, filterTrigger, reporting, forgetting *reconcile.Trigger

	attempts attempts
}

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
		judging:    reconcile.NewTrigger(), filterTrigger: reconcile.NewTrigger(),
		fitting:   reconcile.NewTrigger(),
		underlay:  routes.NewUnderlay(),
		surveying: reconcile.NewTrigger(),
		reporting: reconcile.NewTrigger(), forgetting: reconcile.NewTrigger(),
		verdicts: &errlog.Log{Logger: log, Level: slog.LevelError, Failing: "remote refused: it gets no tunnel", Over: "remote admitted again"},
	}
	a.hostAddrs.Store(&[]netip.Addr{})
	a.sources.Store(&[]netip.Addr{})
	a.metrics, a.filter = newLoopMetrics(), routes.NewFilter(log)
	a.turn = run.NewTurn(run.TurnConfig{
		Path: turnFile(cfg.KeyPath), Self: describe(&cfg), Begin: a.removeUnfinished, End: a.letGo, Grace: turnGrace, Logger: log,
	})
	watchMetrics := kube.NewMetrics("semaphore_wg", "semaphore_wg_node_watcher_failures_total")
	a.registry.MustRegister(
		a.metrics, watchMetrics, run.BuildInfo("semaphore_wg"), a.turn.Collector("semaphore_wg"),
		tokens.NewCollector("semaphore_wg", cfg.TokenFiles()),
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
		a.guard = bearer.New(client, log).Wrap
	}
	server := kube.NewServer(kube.ServerConfig{Cluster: cfg.ClusterName, Logger: log})
	a.self = kube.NewWatch(kube.WatchConfig[peers.Self]{
		Cluster: cfg.ClusterName, Server: server, Kind: "own node", Object: &corev1.Node{},
		ListWatch: kube.ListWatch(
			kube.Of(func() (kube.Client, error) { return client, nil }, kube.Nodes),
			func(options *metav1.ListOptions) {
				options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, cfg.NodeName).String()
			}),
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
	a.local = newLocal(&cfg, client, server, watchMetrics, log, func() {
		a.judging.Fire()
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
	for i := range cfg.Remotes {
		r, err := newRemote(a, cfg.Remotes[i], watchMetrics)
		if err != nil {
			return nil, errors.Join(err, a.close())
		}
		a.remotes = append(a.remotes, r)
	}
	a.publisher = peers.NewPublisher(peers.PublisherConfig{
		Nodes: client.Nodes(), Self: a.knownSelf, Publications: a.publications, Pods: a.pods,
		Spacing: publishSpacing, Logger: log,
	})
	if pod := cfg.Pod; pod.Known() {
		a.events = event.NewRecorder(event.Config{
			Client: client, Component: "semaphore-wireguard", About: event.Pod(pod.Namespace, pod.Name, pod.UID), Spread: event.Spread,
		})
	}
	a.reporter = a.newReporter(client)
	// Before anything is touched.
	if _, err := a.judge(context.Background()); err != nil {
		return nil, errors.Join(err, a.close())
	}
	a.registry.MustRegister(peers.NewCollector(log, cfg.PeerMetrics, a.observed()...), newFilterCollector(a), newForeignCollector(a),
		newNeighbourCollector(os.DirFS(neighbourStats)))
	return a, nil
}

func (a *agent) userAgent() string {
	return fmt.Sprintf("semaphore-wireguard/%s (%s)", process.Version(), a.cfg.ClusterName)
}

// publications is what this node tells each remote that isn't refused, as its devices
// are now.
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

// letGo ends what this process does about devices, and keeps what is known for the next
// one. The network stays as it is.
func (a *agent) letGo() error {
	var errs []error
	for _, r := range a.remotes {
		errs = append(errs, r.controller.StopProbing(), r.controller.Save(context.Background()), r.device.Close())
	}
	return errors.Join(errs...)
}

// close is letGo, for good.
func (a *agent) close() error {
	err := a.letGo()
	if a.table != nil {
		a.table.Close()
	}
	return err
}

// tasks returns everything that runs until the process ends. While another agent of
// this node acts, this one reads what it will need, and changes nothing.
func (a *agent) tasks() []run.Task {
	a.servers = run.NewServers(run.ServersConfig{
		ProbeAddress: a.cfg.ProbeAddress, ProbeSocket: a.cfg.ProbeSocket, ListenAddress: a.cfg.ListenAddress,
		Guard: a.guard, Gatherer: a.registry, Health: a.health, Ready: a.ready, Status: a.status, Logger: a.log,
	})
	// The agent that acts has the ports.
	tasks := []run.Task{a.turn.Then(a.servers.Probes), a.turn.Then(a.servers.Status)}
	if a.servers.Socket != nil {
		tasks = append(tasks, a.servers.Socket)
	}
	tasks = append(tasks, a.turn, a.self, a.prefixes)
	tasks = append(tasks, a.local.tasks(a.loop)...)
	for _, r := range a.remotes {
		tasks = append(tasks, r.nodes)
	}
	tasks = append(tasks, a.loop(reconcile.Config{
		Name: "subnets of remotes", Reconcile: a.rejudge, Trigger: a.judging,
		MinInterval: time.Second, Resync: slowPass,
	}), a.loop(reconcile.Config{
		Name: "host addresses", Reconcile: a.readHostAddrs, Trigger: a.addressing,
		MinInterval: time.Second, Resync: slowPass,
	}))
	a.turn.Add(a.acts()...)
	return tasks
}

// acts returns what runs while this agent acts.
func (a *agent) acts() []run.Task {
	tasks := []run.Task{a.newMonitor(), routes.NewFilterMonitor(a.log, a.filterTrigger.Fire)}
	// The guards come first: from here on nothing leaks.
	tasks = append(tasks, a.loop(reconcile.Config{
		Name: "routes", Reconcile: a.syncRoutes, Trigger: a.routing,
		MinInterval: burstSpacing, Resync: slowPass,
	}))
	a.filtering = a.loop(reconcile.Config{
		Name: "source filter", Reconcile: a.syncFilter, Trigger: a.filterTrigger,
		MinInterval: burstSpacing, Resync: slowPass,
	})
	tasks = append(tasks, a.filtering)
	tasks = append(tasks, a.loop(reconcile.Config{
		Name: "source addresses", Reconcile: a.syncSources, Trigger: a.sourcing,
		MinInterval: burstSpacing, Resync: slowPass,
	}))
	tasks = append(tasks, a.loop(reconcile.Config{
		Name: "foreign routes", Reconcile: a.readForeign, Trigger: a.surveying,
		MinInterval: surveySpacing, Resync: surveyPeriod,
	}))
	tasks = append(tasks, a.loop(reconcile.Config{
		Name: "orphans", Reconcile: a.removeOrphans, Trigger: reconcile.NewTrigger(),
	}))
	tasks = append(tasks, a.loop(reconcile.Config{
		Name: "publish", Reconcile: a.publisher.Reconcile, Trigger: a.publishing,
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
		Name: "attempts to connect", Reconcile: a.forgetAttempts, Trigger: a.forgetting,
		MinInterval: attemptsSpacing, RestShare: attemptsRest, Due: func() time.Time { return a.attempts.due },
	}))
	tasks = append(tasks, routes.NewUnderlayMonitor(a.log, a.underlay, a.fitting.Fire), a.loop(reconcile.Config{
		Name: "MTU", Reconcile: a.fitMTUs, Trigger: a.fitting, MinInterval: underlaySpacing,
	}))
	for _, r := range a.remotes {
		tasks = append(tasks, r.tasks()...)
	}
	return tasks
}

// loop makes a loop that logs, counts and is asked by health.
func (a *agent) loop(cfg reconcile.Config) *reconcile.Loop {
	cfg.Logger = a.log
	cfg.Observe = a.metrics.observer(cfg.Name, cfg.Observe)
	l := reconcile.NewLoop(cfg)
	a.loops = append(a.loops, l)
	return l
}

// knownSelf returns this node's object and whether the local API server has
// told it since start.
func (a *agent) knownSelf() (peers.Self, bool) {
	nodes, synced := a.self.Snapshot()
	if !synced || len(nodes) == 0 {
		return peers.Self{}, false
	}
	return nodes[0], true
}

// readHostAddrs notices when this host's addresses change: a remote node's
// endpoint must not be one of them.
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

// firePeering has the peers of all remotes checked again.
func (a *agent) firePeering() {
	for _, r := range a.remotes {
		r.peering.Fire()
	}
}

// hostAddrs returns the addresses of this host and those of all hosts on its links,
// sorted.
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

// removeUnfinished removes files that an earlier process left half made. That one
// can't be removed doesn't keep a device from working.
func (a *agent) removeUnfinished() {
	keys, keysErr := tunnel.RemoveUnfinished(a.cfg.KeyPath)
	stores, storesErr := peers.RemoveUnfinished(a.cfg.KeyPath)
	if removed := slices.Concat(keys, stores); len(removed) > 0 {
		a.log.Info("removed what an earlier process left unfinished", "files", removed)
	}
	if err := errors.Join(keysErr, storesErr); err != nil {
		a.log.Warn("what an earlier process left unfinished stays", "err", err)
	}
}

// removeOrphans removes the devices and the stored peers of remotes that are no
// longer configured: devices would go on accepting packets from their peers. It also
// removes the link that an earlier process may have left when it looked what the
// kernel knows.
func (a *agent) removeOrphans(ctx context.Context) error {
	configured := func(device string) bool {
		return slices.ContainsFunc(a.remotes, func(r *remote) bool { return r.device.Name() == device })
	}
	forgotten, forgetErr := peers.Forget(a.cfg.KeyPath, configured)
	for _, device := range forgotten {
		a.log.Info("removed the stored peers of a remote that is no longer configured", "device", device)
	}
	_, probeErr := tunnel.RemoveProbe()
	links, err := tunnel.List(ctx)
	errs := []error{forgetErr, probeErr, err}
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

// cleanup removes all that this and earlier runs set up on this node and on its
// object. Private keys stay: they are of no use to anybody else, and a node that
// comes back is known by its key.
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
	_, err = tunnel.RemoveProbe()
	errs = append(errs, err, tunnel.EndEngine(ctx))
	_, err = a.table.Sync(ctx, nil)
	errs = append(errs, err)
	_, err = a.table.Fence(ctx, nil)
	errs = append(errs, err)
	_, err = a.filter.Sync(ctx, nil)
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
	a.log.Info("removed devices, routes, source filter, sockets and annotations", "node", a.cfg.NodeName, "keys_stay_in", a.cfg.KeyPath)
	return nil
}
