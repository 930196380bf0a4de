package policy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	calico "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-semaphore/kube-semaphore/internal/event"
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

// shared is what the remotes have in common.
type shared struct {
	Config
	ledger *ledger
}

// Controller keeps the network sets of all remotes.
type Controller struct {
	shared  shared
	sets    *source[Observed]
	remotes []*remote
	strays  *reconcile.Trigger

	mu       sync.Mutex
	reported []string // clusters of strays, as logged last
}

// New returns a controller. It makes no request.
func New(cfg Config) *Controller {
	c := &Controller{shared: shared{Config: cfg}, strays: reconcile.NewTrigger()}
	c.shared.ledger = newLedger(func() ([]Observed, bool) { return c.sets.Snapshot() })
	c.sets = newSource("network sets", c.setsChanged, func(notify func()) *kube.Watch[Observed] {
		return kube.NewWatch(kube.WatchConfig[Observed]{
			Cluster: cfg.Cluster, Kind: networkSets, Object: &calico.GlobalNetworkSet{},
			ListWatch: kube.ListWatch(cfg.Calico.resource, nil),
			Keep: func(obj runtime.Object) (Observed, bool) {
				set, ok := obj.(*calico.GlobalNetworkSet)
				if !ok {
					return Observed{}, false
				}
				o := cfg.Labels.observe(set)
				c.shared.ledger.shown(&o)
				return o, true
			},
			Equal: Observed.equal, Notify: notify,
			Logger: cfg.Logger, Metrics: cfg.Watches,
		})
	})
	for i := range cfg.Remotes {
		c.remotes = append(c.remotes, newRemote(cfg.Remotes[i], &c.shared))
	}
	return c
}

// setsChanged lets all remotes look: a set of theirs may have been edited, or a
// name may have become free.
func (c *Controller) setsChanged() {
	c.shared.ledger.settled()
	c.strays.Fire()
	for _, r := range c.remotes {
		r.trigger.Fire()
	}
}

// Watches returns the tasks that keep the caches, which every replica runs.
func (c *Controller) Watches() []run.Task {
	tasks := []run.Task{c.sets, fullResync{period: c.shared.FullResyncPeriod, renew: c.sets.Renew}}
	for _, r := range c.remotes {
		tasks = append(tasks, r.pods, r.server)
	}
	return tasks
}

// Lead writes network sets until ctx ends. Only one replica may be in it.
func (c *Controller) Lead(ctx context.Context) error {
	var wg sync.WaitGroup
	strays := reconcile.NewLoop(reconcile.Config{
		Name: "strays", Reconcile: c.reportStrays, Trigger: c.strays,
		MinInterval: time.Second, Logger: c.shared.Logger,
	})
	errs := make([]error, len(c.remotes)+1)
	wg.Go(func() { errs[len(c.remotes)] = strays.Run(ctx) })
	if c.shared.Events != nil {
		events := c.shared.Events.Loop(c.conditions)
		events.Logger = c.shared.Logger
		// It never fails, other than its passes.
		wg.Go(func() { _ = reconcile.NewLoop(events).Run(ctx) })
	}
	for i, r := range c.remotes {
		wg.Go(func() { errs[i] = r.lead(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// reportStrays logs clusters that aren't configured but have sets with our
// mark. They may belong to a remote that was taken out of the configuration, or
// to another process with the same mark, so that they aren't touched.
func (c *Controller) reportStrays(ctx context.Context) error {
	known := c.shared.ledger.view()
	if !known.synced {
		return nil
	}
	counts := c.strayCounts(known.sets)
	clusters := make([]string, 0, len(counts))
	for name := range counts {
		clusters = append(clusters, name)
	}
	slices.Sort(clusters)
	c.mu.Lock()
	news := !slices.Equal(clusters, c.reported)
	c.reported = clusters
	c.mu.Unlock()
	if news && len(clusters) > 0 {
		c.shared.Logger.WarnContext(ctx, "network sets of clusters that are not configured are left alone", "clusters", clusters)
	}
	return nil
}

// strayCounts counts sets with our mark of clusters that aren't configured.
func (c *Controller) strayCounts(sets map[string]Observed) map[string]int {
	counts := map[string]int{}
	for _, o := range sets {
		if o.Owned && !slices.ContainsFunc(c.remotes, func(r *remote) bool { return o.of(r.Rules.Cluster) }) {
			counts[o.Identity.Cluster]++
		}
	}
	return counts
}

// Ready returns nil when the sets of all remotes can be relied upon.
func (c *Controller) Ready() error {
	known := c.shared.ledger.view()
	if !known.synced {
		return fmt.Errorf("network sets not read since start: %w", orWaiting(c.sets.Err()))
	}
	var errs []error
	for _, r := range c.remotes {
		errs = append(errs, r.ready(known.sets))
	}
	return errors.Join(errs...)
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
	var errs []error
	for _, r := range c.remotes {
		if _, t := r.current(); t != nil {
			errs = append(errs, t.loop.Stuck())
		}
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
