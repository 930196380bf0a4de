package mirror

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"

	"github.com/kube-semaphore/kube-semaphore/internal/event"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/reconcile"
	"github.com/kube-semaphore/kube-semaphore/internal/run"
)

// Config describes a Controller. A nil selector switches its part off; a nil
// LocalFirstSelector has no global service prefer local endpoints.
type Config struct {
	// Cluster is the name of the local cluster.
	Cluster string
	// Namespace is where mirrors and global services live.
	Namespace string
	// Client reaches the local cluster.
	Client kubernetes.Interface
	// Remotes are the other clusters, in the order of configuration.
	Remotes []Remote
	// MirrorSelector finds services to mirror, GlobalSelector those to merge.
	MirrorSelector, GlobalSelector labels.Selector
	// LocalFirstSelector finds global services that prefer local endpoints.
	LocalFirstSelector labels.Selector
	// LegacyEndpoints also writes objects of the deprecated Endpoints API.
	LegacyEndpoints bool
	// Workers is how many services may be written at a time. 0: DefaultWorkers.
	Workers int
	// WatchMetrics, which may be nil, tell how the watches are.
	WatchMetrics *kube.Metrics
	Logger       *slog.Logger
}

// Remote is one remote cluster.
type Remote struct {
	Name string
	// Prefix starts the names of its mirrors.
	Prefix string
	// PodSubnets are where its endpoints may be; none: anywhere.
	PodSubnets []netip.Prefix
	// ResyncPeriod is how often to look at everything without an event; 0:
	// never.
	ResyncPeriod time.Duration
	// StaleAfter is after how long without contact its endpoints leave global
	// services that have others; 0: never. See kube.ServerConfig.
	StaleAfter time.Duration
	// Bounds are those of what it can make us hold; the client has the same.
	Bounds kube.Bounds
	// Client returns its client, or why there is none yet.
	Client func() (kubernetes.Interface, error)
}

// DefaultWorkers is how many services are written at a time by default.
const DefaultWorkers = 24

const (
	// passSpacing is the least time between two looks at what changed.
	passSpacing = 10 * time.Millisecond
	// slowPass is how often to look for what changed without an event, and
	// fullPass how often to look at each service although nothing did.
	slowPass = 30 * time.Second
	fullPass = 5 * time.Minute
	// Retries of a service that can't be written, by itself.
	shortestRetry, longestRetry = 100 * time.Millisecond, time.Minute
)

// Controller keeps mirrors and global services. Its watches and its plan are
// there in every replica; only Lead writes.
type Controller struct {
	cfg     Config
	log     *slog.Logger
	metrics *Metrics
	sums    summer
	write   *writer
	events  *event.Recorder
	trigger *reconcile.Trigger
	loop    *reconcile.Loop
	servers map[string]*kube.Server // of remotes, by name
	sources []*source
	local   *local
	started time.Time

	mu    sync.Mutex
	own   *holdings
	plan  *plan
	ready bool      // the local watches have synced and the plan knows it
	full  time.Time // when everything was last looked at
	queue workqueue.TypedRateLimitingInterface[string]
	state *state
}

