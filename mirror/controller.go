package mirror

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/kube-semaphore/kube-semaphore/internal/event"
	"github.com/kube-semaphore/kube-semaphore/internal/keep"
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
	Client kube.Client
	// Remotes are the other clusters, in the order of configuration.
	Remotes []Remote
	// MirrorSelector finds services to mirror, GlobalSelector those to merge.
	MirrorSelector, GlobalSelector labels.Selector
	// LocalFirstSelector finds global services that prefer local endpoints.
	LocalFirstSelector labels.Selector
	// LocalMinimum is how many of their local endpoints must be ready for that, unless a
	// service says so itself.
	LocalMinimum int
	// ReportNamespace is where agents report which paths are down; empty: nowhere.
	ReportNamespace string
	// LegacyEndpoints also writes objects of the deprecated Endpoints API.
	LegacyEndpoints bool
	// RemovalGrace is how long after the start that stays which is from remotes that
	// are no longer configured.
	RemovalGrace time.Duration
	// Workers is how many services of one remote may be written at a time. 0:
	// DefaultWorkers.
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
	// Bounds are those of what it can make us hold; the client has the same. Made
	// are those of what is made for it.
	Bounds kube.Bounds
	Made   Bounds
	// Client returns its client, or why there is none yet.
	Client func() (kube.Client, error)
}

// DefaultWorkers is how many services of one remote are written at a time by default.
const DefaultWorkers = 24

const (
	// passSpacing is the least time between the starts of two passes. What comes after a
	// quiet time doesn't wait for it; what comes faster shares passes, and writes that
	// go out together.
	passSpacing = 15 * time.Millisecond
	// passBurst is how many passes needn't wait after a quiet time: a change and what
	// comes of it take two or three.
	passBurst = 4
	// slowPass is how often to look for what changed without an event.
	slowPass = 30 * time.Second
	// Retries of a service that can't be written, by itself.
	shortestRetry, longestRetry = 100 * time.Millisecond, time.Minute
	// stuckAfter is how long one service may take: several writes that each time
	// out.
	stuckAfter = 5 * time.Minute
)

// Controller keeps mirrors and global services. Its feeds, and what it knows to be
// desired, are there in every replica; only Lead writes.
type Controller struct {
	cfg     Config
	log     *slog.Logger
	metrics *Metrics
	apply   *applier
	trigger *reconcile.Trigger
	loop    *reconcile.Loop
	servers map[string]*kube.Server // of remotes, by name
	sources []*source
	local   *localFeeds
	lingers time.Time // until when what isn't configured any more stays

	mu       sync.Mutex
	snapshot *Snapshot
	memo     *Memo
	ready    bool                 // the mirror namespace has been read
	full     map[string]time.Time // when everything was last looked at, by remote
	survey   *survey              // how services are since the last pass
	over     map[string]string    // remotes beyond their bounds
	writer   *keep.Writer[string] // nil: this replica doesn't lead
}

// New returns a controller. It makes no request.
func New(cfg Config) *Controller {
	if cfg.Workers <= 0 {
		cfg.Workers = DefaultWorkers
	}
	c := &Controller{
		cfg: cfg, log: cfg.Logger, trigger: reconcile.NewTrigger(), metrics: newMetrics(), memo: NewMemo(),
		servers: map[string]*kube.Server{}, lingers: time.Now().Add(cfg.RemovalGrace), full: map[string]time.Time{},
		survey: newSurvey(), over: map[string]string{},
	}
	c.metrics.controller = c
	clusters, kinds := []clusterConfig{{name: cfg.Cluster, local: true}}, []kind(nil)
	for i := range cfg.Remotes {
		r := &cfg.Remotes[i]
		clusters = append(clusters, clusterConfig{name: r.Name, prefix: r.Prefix, subnets: r.PodSubnets, bounds: r.Made})
		c.servers[r.Name] = kube.NewServer(kube.ServerConfig{
			Cluster: r.Name, StaleAfter: r.StaleAfter, Ping: kube.Ping(r.Client), Logger: c.log,
		})
	}
	if cfg.MirrorSelector != nil {
		kinds = append(kinds, mirrored)
	}
	if cfg.GlobalSelector != nil {
		kinds = append(kinds, merged)
	}
	sums, local := newSummer(), newLocal(c.trigger.Fire)
	c.snapshot = newSnapshot(clusters, kinds, local, sums)
	c.snapshot.legacy, c.snapshot.localMinimum = cfg.LegacyEndpoints, cfg.LocalMinimum
	c.apply = &applier{
		client: cfg.Client, namespace: cfg.Namespace, sums: sums, local: local, legacy: cfg.LegacyEndpoints,
		events: event.NewRecorder(event.Config{Client: cfg.Client, Component: managedBy}), log: c.log, count: c.metrics.wrote,
	}
	c.local = c.newLocalFeeds()
	for _, id := range c.snapshot.order {
		if r := c.remote(id.cluster); r != nil {
			c.sources = append(c.sources, c.newSource(id, r.Client, r))
		} else {
			c.sources = append(c.sources, c.newSource(id, func() (kube.Client, error) { return cfg.Client, nil }, nil))
		}
	}
	c.loop = reconcile.NewLoop(reconcile.Config{
		Name: "services", Reconcile: c.Reconcile, Trigger: c.trigger,
		MinInterval: passSpacing, Burst: passBurst, Resync: slowPass, Due: c.due, Logger: c.log,
	})
	return c
}

