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
)

// Config describes a Controller. FullResyncPeriod and ShardSize may be zero.
type Config struct {
	// Cluster is the local cluster's name, for logs and metrics.
	Cluster string
	// Labels mark pods and sets.
	Labels Labels
	// Calico reaches the local cluster's network sets.
	Calico *Calico
	// Remotes are the clusters whose pods are watched.
	Remotes []RemoteConfig
	// FullResyncPeriod is how often all network sets are read anew, in case
	// the watch missed something; 0: never.
	FullResyncPeriod time.Duration
	// RemovalGrace is how long sets of a cluster that isn't configured stay after
	// they were first seen. KeepStrays has them stay for ever: another process may
	// keep them.
	RemovalGrace time.Duration
	KeepStrays   bool
	// ShardSize is how many nets an object holds; 0: DefaultShardSize.
	ShardSize int
	// Events records names that are taken; nil: nobody does.
	Events *event.Recorder
	// Logger gets changes of state.
	Logger *slog.Logger
	// Metrics and Watches are to be registered by the caller.
	Metrics *Metrics
	Watches *kube.Metrics
}

// Controller keeps the network sets of all remotes. What it knows is there in every
// replica; only Lead writes.
type Controller struct {
	Config
	ledger  *keep.Ledger[Observed]
	sets    *kube.Feed[Observed]
	changed *reconcile.Trigger // of sets, or the ledger
	loop    *reconcile.Loop
	remotes map[string]*remote // by name
	known   atomic.Bool        // the local sets have been read, and the remotes told

	mu     sync.Mutex
	strays map[string]*strays     // by cluster
	writer *keep.Writer[Identity] // nil: another replica leads
}

// New returns a controller. It makes no request.
func New(cfg Config) *Controller {
	c := &Controller{Config: cfg, changed: reconcile.NewTrigger(), remotes: map[string]*remote{}, strays: map[string]*strays{}}
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

// follow tells each remote what became of its network sets. It makes no request and
// never fails.
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
		r.tell(changes, false)
	}
	c.write(strayed...)
	if !c.known.Swap(true) {
		c.everything()
	}
	return nil
}

// concerned returns the remotes whose sets an object is, or was.
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

// write has sets compared and written, where this replica leads.
func (c *Controller) write(ids ...Identity) { c.writeAfter(0, ids...) }

func (c *Controller) writeAfter(wait time.Duration, ids ...Identity) {
	if w := c.term(); w != nil && len(ids) > 0 {
		w.AddAfter(wait, ids...)
	}
}

// term returns the writer; nil: another replica leads.
func (c *Controller) term() *keep.Writer[Identity] {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.writer
}

// everything has all sets compared. It waits for no remote.
func (c *Controller) everything() {
	for _, r := range c.remotes {
		r.tell(nil, true)
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

// Watches returns the tasks that know what is there, which every replica runs.
func (c *Controller) Watches() []run.Task {
	tasks := []run.Task{c.sets, c.loop, fullResync{period: c.FullResyncPeriod, renew: func() {
		c.sets.Renew()
		c.everything()
	}}}
	for _, r := range c.remotes {
		tasks = append(tasks, r.pods, r.server, r.loop)
	}
	return tasks
}

// Lead writes network sets until ctx ends. Only one replica may be in it.
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
		// It never fails, other than its passes.
		wg.Go(func() { _ = reconcile.NewLoop(events).Run(ctx) })
	}
	return writer.Run(ctx)
}

func (c *Controller) lead(w *keep.Writer[Identity]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writer = w
}

// spacing is how long a set rests after it was written.
func (c *Controller) spacing(id Identity) time.Duration {
	if r := c.remotes[id.Cluster]; r != nil {
		return r.pace.next(id, time.Now())
	}
	return 0
}

// observe counts how long sets took from being noticed to being written.
func (c *Controller) observe(o keep.Outcome[Identity]) {
	if r := c.remotes[o.Tenant]; r != nil && r.pace.any(o.Key) && o.Err == nil {
		c.Metrics.delays.WithLabelValues(o.Tenant).Observe(time.Since(o.Since).Seconds())
	}
}

// Ready returns nil when this replica may write what it knows: a remote that can't be
// reached isn't waited for. Status tells of it.
func (c *Controller) Ready() error {
	if !c.known.Load() {
		return fmt.Errorf("network sets not read since start: %w", orWaiting(c.sets.Err()))
	}
	return nil
}

// errWaiting stands for the error of a request that has not been answered yet.
var errWaiting = errors.New("waiting for an answer")

func orWaiting(err error) error {
	if err == nil {
		return errWaiting
	}
	return err
}

// Health returns nil while the loops turn.
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

// fullResync reads something anew from time to time.
type fullResync struct {
	period time.Duration
	renew  func()
}

// String names the task.
func (f fullResync) String() string { return "full resync" }

// Run works until ctx ends.
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
