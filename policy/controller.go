package policy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/event"
	"github.com/kube-semaphore/kube-semaphore/internal/keep"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/pace"
	"github.com/kube-semaphore/kube-semaphore/internal/reconcile"
	"github.com/kube-semaphore/kube-semaphore/internal/run"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
)

// Config describes a Controller. FullResyncPeriod and ShardSize may be zero.
type Config struct {
	// Cluster is the local cluster's name, for logs and metrics.
	Cluster string
	// Labels are those of pods and sets.
	Labels Labels
	// Calico has the local cluster's network sets.
	Calico *Calico
	// Remotes are the clusters whose pods are watched.
	Remotes []RemoteConfig
	// FullResyncPeriod is the interval at which all network sets are listed again, in case
	// the watch missed a change; 0: never.
	FullResyncPeriod time.Duration
	// RemovalGrace is the time after which sets of a cluster that isn't configured are
	// removed, unless it is one of Departed, which left in order. KeepStrays retains them:
	// another process may manage them.
	RemovalGrace time.Duration
	Departed     []string
	KeepStrays   bool
	// ShardSize is the maximum number of nets per object; 0: DefaultShardSize.
	ShardSize int
	// Pace limits the bytes written for each remote; zero: the default.
	Pace pace.Limit
	// Events records name collisions; nil: not recorded.
	Events *event.Recorder
	// Logger gets changes of state.
	Logger *slog.Logger
	// Metrics and Watches are registered by the caller.
	Metrics *Metrics
	Watches *kube.Metrics
}

// followSpacing is the minimum interval between the starts of two passes over changes of network
// sets.
const followSpacing = 10 * time.Millisecond

// Controller reconciles the network sets of all remotes. Every replica has the observed
// state; only Lead writes.
type Controller struct {
	Config
	ledger   *keep.Ledger[Observed]
	owned    *owned
	past     *keep.Overrides[Identity]
	removals *removals
	pacer    *pace.Pacer[Identity]
	wrote    sync.Map // sets whose running reconciliation has written
	sets     *kube.Feed[Observed]
	changed  *reconcile.Trigger // of sets, or the ledger
	loop     *reconcile.Loop
	remotes  map[string]*remote // by name
	known    atomic.Bool        // the local sets have been listed

	mu     sync.Mutex
	writer *keep.Writer[Identity] // nil: not leading
	since  map[string]time.Time   // when objects of clusters that aren't configured were first observed
	pools  statuspage.PoolFaults  // as last read
}

// New returns a controller. It makes no request.
func New(cfg Config) *Controller {
	c := &Controller{
		Config: cfg, owned: newOwned(), past: keep.NewOverrides[Identity](cfg.Logger), removals: newRemovals(), changed: reconcile.NewTrigger(),
		remotes: map[string]*remote{}, since: map[string]time.Time{}, pools: statuspage.PoolFaults{Unknown: "not read since start"},
	}
	c.pacer = pace.New(pace.Config[Identity]{Cluster: cfg.Pace, Ready: c.turn})
	c.ledger = keep.NewLedger(keep.LedgerConfig[Observed]{Meta: metaOf, Notify: c.changed.Fire})
	c.sets = newSets(&c.Config, c.changed.Fire)
	c.loop = reconcile.NewLoop(reconcile.Config{
		Name: kube.NetworkSets, Trigger: c.changed, Reconcile: c.follow, MinInterval: followSpacing, Due: c.ledger.Due, Logger: cfg.Logger,
	})
	for i := range cfg.Remotes {
		c.remotes[cfg.Remotes[i].Rules.Cluster] = newRemote(cfg.Remotes[i], c)
	}
	return c
}

// follow updates the index of our objects and enqueues the sets of those that changed. It makes no
// request and never fails.
func (c *Controller) follow(ctx context.Context) error {
	changes, synced := c.sets.Changes()
	c.ledger.Observe(changes, synced)
	if !synced {
		return nil
	}
	for _, change := range c.ledger.Changes() {
		o := c.ledger.Get(change.Key)
		if o == nil {
			c.removals.over(change.Key)
		}
		if id, ours := c.owned.observe(change.Key, o); ours {
			c.notice(ctx, id.Cluster)
			c.enqueue(id)
		}
	}
	if !c.known.Swap(true) {
		c.everything()
	}
	return nil
}

// notice records since when there are objects of a cluster that isn't configured.
func (c *Controller) notice(ctx context.Context, cluster string) {
	if c.remotes[cluster] != nil {
		return
	}
	number := c.owned.number(cluster)
	c.mu.Lock()
	_, known := c.since[cluster]
	if number == 0 {
		delete(c.since, cluster)
	} else if !known {
		c.since[cluster] = time.Now()
	}
	c.mu.Unlock()
	if number > 0 && !known {
		at, goes := c.removedAt(cluster)
		c.Logger.WarnContext(ctx, "network sets of a cluster that is not configured", "remote", cluster, "removed", goes, "at", at)
	}
}