func (c *Controller) remote(name string) *Remote {
	for i := range c.cfg.Remotes {
		if c.cfg.Remotes[i].Name == name {
			return &c.cfg.Remotes[i]
		}
	}
	return nil
}

// String names the controller as the work of a leader.
func (c *Controller) String() string { return "service mirror" }

// Tasks returns what runs in every replica until the process ends.
func (c *Controller) Tasks() []run.Task {
	tasks := append(c.local.tasks(), c.loop)
	for _, s := range c.sources {
		tasks = append(tasks, s.origins, s.slices)
		if s.drain != nil {
			tasks = append(tasks, s.drain)
		}
	}
	for i := range c.cfg.Remotes {
		tasks = append(tasks, c.servers[c.cfg.Remotes[i].Name])
	}
	return tasks
}

// due returns when there is something to do without an event.
func (c *Controller) due() (first time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ready {
		return first
	}
	// What has become due since the pass is due at once.
	at := func(t time.Time) {
		if !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	at(c.snapshot.lingers)
	at(c.snapshot.paths.first())
	for i := range c.cfg.Remotes {
		if r := &c.cfg.Remotes[i]; r.ResyncPeriod > 0 {
			at(c.full[r.Name].Add(r.ResyncPeriod))
		}
	}
	local := c.snapshot.local
	for _, t := range []time.Time{local.services.Due(), local.slices.Due(), local.endpoints.Due()} {
		at(t)
	}
	return first
}

// Reconcile is a pass: it finds out which services may differ from what they must
// be, and has the writer look at them. It makes no request and never fails.
func (c *Controller) Reconcile(context.Context) error {
	names, writer := c.pass(time.Now())
	if writer != nil {
		for _, name := range names {
			c.metrics.adds.WithLabelValues(queueName).Inc()
			writer.Add(name)
		}
	}
	return nil
}

// pass takes in what is new, and returns the services that may differ, and who may
// write them; nil: this replica may not.
func (c *Controller) pass(now time.Time) ([]string, *keep.Writer[string]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.snapshot
	known := c.local.read(s)
	zones, zonesKnown := c.local.readNodes(s)
	if reported := c.local.readReports(s, now); !known || !reported {
		return nil, nil
	}
	s.nodes(zones)
	more := false
	for _, src := range c.sources {
		// Without the zones, local endpoints would lose their hints.
		again := src.read(s, zonesKnown || c.remote(src.id.cluster) != nil)
		more = more || again
	}
	if now.Before(c.lingers) {
		s.linger(c.lingers)
	} else {
		s.linger(time.Time{})
	}
	for i := range c.cfg.Remotes {
		if r := &c.cfg.Remotes[i]; r.ResyncPeriod > 0 && now.Sub(c.full[r.Name]) >= r.ResyncPeriod {
			s.all, c.full[r.Name] = true, now
		}
	}
	c.judge(now)
	desired := Desired(s, c.memo)
	if more || c.memo.more {
		c.trigger.Fire()
	}
	s.seen()
	c.ready = true
	names := make([]string, 0, len(desired))
	for i := range desired {
		w := desired[i] // which keeps none of the others
		names = append(names, w.Name)
		c.note(&w)
	}
	for cluster, r := range c.memo.rooms {
		c.over[cluster] = c.crowded(cluster, r, c.over[cluster])
	}
	return names, c.writer
}

// note takes in how a service is, and logs which foreign objects are in its way.
func (c *Controller) note(w *Service) {
	have := c.snapshot.local.get(w.Name, w)
	before := c.survey.blocked[w.Name]
	c.survey.note(&have, w)
	switch now := c.survey.blocked[w.Name]; {
	case now != nil && (before == nil || before.Error() != now.Error()):
		c.log.Error("service not in order", "service", w.Name, "err", now)
	case now == nil && before != nil:
		c.log.Info("service in order again", "service", w.Name)
	}
}

// crowded returns what is left out for the sake of a remote's bounds, and logs when
// that begins and ends.
func (c *Controller) crowded(cluster string, r *room, before string) (now string) {
	if n := r.missing(); n > 0 {
		now = fmt.Sprintf("%d services or more are left out or short: %d services, %d slices and %d addresses are made of %d, %d and %d at most",
			n, r.used.Services, r.used.Slices, r.used.Addresses, r.bounds.Services, r.bounds.Slices, r.bounds.Addresses)
	}
	switch {
	case now != "" && before == "":
		c.log.Warn("a remote is beyond its bounds", "cluster", cluster, "err", now)
	case now == "" && before != "":
		c.log.Info("a remote is within its bounds again", "cluster", cluster)
	}
	return now
}

// Lead writes until ctx ends. It looks at everything first.
func (c *Controller) Lead(ctx context.Context) error {
	writer := keep.NewWriter(keep.WriterConfig[string]{
		Name: "services", Apply: c.put, Tenant: c.tenant, Workers: c.cfg.Workers,
		RetryMin: shortestRetry, RetryMax: longestRetry, StuckAfter: stuckAfter,
		Observe: c.metrics.applied, Logger: c.log,
	})
	c.mu.Lock()
	c.writer = writer
	c.snapshot.all = true
	c.mu.Unlock()
	c.trigger.Fire()
	err := writer.Run(ctx)
	c.mu.Lock()
	c.writer = nil
	c.mu.Unlock()
	return err
}

// leading returns who writes; nil: this replica doesn't. It must not be asked for
// anything with mu held, because it asks for tenants.
func (c *Controller) leading() *keep.Writer[string] {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.writer
}

// tenant returns whose a service is: the remote's whose word it is first of all.
func (c *Controller) tenant(name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	w, have := c.memo.services[name], c.snapshot.local.services.Get(name)
	switch {
	case w != nil && !w.Origin.Global():
		return w.Origin.Cluster
	case w != nil && len(w.Accepted) > 0:
		return w.Accepted[0]
	case w == nil && have != nil && !have.global:
		return have.id.Cluster
	case w == nil && have != nil && len(have.accepted) > 0:
		return have.accepted[0]
	}
	return c.cfg.Cluster
}

// put brings one local service to what it must be. It implements keep.Apply.
func (c *Controller) put(ctx context.Context, name string) error {
	c.mu.Lock()
	want, have := c.snapshot.want(c.memo, name)
	c.mu.Unlock()
	err := c.apply.apply(ctx, &have, &want, Diff(have, want))
	if untold := c.apply.tell(ctx, &have, &want); untold != nil {
		c.log.WarnContext(ctx, "event not made", "service", name, "err", untold)
		if writer := c.leading(); writer != nil {
			writer.AddAfter(slowPass, name)
		}
	}
	return err
}

// Health says whether the controller does its work: whether its loop turns and
// no write has been going on for too long.
func (c *Controller) Health() error {
	writer := c.leading()
	if writer == nil {
		return c.loop.Stuck()
	}
	return errors.Join(c.loop.Stuck(), writer.Stuck(time.Now()))
}

// Ready says whether the controller may do its work: the local state has been read.
// What a remote that is away would add is told in the status, and not waited for.
func (c *Controller) Ready() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ready {
		return errors.New("the mirror namespace has not been read since start")
	}
	return nil
}
