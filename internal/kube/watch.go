package kube

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/kube-semaphore/kube-semaphore/internal/errlog"
	"github.com/kube-semaphore/kube-semaphore/internal/run"
)

// WatchConfig describes a Watch. Server, Equal, Count, Notify, Bounds and Metrics
// may be left zero, and one of ListWatch and Reader.
type WatchConfig[T any] struct {
	// Cluster and Kind name the watch in logs and metrics, such as "gcp" and "nodes".
	Cluster, Kind string
	// Server is shared by the watches of one API server; nil: no shared Server.
	Server *Server
	// ListWatch reads objects of the kind, Reader those of a cluster that isn't trusted.
	ListWatch cache.ListerWatcher
	Reader    *Reader
	// Keep trims an object, or drops it by returning false. Its result must not reference
	// the object. It is called from one goroutine at a time, without a lock.
	Keep func(obj runtime.Object) (T, bool)
	// Equal reports whether two states of an object are equal, so that updates such as
	// heartbeats of nodes cause no change. Nil: every update is a change.
	Equal func(a, b T) bool
	// Count is called with the type of each event of the API server; nil: not called.
	Count func(watch.EventType)
	// Notify is called, without a lock, after the result of Snapshot has changed. It must
	// not block.
	Notify func()
	// Spread returns the time over which all lists but the first are spread, so that many
	// clients don't list at once after a restart of their API server; nil: no such time. It
	// doesn't delay a watch that continues from its last version, nor what Renew requests.
	Spread func() time.Duration
	// Bounds are those of a remote, whose client must have them as well. Objects beyond
	// them are rejected; accepted ones stay.
	Bounds Bounds
	Logger *slog.Logger
	// Metrics is shared by the watches of a program.
	Metrics *Metrics
}

// Watch caches all objects of one kind of one cluster, trimmed by the caller. It survives
// any failure of the cluster: the last known objects stay, and requests are retried with
// back-off.
type Watch[T any] struct {
	cfg     WatchConfig[T]
	store   *store[T]
	health  *health
	series  *series
	running atomic.Bool
	full    errlog.Log    // rejected objects
	warned  atomic.Int64  // last warning of dropped objects, in Unix seconds
	relist  time.Duration // see relistPeriod
	// quorum makes lists quorum reads, where API servers may otherwise respond from a stale
	// cache.
	quorum bool
	// unstreamed is set where streamed lists aren't to be tried.
	unstreamed bool

	mu   sync.Mutex
	stop context.CancelFunc // ends follow
}

// NewWatch returns a watch that is empty and not synced until Run has read
// all objects.
func NewWatch[T any](cfg WatchConfig[T]) *Watch[T] {
	if cfg.Notify == nil {
		cfg.Notify = func() {}
	}
	if cfg.Count == nil {
		cfg.Count = func(watch.EventType) {}
	}
	if cfg.Server == nil {
		cfg.Server = NewServer(ServerConfig{Cluster: cfg.Cluster})
	}
	cfg.Logger = cfg.Logger.With("cluster", cfg.Cluster, "kind", cfg.Kind)
	w := &Watch[T]{cfg: cfg, series: (*Metrics)(nil).series(cfg.Cluster, cfg.Kind), relist: relistPeriod, stop: func() {}}
	w.health = newHealth(cfg.Server, w.series, cfg.Logger)
	w.full = errlog.Log{
		Logger: cfg.Logger, Level: slog.LevelWarn, Failing: "too many objects", Over: "no more objects are rejected",
		Kind: func(error) string { return "" }, Quiet: quietPeriod, // one line, whatever the number
	}
	w.store = newStore(cfg.Equal, newQuota(cfg.Kind, cfg.Bounds), w.changed)
	w.store.rejectedChanged = w.rejectedChanged
	return w
}

// String names the watch as a task.
func (w *Watch[T]) String() string { return "watch " + w.cfg.Kind + " of " + w.cfg.Cluster }

// Run lists and watches until ctx ends, then returns nil. It must not be called twice.
func (w *Watch[T]) Run(ctx context.Context) error {
	if w.running.Swap(true) {
		return fmt.Errorf("%v is already running", w)
	}
	// Not before: a watch that doesn't run, because its API isn't served, isn't unsynced.
	*w.series = *w.cfg.Metrics.series(w.cfg.Cluster, w.cfg.Kind)
	for ctx.Err() == nil {
		w.follow(ctx)
	}
	return nil
}