// New returns a controller. It makes no request.
func New(cfg Config) *Controller {
	if cfg.Workers <= 0 {
		cfg.Workers = DefaultWorkers
	}
	c := &Controller{
		cfg: cfg, log: cfg.Logger, sums: newSummer(), own: newHoldings(),
		trigger: reconcile.NewTrigger(), metrics: newMetrics(), state: newState(),
		events: event.NewRecorder(event.Config{Client: cfg.Client, Component: managedBy}), started: time.Now(),
		servers: map[string]*kube.Server{},
	}
	c.metrics.controller = c
	c.write = &writer{client: cfg.Client, namespace: cfg.Namespace, sums: c.sums, log: c.log, count: c.metrics.wrote}
	c.local = c.newLocal()

	clusters := []clusterConfig{{name: cfg.Cluster, local: true}}
	for i := range cfg.Remotes {
		r := &cfg.Remotes[i]
		clusters = append(clusters, clusterConfig{name: r.Name, prefix: r.Prefix, subnets: r.PodSubnets})
		c.servers[r.Name] = kube.NewServer(kube.ServerConfig{
			Cluster: r.Name, StaleAfter: r.StaleAfter, Ask: kube.SignOfLife(r.Client), Logger: c.log,
		})
	}
	c.plan = newPlan(clusters, c.kinds, c.own)
	local := func() (kubernetes.Interface, error) { return cfg.Client, nil }
	for _, id := range c.plan.order {
		if r := c.remote(id.cluster); r != nil {
			c.sources = append(c.sources, c.newSource(id, r.Client, r))
		} else {
			c.sources = append(c.sources, c.newSource(id, local, nil))
		}
	}
	c.loop = reconcile.NewLoop(reconcile.Config{
		Name: "services", Reconcile: c.Reconcile, Trigger: c.trigger,
		MinInterval: passSpacing, Resync: c.resync(), Logger: c.log,
	})
	return c
}

// kinds returns what is watched in a cluster.
func (c *Controller) kinds(cl clusterConfig) []setKind {
	var kinds []setKind
	if c.cfg.MirrorSelector != nil && !cl.local {
		kinds = append(kinds, mirrorSet)
	}
	if c.cfg.GlobalSelector != nil {
		kinds = append(kinds, globalSet)
	}
	return kinds
}

func (c *Controller) remote(name string) *Remote {
	for i := range c.cfg.Remotes {
		if c.cfg.Remotes[i].Name == name {
			return &c.cfg.Remotes[i]
		}
	}
	return nil
}

// resync is how often to look whether a remote is stale.
func (c *Controller) resync() time.Duration {
	period := slowPass
	for name := range c.servers {
		if after := c.staleAfter(name); after > 0 {
			period = min(period, max(after/20, 500*time.Millisecond))
		}
	}
	return period
}

// String names the controller as the work of a leader.
func (c *Controller) String() string { return "service mirror" }

// Tasks returns what runs in every replica until the process ends.
func (c *Controller) Tasks() []run.Task {
	tasks := append(c.local.tasks(), c.loop)
	for _, s := range c.sources {
		tasks = append(tasks, s.services, s.slices)
	}
	for i := range c.cfg.Remotes {
		tasks = append(tasks, c.servers[c.cfg.Remotes[i].Name])
	}
	return tasks
}

// Reconcile finds out which services may differ from what they must be, and
// has the workers look at them. It makes no request and never fails.
func (c *Controller) Reconcile(context.Context) error {
	now := time.Now()
	here := c.local.view()
	zones, zonesKnown := c.local.zones()
	views := make(map[setID]setView, len(c.sources))
	for _, s := range c.sources {
		v := s.view(c.staleAfter(s.id.cluster), c.started, now)
		if c.remote(s.id.cluster) == nil {
			// Without the zones its endpoints would lose their hints.
			v.known = v.known && zonesKnown
		}
		views[s.id] = v
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	if !here.known {
		return nil
	}
	names, globals := c.own.update(here.services, here.slices, here.endpoints, now)
	changed, everything := c.plan.update(views, zones, globals)
	maps.Copy(names, changed)
	c.ready = true
	if everything || now.Sub(c.full) > fullPass {
		maps.Copy(names, c.everything())
		c.full = now
	}
	if c.queue != nil {
		for name := range names {
			c.queue.Add(name)
		}
	}
	return nil
}

func (c *Controller) staleAfter(cluster string) time.Duration {
	if s := c.servers[cluster]; s != nil {
		return s.StaleAfter()
	}
	return 0
}

// view returns what is known of a source. Contact counts from the start of the
// process where there has been none since.
func (s *source) view(staleAfter time.Duration, started, now time.Time) setView {
	services, servicesKnown := s.services.Snapshot()
	slices, slicesKnown := s.slices.Snapshot()
	v := setView{known: servicesKnown && slicesKnown, services: services, slices: slices}
	if staleAfter > 0 {
		for _, last := range []time.Time{s.services.LastContact(), s.slices.LastContact()} {
			if last.Before(started) {
				last = started
			}
			v.stale = v.stale || now.Sub(last) > staleAfter
		}
	}
	return v
}

// Lead writes until ctx ends. It looks at everything first.
func (c *Controller) Lead(ctx context.Context) error {
	queue := workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](shortestRetry, longestRetry),
		workqueue.TypedRateLimitingQueueConfig[string]{Name: "services", MetricsProvider: c.metrics},
	)
	c.mu.Lock()
	c.queue = queue
	if c.ready {
		for name := range c.everything() {
			queue.Add(name)
		}
	}
	c.mu.Unlock()

	var workers sync.WaitGroup
	for range c.cfg.Workers {
		workers.Go(func() {
			for c.work(ctx, queue) {
			}
		})
	}
	<-ctx.Done()
	c.mu.Lock()
	c.queue = nil
	c.mu.Unlock()
	queue.ShutDown()
	workers.Wait()
	c.metrics.idle()
	return nil
}

