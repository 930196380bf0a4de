package policy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/event"
	"github.com/kube-semaphore/kube-semaphore/internal/keep"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/reconcile"
	"github.com/kube-semaphore/kube-semaphore/internal/run"
	"github.com/kube-semaphore/kube-semaphore/internal/status"
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
	// Events records name collisions; nil: not recorded.
	Events *event.Recorder
	// Logger gets changes of state.
	Logger *slog.Logger
	// Metrics and Watches are registered by the caller.
	Metrics *Metrics
	Watches *kube.Metrics
}

// Controller reconciles the network sets of all remotes. Every replica has the observed
// state; only Lead writes.
type Controller struct {
	Config
	ledger  *keep.Ledger[Observed]
	sets    *kube.Feed[Observed]
	changed *reconcile.Trigger // of sets, or the ledger
	loop    *reconcile.Loop
	remotes map[string]*remote // by name
	known   atomic.Bool        // the local sets have been listed and passed to the remotes

	mu     sync.Mutex
	strays map[string]*strays        // by cluster
	writer *keep.Writer[Identity]    // nil: not leading
	past   *keep.Overrides[Identity] // of the term of writer
	stuck  map[string]*stuck         // objects whose removals aren't written, by name
	pools  status.PoolFaults         // as last read
}

// New returns a controller. It makes no request.
func New(cfg Config) *Controller {
	c := &Controller{Config: cfg, changed: reconcile.NewTrigger(), remotes: map[string]*remote{}, strays: map[string]*strays{}, past: keep.NewOverrides[Identity](cfg.Logger), stuck: map[string]*stuck{}, pools: status.PoolFaults{Unknown: "not read since start"}}
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

// follow passes changes of network sets to their remotes. It makes no request and never
// fails.
func (c *Controller) follow(ctx context.Context) error {
	changes, synced := c.sets.Changes()
	c.ledger.Observe(changes, synced)
	if !synced {
		return nil
	}
	byRemote := map[*remote][]kube.Change[Observed]{}
	var strayed []Identity
	c.mu.Lock()
	now := time.Now()
	for _, change := range c.ledger.Changes() {
		for r := range c.concerned(change) {
			byRemote[r] = append(byRemote[r], change)
		}
		strayed = append(strayed, c.strayed(ctx, change, now)...)
	}
	c.mu.Unlock()
	for r, changes := range byRemote {
		r.enqueue(changes, false)
	}
	c.write(strayed...)
	if !c.known.Swap(true) {
		c.everything()
	}
	return nil
}

// concerned returns the remotes that an object belongs or belonged to.
func (c *Controller) concerned(change kube.Change[Observed]) map[*remote]struct{} {
	concerned := map[*remote]struct{}{}
	for _, o := range []*Observed{change.Before, change.After} {
		if o == nil || !o.Owned {
			continue
		}
		if r := c.remotes[o.Identity.Cluster]; r != nil {
			concerned[r] = struct{}{}
		}
	}
	return concerned
}

// write adds sets to the writer, if this replica leads.
func (c *Controller) write(ids ...Identity) { c.writeAfter(0, ids...) }

func (c *Controller) writeAfter(wait time.Duration, ids ...Identity) {
	if w := c.term(); w != nil && len(ids) > 0 {
		w.AddAfter(wait, ids...)
	}
}

// term returns the writer; nil: not leading.
func (c *Controller) term() *keep.Writer[Identity] {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.writer
}

// everything schedules the reconciliation of all sets. It doesn't block.
func (c *Controller) everything() {
	for _, r := range c.remotes {
		r.enqueue(nil, true)
	}
	var strayed []Identity
	c.mu.Lock()
	for _, s := range c.strays {
		for _, id := range s.objects {
			strayed = append(strayed, id)
		}
	}
	c.mu.Unlock()
	c.write(strayed...)
}

// Tasks returns the tasks of every replica, which observe the state.
func (c *Controller) Tasks() []run.Task {
	tasks := []run.Task{c.sets, c.loop, c.poolLoop(), fullResync{period: c.FullResyncPeriod, renew: func() {
		c.sets.Renew()
		c.everything()
	}}}
	for _, r := range c.remotes {
		tasks = append(tasks, r.pods, r.nodes, r.server, r.loop)
	}
	return tasks
}

// Lead writes network sets until ctx ends. Only one replica may run it.
func (c *Controller) Lead(ctx context.Context) error {
	writer := keep.NewWriter(keep.WriterConfig[Identity]{
		Name: "network sets", Apply: c.apply, Tenant: func(id Identity) string { return id.Cluster },
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
	c.writer, c.past, c.stuck = w, keep.NewOverrides[Identity](c.Logger), map[string]*stuck{}
}

func (c *Controller) overrides() *keep.Overrides[Identity] {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.past
}

// spacing returns the wait until a set may be written again.
func (c *Controller) spacing(id Identity) time.Duration {
	if r := c.remotes[id.Cluster]; r != nil {
		return r.pace.next(id, time.Now())
	}
	return 0
}

// observe records the delay from an observed change to its write.
func (c *Controller) observe(o keep.Outcome[Identity]) {
	if r := c.remotes[o.Tenant]; r != nil && r.pace.any(o.Key) && o.Err == nil {
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

// fullResync calls renew periodically.
type fullResync struct {
	period time.Duration
	renew  func()
}

// String names the task.
func (f fullResync) String() string { return "full resync" }

// Run runs until ctx ends.
func (f fullResync) Run(ctx context.Context) error {
	if f.period <= 0 {
		<-ctx.Done()
		return nil
	}
	ticker := time.NewTicker(f.period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			f.renew()
		}
	}
}
