package kube

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/kube-semaphore/kube-semaphore/internal/clientlog"
)

// WatchConfig describes a Watch. Server, Equal, Notify, ResyncPeriod, Bounds and Metrics
// may be left zero.
type WatchConfig[T any] struct {
	// Cluster and Kind name the watch in logs and metrics, as in "gcp" and
	// "nodes".
	Cluster, Kind string
	// Server is shared by the watches of one API server; nil: the watch has
	// nothing in common with others.
	Server *Server
	// ListWatch reads objects of the kind.
	ListWatch cache.ListerWatcher
	// Object is one of them, as in &corev1.Node{}.
	Object runtime.Object
	// Keep makes of an object what is worth keeping of it; false drops it.
	// What it returns must not hold on to the object. It is called from one
	// goroutine at a time, and without a lock.
	Keep func(obj runtime.Object) (T, bool)
	// Equal says that two states of an object don't differ, so that nobody
	// needs to know that it was updated: nodes report that they are alive
	// every few seconds. Nil: every update counts.
	Equal func(a, b T) bool
	// Notify is called, without a lock, after what Snapshot returns has
	// changed, and every ResyncPeriod. It must not block.
	Notify func()
	// ResyncPeriod is how often to notify without a change; 0: never.
	ResyncPeriod time.Duration
	// Bounds are those of a remote, which its client must have, too. What is
	// beyond is rejected: what was kept first stays.
	Bounds Bounds
	// Logger is given the cluster and the kind along with what is logged.
	Logger *slog.Logger
	// Metrics is shared by the watches of a program.
	Metrics *Metrics
}

// Watch keeps a copy of all objects of one kind of one cluster, trimmed to
// what the caller reads of them. It outlives any failure of the cluster: what
// was last known stays, and requests are repeated with back-off.
type Watch[T any] struct {
	cfg     WatchConfig[T]
	store   *store[T]
	contact *contact
	series  *series
	running atomic.Bool
	warned  atomic.Int64  // of dropped objects, in Unix seconds
	relist  time.Duration // see relistPeriod
}

// NewWatch returns a watch that is empty and not synced until Run has read
// all objects.
func NewWatch[T any](cfg WatchConfig[T]) *Watch[T] {
	if cfg.Notify == nil {
		cfg.Notify = func() {}
	}
	if cfg.Server == nil {
		cfg.Server = NewServer(ServerConfig{Cluster: cfg.Cluster})
	}
	cfg.Logger = cfg.Logger.With("cluster", cfg.Cluster, "kind", cfg.Kind)
	w := &Watch[T]{cfg: cfg, series: cfg.Metrics.series(cfg.Cluster, cfg.Kind), relist: relistPeriod}
	w.contact = &contact{server: cfg.Server, series: w.series, log: cfg.Logger}
	w.store = newStore(cfg.Keep, cfg.Equal, w.changed)
	w.store.room = newRoom(cfg.Kind, cfg.Bounds)
	w.store.crowded = w.crowded
	w.store.impossible = w.dropped
	return w
}

// String names the watch as a task.
func (w *Watch[T]) String() string { return "watch " + w.cfg.Kind + " of " + w.cfg.Cluster }