// removedAt returns when the objects of a cluster that isn't configured are removed; false: never.
func (c *Controller) removedAt(cluster string) (at time.Time, goes bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, known := c.since[cluster]
	if !known || c.KeepStrays || cluster == "" {
		return time.Time{}, false
	}
	if !slices.Contains(c.Departed, cluster) {
		at = at.Add(c.RemovalGrace)
	}
	return at, true
}

// enqueue adds sets to the writer's queue, if this replica leads.
func (c *Controller) enqueue(ids ...Identity) { c.enqueueAfter(0, ids...) }

func (c *Controller) enqueueAfter(wait time.Duration, ids ...Identity) {
	if w := c.term(); w != nil && len(ids) > 0 {
		w.AddAfter(wait, ids...)
	}
}

// turn enqueues a set with a write whose turn it is. It implements pace.Config.Ready.
func (c *Controller) turn(id Identity, urgent bool) {
	if w := c.term(); w != nil && urgent {
		w.AddNow(id) // What else of it fails doesn't delay a removal.
	} else {
		c.enqueue(id)
	}
}

// term returns the writer; nil: not leading.
func (c *Controller) term() *keep.Writer[Identity] {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.writer
}

// everything enqueues all sets. It doesn't wait for a pass of a remote.
func (c *Controller) everything() {
	for _, id := range c.owned.all(func(cluster string) bool { return c.remotes[cluster] == nil }) {
		c.enqueue(id)
	}
	for _, r := range c.remotes {
		r.all.Store(true)
		r.trigger.Fire()
	}
}

// resync reads all network sets again and compares them, in case the watch missed a change.
func (c *Controller) resync(context.Context) error {
	if c.known.Load() {
		c.sets.Renew()
		c.everything()
	}
	return nil
}

// Tasks returns the tasks of every replica, which observe the state.
func (c *Controller) Tasks() []run.Task {
	tasks := []run.Task{c.sets, c.loop, c.poolLoop()}
	if c.FullResyncPeriod > 0 {
		tasks = append(tasks, reconcile.NewLoop(reconcile.Config{
			Name: "full resync", Reconcile: c.resync, Trigger: reconcile.NewTrigger(), Resync: c.FullResyncPeriod, MinInterval: time.Minute, Logger: c.Logger,
		}))
	}
	for _, r := range c.remotes {
		tasks = append(tasks, r.feed, r.server, r.loop)
	}
	return tasks
}

// Lead writes network sets until ctx ends. Only one replica may run it.
func (c *Controller) Lead(ctx context.Context) error {
	writer := keep.NewWriter(keep.WriterConfig[Identity]{
		Name: "network sets", Apply: c.reconcile, Tenant: func(id Identity) string { return id.Cluster },
		Timeout: writeTimeout, RetryMin: firstRetry, RetryMax: lastRetry,
		Spacing: c.spacing, Observe: c.observe, Logger: c.Logger,
	})
	c.lead(writer)
	defer c.lead(nil)
	c.everything()
	var wg sync.WaitGroup
	defer wg.Wait()
	if c.Events != nil {
		events := c.Events.Loop(c.conditions)
		events.Logger = c.Logger
		// Run never fails, only passes do.
		wg.Go(func() { _ = reconcile.NewLoop(events).Run(ctx) })
	}
	return writer.Run(ctx)
}

func (c *Controller) lead(w *keep.Writer[Identity]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writer = w
}

// spacing returns the wait until a set may be reconciled again.
func (c *Controller) spacing(id Identity) time.Duration {
	if _, wrote := c.wrote.LoadAndDelete(id); wrote {
		return writeSpacing
	}
	return 0
}

// observe records the delay from an observed change to its write.
func (c *Controller) observe(o keep.Outcome[Identity]) {
	if _, wrote := c.wrote.Load(o.Key); wrote && o.Err == nil {
		c.Metrics.delays.WithLabelValues(o.Tenant).Observe(time.Since(o.Since).Seconds())
	}
}

// Ready returns an error until the local network sets have been listed. It doesn't wait for
// remotes, whose state is in Status.
func (c *Controller) Ready() error {
	if !c.known.Load() {
		return fmt.Errorf("network sets not synced since start: %w", orWaiting(c.sets.Err()))
	}
	return nil
}

// errWaiting is the error before the first response.
var errWaiting = errors.New("waiting for a response")

func orWaiting(err error) error {
	if err == nil {
		return errWaiting
	}
	return err
}

// Health returns an error while a loop or a write is stuck.
func (c *Controller) Health() error {
	errs := []error{c.loop.Stuck()}
	for _, r := range c.remotes {
		errs = append(errs, r.loop.Stuck())
	}
	if w := c.term(); w != nil {
		errs = append(errs, w.Stuck(time.Now()))
	}
	return errors.Join(errs...)
}