// everything returns the names of all services that are or must be.
func (c *Controller) everything() map[string]struct{} {
	names := map[string]struct{}{}
	for name := range c.plan.names {
		names[name] = struct{}{}
	}
	for name := range c.own.services.groups {
		names[name] = struct{}{}
	}
	for name := range c.own.slices.groups {
		names[name] = struct{}{}
	}
	for name := range c.own.endpoints.groups {
		names[name] = struct{}{}
	}
	delete(names, "")
	return names
}

// work takes one name from the queue and brings its service in order.
func (c *Controller) work(ctx context.Context, queue workqueue.TypedRateLimitingInterface[string]) bool {
	name, shutdown := queue.Get()
	if shutdown || ctx.Err() != nil {
		return false
	}
	defer queue.Done(name)
	c.state.begin(name)
	err := c.run(ctx, name)
	if ctx.Err() != nil {
		return false
	}
	if lagging(err) && queue.NumRequeues(name) < patience {
		c.log.DebugContext(ctx, "watch lags behind", "service", name, "err", err)
		c.state.pause(name)
	} else {
		c.report(ctx, name, c.state.end(name, err), err)
	}
	if err != nil {
		queue.AddRateLimited(name)
	} else {
		queue.Forget(name)
	}
	return true
}

// patience is how often in a row a service may turn out to be other than what
// the watch showed before that is an error.
const patience = 4

// lagging reports whether an error means that an object isn't what the watch
// showed last; the next look will be better.
func lagging(err error) bool {
	return err != nil && (apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err))
}

// report logs an error when it appears or changes, and when it is over.
func (c *Controller) report(ctx context.Context, name string, before, err error) {
	switch {
	case err == nil && before != nil:
		c.log.InfoContext(ctx, "service in order again", "service", name)
	case err != nil && before != nil && before.Error() == err.Error():
		c.log.DebugContext(ctx, "service still not in order", "service", name, "err", err)
	case err != nil:
		c.log.ErrorContext(ctx, "service not in order", "service", name, "err", err)
	}
}

// Health says whether the controller does its work: whether its loop turns and
// no write has been going on for too long.
func (c *Controller) Health() error { return errors.Join(c.loop.Stuck(), c.state.stuck(time.Now())) }

// Ready says whether what is here is what should be, as far as is known: the
// local state has been read, and each remote's has, or is still here from an
// earlier run.
func (c *Controller) Ready() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ready {
		return errors.New("the mirror namespace has not been read since start")
	}
	var errs []error
	for _, id := range c.plan.order {
		if !c.plan.sets[id].known && !c.plan.remembers(id) {
			errs = append(errs, fmt.Errorf("%s of %s: not read since start, and none here", id.kind, id.cluster))
		}
	}
	return errors.Join(errs...)
}
