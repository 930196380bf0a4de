package mirror

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/event"
	"github.com/kube-semaphore/kube-semaphore/internal/keep"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/pace"
	"github.com/kube-semaphore/kube-semaphore/internal/reconcile"
	"github.com/kube-semaphore/kube-semaphore/internal/run"
	"github.com/kube-semaphore/kube-semaphore/mirror/published"
)

// Config describes a Controller. A nil selector disables its part; with a nil
// LocalFirstSelector no global service prefers local endpoints.
type Config struct {
	// Cluster is the name of the local cluster.
	Cluster string
	// Namespace is that of mirrors and global services.
	Namespace string
	// Client is for the local cluster.
	Client kube.Client
	// Remotes are the other clusters, in the order of configuration.
	Remotes []Remote
	// MirrorSelector selects services to mirror, GlobalSelector those to merge.
	MirrorSelector, GlobalSelector labels.Selector
	// LocalFirstSelector selects global services that prefer local endpoints.
	LocalFirstSelector labels.Selector
	// LocalMinimum is the minimum number of ready local endpoints for that, unless a label
	// of the service overrides it.
	LocalMinimum int
	// MultiCluster is whether the Multi-Cluster Services API is implemented, once the local
	// cluster serves it and the account may read its objects, and MultiClusterRequired whether
	// it is an error until then.
	MultiCluster, MultiClusterRequired bool
	// ReportNamespace is the namespace of the agents' path reports; empty: none.
	ReportNamespace string
	// RemovalGrace is the time after the start until services of remotes that are no longer
	// configured are removed.
	RemovalGrace time.Duration
	// Departed are clusters that left in order: they are ignored, also in Remotes, and have no
	// grace.
	Departed []string
	// Workers is the number of concurrent writes per remote. 0: DefaultWorkers.
	Workers int
	// Pace limits the bytes written for each remote; zero: the default.
	Pace pace.Limit
	// WatchMetrics may be nil.
	WatchMetrics *kube.Metrics
	Logger       *slog.Logger
}

// Remote is one remote cluster.
type Remote struct {
	Name string
	// Prefix is that of the names of its mirrors.
	Prefix string
	// PodSubnets must contain its endpoints; none: any address.
	PodSubnets []netip.Prefix
	// PodSubnetsMap translates the addresses of its pods to those by which they are known here.
	PodSubnetsMap config.SubnetMap
	// ResyncPeriod is the interval of reconciling everything without an event; 0: never.
	ResyncPeriod time.Duration
	// StaleAfter is the time without contact after which its endpoints are removed from
	// global services that have others; 0: never. See kube.ServerConfig.
	StaleAfter time.Duration
	// Bounds limit its cached objects, and must be those of its client. Made limits the
	// objects created for it.
	Bounds kube.Bounds
	Made   Bounds
	// Tier orders the remotes whose endpoints are preferred where local ones are, and aren't
	// enough: the lowest first. That of the local cluster is 0.
	Tier int
	// Imports reports whether exports of a namespace are imported; nil: all are.
	Imports func(namespace string) bool
	// Client returns its client, or an error while that is unavailable.
	Client func() (kube.Client, error)
}

// DefaultWorkers is the default of Config.Workers.
const DefaultWorkers = 24

const (
	// passSpacing is the minimum interval between the starts of two passes: frequent events
	// share passes and writes. It doesn't delay events after a quiet time.
	passSpacing = 15 * time.Millisecond
	// passBurst is the number of passes without passSpacing after a quiet time: a change
	// and its consequences need two or three.
	passBurst = 4
	// firstImports is the time for which new imports wait for remotes that have not been read,
	// after the start, or since the API is served.
	firstImports = 30 * time.Second
	// slowPass is the interval of passes without an event.
	slowPass = 30 * time.Second
	// Bounds of the back-off of one service.
	shortestRetry, longestRetry = 100 * time.Millisecond, time.Minute
	// stuckAfter is the maximum time for one service: several writes that time out.
	stuckAfter = 5 * time.Minute
)