// follow lists and watches until ctx ends or Renew is called.
func (w *Watch[T]) follow(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w.mu.Lock()
	w.stop = cancel
	w.mu.Unlock()
	// client-go logs each attempt; health logs failures once.
	logger := run.ClientLog(w.cfg.Logger)
	reflector := cache.NewReflectorWithOptions(newRequests(w), nil, w.store, cache.ReflectorOptions{
		Name:    w.String(),
		Logger:  &logger,
		Clock:   endingClock{ctx: ctx},
		Backoff: retries(),
	})
	again := false
	// Reflector.RunWithContext without its handler of errors, which health has logged.
	_ = retries().DelayWithReset(clock.RealClock{}, retriesForgotten).Until(klog.NewContext(ctx, logger), true, true, func(ctx context.Context) (bool, error) {
		if again {
			w.spread(ctx)
		}
		again = true
		_ = reflector.ListAndWatchWithContext(ctx)
		return false, nil
	})
}

// spread waits before another list, for a random part of the configured time.
func (w *Watch[T]) spread(ctx context.Context) {
	if w.cfg.Spread == nil || !w.store.isSynced() {
		return
	}
	over := w.cfg.Spread()
	if over <= 0 {
		return
	}
	select {
	case <-ctx.Done():
	case <-time.After(rand.N(over)):
	}
}

// retriesForgotten is the time without a retry after which the back-off is reset.
const retriesForgotten = 2 * time.Minute

// retries returns the back-off of failed requests: 0.8 to 1.6 s at first, 4 to 8 s in the
// end.
func retries() *wait.Backoff {
	return &wait.Backoff{Duration: 800 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 20, Cap: 4 * time.Second}
}

// Renew lists all objects again at once. The objects stay until the list succeeds.
func (w *Watch[T]) Renew() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stop()
}

// Snapshot returns all objects, in no order and in a new slice, and whether the watch is
// synced: without that, an object that is missing may exist.
func (w *Watch[T]) Snapshot() ([]T, bool) { return w.store.snapshot() }

// Len returns the number of objects.
func (w *Watch[T]) Len() int { return w.store.len() }

// Synced reports whether all objects have been listed since start. It stays true when
// contact is lost.
func (w *Watch[T]) Synced() bool { return w.store.isSynced() }

// LastContact returns up to when the objects are current. While the watch is open, that is
// the last response to any of the watches that share WatchConfig.Server, or to a ping;
// otherwise the last complete list, start of a watch, event or bookmark, which API servers
// send about once a minute. Other responses, such as an expired resource version, don't
// count. Zero: never.
func (w *Watch[T]) LastContact() time.Time {
	last, _ := w.health.state()
	return last
}

// Err returns the error of the last request; nil if it succeeded.
func (w *Watch[T]) Err() error {
	_, err := w.health.state()
	return err
}

// Since returns since when Err returns an error.
func (w *Watch[T]) Since() time.Time { return w.health.failures.Since() }

// changed is called after the store has.
func (w *Watch[T]) changed(firstSync bool) {
	if firstSync {
		w.series.synced.Set(1)
		// The series may have the value of an earlier watch.
		w.series.rejected.Set(float64(w.store.rejected()))
		w.cfg.Logger.Info("synced", "objects", w.store.len())
	}
	w.cfg.Notify()
}

// OverQuota returns an error if objects are rejected because of Bounds.
func (w *Watch[T]) OverQuota() error { return w.tooMany(w.store.rejected()) }

func (w *Watch[T]) tooMany(rejected int) error {
	if rejected == 0 {
		return nil
	}
	half := ", half of that for one namespace"
	if w.cfg.Kind == kindNodes {
		half = ""
	}
	return fmt.Errorf("%d %s or more are rejected: the maximum is %d, of %d bytes%s",
		rejected, w.cfg.Kind, w.store.quota.objects, w.store.quota.bytes, half)
}

// rejectedChanged is called when the number of rejected objects has changed.
func (w *Watch[T]) rejectedChanged(rejected int) {
	w.series.rejected.Set(float64(rejected))
	w.full.Note(context.Background(), w.tooMany(rejected))
}

// dropped is called for each object that is dropped because it is too large, or has an
// invalid name.
func (w *Watch[T]) dropped() {
	w.series.dropped.Inc()
	now, last := time.Now().Unix(), w.warned.Load()
	if now-last >= int64(quietPeriod.Seconds()) && w.warned.CompareAndSwap(last, now) {
		w.cfg.Logger.Warn("dropped an object that can't be decoded within bounds, or has an invalid name")
	}
}