// Run lists and watches until ctx ends, which is not an error: it returns nil,
// and never before. It must not be called twice.
func (w *Watch[T]) Run(ctx context.Context) error {
	if w.running.Swap(true) {
		return fmt.Errorf("%v runs already", w)
	}
	// What client-go has to say repeats what contact says once.
	logger := clientlog.New(w.cfg.Logger)
	requests := observe(w.cfg.ListWatch, w.contact)
	requests.bounded = newBounded(w.cfg.Object, w.store.room.objects, w.store.begin, w.dropped, w.store.take)
	requests.missing, requests.period = w.store.missing, w.relist
	reflector := cache.NewReflectorWithOptions(requests, w.cfg.Object, w.store, cache.ReflectorOptions{
		Name:    w.String(),
		Logger:  &logger,
		Clock:   interruptible(ctx, w.cfg.Server),
		Backoff: retries(),
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		// As its RunWithContext does, whose waits can't be ended.
		ctx := klog.NewContext(ctx, logger)
		waits, wait := interruptible(ctx, w.cfg.Server), retries().DelayWithReset(clock.RealClock{}, retriesForgotten)
		for ctx.Err() == nil {
			_ = reflector.ListAndWatchWithContext(ctx) // contact has told why it ended.
			<-waits.After(wait())
		}
	}()
	if w.cfg.ResyncPeriod > 0 {
		ticker := time.NewTicker(w.cfg.ResyncPeriod)
		defer ticker.Stop()
		for ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-ticker.C:
				w.cfg.Notify()
			}
		}
	}
	<-done
	return nil
}

// retriesForgotten is how long after a request the wait for the next one is the first
// one again.
const retriesForgotten = 2 * time.Minute

// retries are the waits between requests that fail: from 0.8 to 1.6 s at first,
// from 15 to 30 s in the end, so that a cluster that comes back is noticed
// within half a minute.
func retries() *wait.Backoff {
	return &wait.Backoff{Duration: 800 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 20, Cap: 15 * time.Second}
}

// Snapshot returns all objects, in no order and in a slice of their own, and
// whether they are complete: until the first sync since start there are none,
// which says nothing about the cluster.
func (w *Watch[T]) Snapshot() ([]T, bool) { return w.store.snapshot() }

// Synced reports whether all objects have been read since start. It stays so
// when contact is lost.
func (w *Watch[T]) Synced() bool { return w.store.isSynced() }

// LastContact returns up to when the watch knows what the API server does. While
// it is open, that is when the server last answered any of the watches that
// share WatchConfig.Server, or gave a sign of life; otherwise when it last
// answered this one with a list, the start of a watch, an event or a bookmark,
// which it sends about once a minute when nothing happens. Zero: never.
func (w *Watch[T]) LastContact() time.Time {
	last, _ := w.contact.state()
	return last
}

// Err returns why the last request failed; nil when it didn't.
func (w *Watch[T]) Err() error {
	_, err := w.contact.state()
	return err
}

// changed is called after the store has.
func (w *Watch[T]) changed(firstSync bool) {
	if firstSync {
		w.series.synced.Set(1)
		// An earlier watch may have left another number.
		w.series.rejected.Set(float64(w.store.rejected()))
		objects, _ := w.store.snapshot()
		w.cfg.Logger.Info("synced", "objects", len(objects))
	}
	w.cfg.Notify()
}

// Crowded returns what is rejected for the sake of Bounds; nil: nothing.
func (w *Watch[T]) Crowded() error {
	if n := w.store.rejected(); n > 0 {
		return w.tooMany(n)
	}
	return nil
}

func (w *Watch[T]) tooMany(rejected int) error {
	return fmt.Errorf("%d %s or more are rejected: there is room for %d, and for %d bytes of them",
		rejected, w.cfg.Kind, w.store.room.objects, w.store.room.bytes)
}

// crowded is called when the number of objects that are rejected has changed.
func (w *Watch[T]) crowded(before, now int) {
	w.series.rejected.Set(float64(now))
	switch {
	case before == 0:
		w.cfg.Logger.Warn("too many objects", "err", w.tooMany(now))
	case now == 0:
		w.cfg.Logger.Info("there is room for all objects again")
	}
}

// dropped is called for each object that is left out because it is too large, or
// has a name that none can have.
func (w *Watch[T]) dropped() {
	w.series.dropped.Inc()
	now, last := time.Now().Unix(), w.warned.Load()
	if now-last >= int64(quietPeriod.Seconds()) && w.warned.CompareAndSwap(last, now) {
		w.cfg.Logger.Warn("left out an object that can't be decoded within bounds, or has an impossible name")
	}
}