// Controller reconciles mirrors and global services. Every replica runs its feeds and
// computes the desired state; only Lead writes.
type Controller struct {
	cfg      Config
	log      *slog.Logger
	metrics  *Metrics
	apply    *applier
	trigger  *reconcile.Trigger
	loop     *reconcile.Loop
	servers  map[string]*kube.Server // of remotes, by name
	sources  []*published.Source
	local    *localFeeds
	multi    *multicluster // nil: disabled
	removeAt time.Time     // when services of remotes that are no longer configured are removed
	// importAfter is until when new imports wait for remotes that have not been read; zero: the
	// API isn't served yet.
	importAfter time.Time
	departed    []string // configured ones that are ignored

	mu     sync.Mutex
	state  *state
	ready  bool                    // the mirror namespace has been read
	full   map[string]time.Time    // last full pass, by remote
	survey *survey                 // status of services at the last pass
	over   map[string]string       // remotes over their quota
	writer *keep.Writer[string]    // nil: not leading
	past   *keep.Overrides[string] // of the term of writer
}

// New returns a controller. It makes no request.
func New(cfg Config) *Controller {
	if cfg.Workers <= 0 {
		cfg.Workers = DefaultWorkers
	}
	c := &Controller{
		cfg: cfg, log: cfg.Logger, trigger: reconcile.NewTrigger(), metrics: newMetrics(),
		servers: map[string]*kube.Server{}, removeAt: time.Now().Add(cfg.RemovalGrace), full: map[string]time.Time{},
		survey: newSurvey(), over: map[string]string{}, past: keep.NewOverrides[string](cfg.Logger),
	}
	c.metrics.controller = c
	c.cfg.Remotes = slices.DeleteFunc(slices.Clone(cfg.Remotes), func(r Remote) bool {
		left := slices.Contains(cfg.Departed, r.Name)
		if left {
			c.departed = append(c.departed, r.Name)
		}
		return left
	})
	cfg = c.cfg
	clusters, kinds := []*cluster{{name: cfg.Cluster, local: true}}, []published.Kind(nil)
	for i := range cfg.Remotes {
		r := &cfg.Remotes[i]
		clusters = append(clusters, &cluster{name: r.Name, prefix: r.Prefix, subnets: r.PodSubnets, quota: newQuota(r.Made), tier: r.Tier, imports: r.Imports})
		c.servers[r.Name] = kube.NewServer(kube.ServerConfig{
			Cluster: r.Name, StaleAfter: r.StaleAfter, Ping: kube.Ping(r.Client), Logger: c.log,
		})
	}
	if cfg.MirrorSelector != nil {
		kinds = append(kinds, published.Mirrored)
	}
	if cfg.GlobalSelector != nil {
		kinds = append(kinds, published.Merged)
	}
	if cfg.MultiCluster {
		kinds = append(kinds, published.Exported)
	}
	sums, local := newSummer(), newLocal(c.trigger.Fire)
	c.state = newState(clusters, kinds, cfg.Namespace, local, sums)
	for _, name := range cfg.Departed {
		c.state.departed[name] = true
	}
	c.state.localMinimum = cfg.LocalMinimum
	c.apply = &applier{
		client: cfg.Client, home: cfg.Namespace, sums: sums, local: local,
		pace:   pace.New(pace.Config[string]{Cluster: cfg.Pace, Ready: c.turn}),
		events: event.NewRecorder(event.Config{Client: cfg.Client, Component: managedBy}), log: c.log, count: c.metrics.wrote,
	}
	c.local = c.newLocalFeeds()
	if cfg.MultiCluster {
		c.multi = c.newMulticluster()
	}
	for _, id := range c.state.order {
		c.sources = append(c.sources, c.newSource(id))
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

// String names the controller in logs.
func (c *Controller) String() string { return "service mirror" }

// Tasks returns the tasks of every replica.
func (c *Controller) Tasks() []run.Task {
	tasks := append(c.local.tasks(), c.loop)
	if c.multi != nil {
		tasks = append(tasks, c.multi.tasks()...)
	}
	for _, s := range c.sources {
		tasks = append(tasks, s.Tasks()...)
	}
	for i := range c.cfg.Remotes {
		tasks = append(tasks, c.servers[c.cfg.Remotes[i].Name])
	}
	return tasks
}

// due returns when the next pass is due without an event.
func (c *Controller) due() (first time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ready {
		return first
	}
	// Times in the past are due at once.
	at := func(t time.Time) {
		if !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	at(c.state.removeAt)
	at(c.state.importAfter)
	at(c.state.paths.Due())
	for i := range c.cfg.Remotes {
		if r := &c.cfg.Remotes[i]; r.ResyncPeriod > 0 {
			at(c.full[r.Name].Add(r.ResyncPeriod))
		}
	}
	local := c.state.local
	for _, due := range []time.Time{local.home.services.Due(), local.home.slices.Due(), local.imported.services.Due(), local.imported.slices.Due(), local.imports.Due()} {
		at(due)
	}
	return first
}

// Reconcile is a pass: it reads what has changed, and adds the services that may differ from their
// desired state to the writer. Without one it only computes their status. It makes no request and
// never fails.
func (c *Controller) Reconcile(context.Context) error {
	losing, names, first := c.pass(time.Now())
	if c.leading() != nil && !first {
		c.addNow(losing...) // What else of these fails doesn't delay it.
		c.add(names...)
		return nil
	}
	for names = append(losing, names...); len(names) > 0; {
		_, _, next := c.plan(names[0])
		names = append(names[1:], next...)
	}
	return nil
}

// pass updates the state, and returns the services that may have changed: see state.take. The first
// one is that of existing objects alone, so that they have their part of each quota before others.
func (c *Controller) pass(now time.Time) (losing, names []string, first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.state
	s.now = now
	known := c.local.read(s)
	zones, zonesKnown := c.local.readNodes(s)
	if reported := c.local.readReports(s, now); !known || !reported {
		return nil, nil, false
	}
	s.nodes(zones)
	if !c.ready {
		c.ready = true
		s.local.update(now, s.touch)
		s.wait(future(now, c.importAfter), future(now, c.removeAt))
		losing, names = s.take()
		s.touchAll() // to be written
		c.trigger.Fire()
		return losing, names, true
	}
	for _, src := range c.sources {
		synced, stale := src.Read(func(drained bool) { s.drain(src.Cluster, drained) })
		// Without the zones, local endpoints would lose their hints.
		s.contact(src.ID, synced && (zonesKnown || !src.Local), stale)
	}
	if c.multi != nil {
		if c.importAfter.IsZero() && c.multi.served.IsOpen() {
			c.importAfter = now.Add(firstImports)
		}
		c.multi.read(s)
	}
	s.local.update(now, s.touch)
	s.wait(future(now, c.importAfter), future(now, c.removeAt))
	for i := range c.cfg.Remotes {
		if r := &c.cfg.Remotes[i]; r.ResyncPeriod > 0 && now.Sub(c.full[r.Name]) >= r.ResyncPeriod {
			c.full[r.Name] = now
			s.touchAll()
		}
	}
	c.judge(now)
	losing, names = s.take()
	return losing, names, false
}

// future returns a time that has not passed; zero: it has.
func future(now, t time.Time) time.Time {
	if now.Before(t) {
		return t
	}
	return time.Time{}
}

// plan returns the desired and the observed state of a service, and updates its status. next are
// other services for which there may be room now.
func (c *Controller) plan(name string) (want Service, have Observed, next []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	want, have, next = c.state.plan(name)
	c.note(&have, &want)
	return want, have, next
}

// note updates the status of a service, and logs conflicts with foreign objects. Callers hold mu.
func (c *Controller) note(have *Observed, w *Service) {
	before := c.survey.blocked[w.Name]
	c.survey.note(have, w)
	switch now := c.survey.blocked[w.Name]; {
	case now != nil && (before == nil || before.Error() != now.Error()):
		c.log.Error("service blocked by a foreign object", "service", w.Name, "err", now)
	case now == nil && before != nil:
		c.log.Info("service no longer blocked", "service", w.Name)
	}
	for name, of := range c.state.clusters {
		now, before := of.quota.over(), c.over[name]
		switch c.over[name] = now; {
		case now != "" && before == "":
			c.log.Warn("remote over its quota", "cluster", name, "err", now)
		case now == "" && before != "":
			c.log.Info("remote within its quota again", "cluster", name)
		}
	}
}

// Lead writes until ctx ends. It starts with a full pass.
func (c *Controller) Lead(ctx context.Context) error {
	writer := keep.NewWriter(keep.WriterConfig[string]{
		Name: "services", Apply: c.reconcile, Tenant: c.tenant, Workers: c.cfg.Workers, Spacing: c.apply.local.answers.spacing,
		RetryMin: shortestRetry, RetryMax: longestRetry, StuckAfter: stuckAfter,
		Observe: c.metrics.applied, Logger: c.log,
	})
	c.mu.Lock()
	c.writer, c.past = writer, keep.NewOverrides[string](c.log)
	c.state.touchAll()
	c.mu.Unlock()
	c.trigger.Fire()
	err := writer.Run(ctx)
	c.mu.Lock()
	c.writer, c.past = nil, keep.NewOverrides[string](c.log)
	c.mu.Unlock()
	return err
}

// leading returns the writer; nil: not leading. The writer's methods must not be called
// with mu held, because they call tenant.
func (c *Controller) leading() *keep.Writer[string] {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.writer
}

func (c *Controller) tenant(name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state.tenant(name)
}

// reconcile makes the objects of one local service what they must be. It implements keep.Apply.
func (c *Controller) reconcile(ctx context.Context, name string) error {
	want, have, next := c.plan(name)
	c.add(next...)
	want.seal(c.apply.sums, &have, &c.apply.local.answers)
	c.mu.Lock()
	past := c.past
	c.mu.Unlock()
	changes := c.apply.sums.Diff(&have, &want)
	again, err := c.apply.apply(ctx, past, c.tenant(name), &have, &want, changes)
	if want.Imported != nil && again == 0 && inTheWay(&have, &want) != nil {
		again = slowPass // no event of another import's Service is one of this import
	}
	if eventErr := c.apply.warn(ctx, past.Of(name, time.Now()), &have, &want); eventErr != nil {
		c.log.WarnContext(ctx, "create event failed", "service", name, "err", eventErr)
		if again == 0 || again > slowPass {
			again = slowPass
		}
	}
	if writer := c.leading(); writer != nil && again > 0 {
		writer.AddAfter(again, name)
	}
	return err
}

// add adds services to the writer, if this replica leads.
func (c *Controller) add(names ...string) {
	if writer := c.leading(); writer != nil {
		c.metrics.adds.WithLabelValues(queueName).Add(float64(len(names)))
		writer.Add(names...)
	}
}

// addNow is add without a wait for the end of a back-off: see keep.Writer.
func (c *Controller) addNow(names ...string) {
	if writer := c.leading(); writer != nil {
		c.metrics.adds.WithLabelValues(queueName).Add(float64(len(names)))
		writer.AddNow(names...)
	}
}

// turn adds a service with a write whose turn it is. It implements pace.Config.Ready.
func (c *Controller) turn(name string, urgent bool) {
	if urgent {
		c.addNow(name)
	} else {
		c.add(name)
	}
}

// Health returns an error while the loop or a write is stuck.
func (c *Controller) Health() error {
	writer := c.leading()
	if writer == nil {
		return c.loop.Stuck()
	}
	return errors.Join(c.loop.Stuck(), writer.Stuck(time.Now()))
}

// Ready returns an error until the mirror namespace has been read. It doesn't wait for
// remotes, whose state is in Status.
func (c *Controller) Ready() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ready {
		return errors.New("the mirror namespace has not been read since start")
	}
	return nil
}
