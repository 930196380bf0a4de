package kube

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/kube-semaphore/kube-semaphore/internal/errlog"
	"github.com/kube-semaphore/kube-semaphore/internal/run"
)

// WatchConfig describes a Watch. Server, Equal, Notify, Bounds and Metrics may
// be left zero.
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
	// changed. It must not block.
	Notify func()
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
	full    errlog.Log    // when objects are rejected
	warned  atomic.Int64  // of dropped objects, in Unix seconds
	relist  time.Duration // see relistPeriod
	silence time.Duration // see bookmarkPeriod
	// current has lists be as new as what is in etcd, where an API server may
	// otherwise answer from a cache, however old. Everything is read anew when the
	// server was away: it may have been restored from a backup.
	current bool

	mu   sync.Mutex
	turn uint64             // how often everything is to be read anew
	stop context.CancelFunc // ends the turn that runs
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
	w := &Watch[T]{cfg: cfg, series: cfg.Metrics.series(cfg.Cluster, cfg.Kind), relist: relistPeriod, silence: bookmarkPeriod, stop: func() {}}
	w.contact = newContact(cfg.Server, w.series, cfg.Logger)
	w.full = errlog.Log{
		Logger: cfg.Logger, Level: slog.LevelWarn, Failing: "too many objects", Over: "there is room for all objects again",
		Kind: func(error) string { return "" }, // one line, however many
	}
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
	for ctx.Err() == nil {
		w.follow(ctx)
	}
	return nil
}

// follow lists and watches until ctx ends or renew is called.
func (w *Watch[T]) follow(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w.mu.Lock()
	w.stop = cancel
	w.store.begins(w.turn)
	w.mu.Unlock()
	// What client-go has to say repeats what contact says once.
	logger := run.ClientLog(w.cfg.Logger)
	requests := observe(w.cfg.ListWatch, w.contact)
	requests.bounded = newBounded(w.cfg.Object, w.store.room.objects, w.store.begin, w.dropped, w.store.take)
	requests.missing, requests.period = w.store.missing, w.relist
	requests.current, requests.silence = w.current, w.silence
	defer requests.end()
	reflector := cache.NewReflectorWithOptions(requests, w.cfg.Object, w.store, cache.ReflectorOptions{
		Name:    w.String(),
		Logger:  &logger,
		Clock:   interruptible(ctx, w.cfg.Server),
		Backoff: retries(),
	})
	// As its RunWithContext does, whose waits can't be ended.
	ctx = klog.NewContext(ctx, logger)
	waits, wait := interruptible(ctx, w.cfg.Server), retries().DelayWithReset(clock.RealClock{}, retriesForgotten)
	for ctx.Err() == nil {
		_ = reflector.ListAndWatchWithContext(ctx) // contact has told why it ended.
		<-waits.After(wait())
	}
}

// renew has everything read anew. What is known stays until then. It returns the
// number of the turn that does it.
func (w *Watch[T]) renew() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.turn++
	w.stop()
	return w.turn
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

// Len returns how many objects there are.
func (w *Watch[T]) Len() int { return w.store.len() }

// Synced reports whether all objects have been read since start. It stays so
// when contact is lost.
func (w *Watch[T]) Synced() bool { return w.store.isSynced() }

// LastContact returns up to when the watch knows what the API server does. While
// it is open, that is when the server last answered any of the watches that
// share WatchConfig.Server, or gave a sign of life; otherwise when it last
// answered this one with a complete list, the start of a watch, an event or a
// bookmark, which it sends about once a minute when nothing happens. Other answers,
// such as that the watch can't go on from where it was, don't count. Zero: never.
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
		w.cfg.Logger.Info("synced", "objects", w.store.len())
	}
	w.cfg.Notify()
}

// Crowded returns what is rejected for the sake of Bounds; nil: nothing.
func (w *Watch[T]) Crowded() error { return w.tooMany(w.store.rejected()) }

func (w *Watch[T]) tooMany(rejected int) error {
	if rejected == 0 {
		return nil
	}
	return fmt.Errorf("%d %s or more are rejected: there is room for %d, and for %d bytes of them",
		rejected, w.cfg.Kind, w.store.room.objects, w.store.room.bytes)
}

// crowded is called when the number of objects that are rejected has changed.
func (w *Watch[T]) crowded(rejected int) {
	w.series.rejected.Set(float64(rejected))
	w.full.Note(context.Background(), w.tooMany(rejected))
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
