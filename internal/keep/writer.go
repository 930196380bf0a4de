package keep

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/client-go/util/workqueue"
)

// Apply reconciles the objects of a key. It compares the desired and the observed state
// when it is called, not when the key was added, so that it neither writes what is no
// longer desired nor repeats writes after a failure.
//
//   - Calls for one key don't overlap; calls for different keys do.
//   - It may be called without a difference. Then it writes nothing.
//   - After an error it is called again with back-off, also if the key is added again
//     meanwhile, except by AddNow.
//   - If a key has several objects, it continues after a failure, and joins the errors: a
//     failed addition doesn't block a removal.
//   - An error that wraps [ErrOutdated] means that the observed state was outdated, and has
//     been updated: it is retried soon, and isn't a failure unless it is repeated.
//   - An error that wraps [ErrWaits] means that what is left to write waits for its turn, after
//     which the caller adds the key again: it is pending until then, and isn't a failure.
//   - ctx has the deadline WriterConfig.Timeout, and ends with Run's context. Apply returns
//     soon after that. Errors after the end of Run's context are ignored.
type Apply[K comparable] func(ctx context.Context, key K) error

// ErrOutdated is wrapped by errors of Apply when the observed state was outdated.
var ErrOutdated = errors.New("object has changed meanwhile")

// ErrWaits is wrapped by errors of Apply when writes of the key wait for a pace.Pacer.
var ErrWaits = errors.New("waits for its turn to be written")

// maxStaleRetries is the number of consecutive ErrOutdated that aren't a failure.
const maxStaleRetries = 4

// Defaults of a WriterConfig.
const (
	DefaultWorkers       = 8
	DefaultTimeout       = 30 * time.Second
	DefaultShortestRetry = 500 * time.Millisecond
	DefaultLongestRetry  = time.Minute
	DefaultRetryRate     = rate.Limit(50)
	DefaultStuckAfter    = 2 * time.Minute
)

// WriterConfig describes a Writer. Only Name, Apply and Logger are required.
type WriterConfig[K comparable] struct {
	// Name is the name of the objects in logs, such as "network sets".
	Name  string
	Apply Apply[K]
	// Tenant returns the tenant of a key, usually the remote's name. Tenants don't share
	// workers: the keys of one never wait for those of another. It is called when a job is
	// created. Nil: a single tenant.
	Tenant func(K) string
	// Workers is the number of concurrent calls per tenant; 0: DefaultWorkers.
	Workers int
	// Spacing returns the minimum time between the starts of two calls for a key. It is
	// called after each Apply and Observe. Nil: 0.
	Spacing func(K) time.Duration
	// Timeout is that of one Apply; 0: DefaultTimeout.
	Timeout time.Duration
	// RetryMin and RetryMax bound the back-off, which doubles; 0: DefaultShortestRetry and
	// DefaultLongestRetry. RetryRate is the maximum rate of retries per tenant and second; 0:
	// DefaultRetryRate.
	RetryMin, RetryMax time.Duration
	RetryRate          rate.Limit
	// StuckAfter is the duration of one Apply after which Stuck returns an error; 0:
	// DefaultStuckAfter.
	StuckAfter time.Duration
	// Observe, if set, is called with the outcome of each Apply, without a lock and before
	// the next call for that key.
	Observe func(Outcome[K])
	Logger  *slog.Logger
}

// Outcome is the outcome of one Apply.
type Outcome[K comparable] struct {
	Key    K
	Tenant string
	// Since is when the key was first added after its last success.
	Since time.Time
	// Waited is the time since the key was due, without spacing and back-off.
	Waited, Took time.Duration
	Err          error
}

// Writer calls Apply for added keys. It is for one term of a leader: Run is called once.
//
// Its queues are client-go's workqueue. A job has what that lacks: the end of a key's
// back-off and spacing, before which Add doesn't queue it, since when it differs, and its
// last error. The queues have no metrics provider, because it would need a name per tenant.
type Writer[K comparable] struct {
	cfg     WriterConfig[K]
	workers sync.WaitGroup

	mu      sync.Mutex
	jobs    map[K]*job[K]
	tenants map[string]*tenant[K]
	start   func(*tenant[K]) // starts workers; nil: before Run
	ended   bool
}

// NewWriter returns a writer. Keys may be added before Run, which must be called then.
func NewWriter[K comparable](cfg WriterConfig[K]) *Writer[K] {
	if cfg.Tenant == nil {
		cfg.Tenant = func(K) string { return "" }
	}
	if cfg.Workers <= 0 {
		cfg.Workers = DefaultWorkers
	}
	if cfg.Spacing == nil {
		cfg.Spacing = func(K) time.Duration { return 0 }
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = DefaultTimeout
	}
	if cfg.RetryMin <= 0 {
		cfg.RetryMin = DefaultShortestRetry
	}
	if cfg.RetryMax <= 0 {
		cfg.RetryMax = DefaultLongestRetry
	}
	if cfg.RetryRate <= 0 {
		cfg.RetryRate = DefaultRetryRate
	}
	if cfg.StuckAfter <= 0 {
		cfg.StuckAfter = DefaultStuckAfter
	}
	if cfg.Observe == nil {
		cfg.Observe = func(Outcome[K]) {}
	}
	return &Writer[K]{cfg: cfg, jobs: map[K]*job[K]{}, tenants: map[string]*tenant[K]{}}
}

// Add schedules Apply for keys, after spacing and back-off. A key whose Apply is running is
// scheduled again after it.
func (w *Writer[K]) Add(keys ...K) { w.add(0, false, keys) }

// AddAfter schedules Apply for keys after a wait, or earlier if they are added again.
func (w *Writer[K]) AddAfter(wait time.Duration, keys ...K) { w.add(wait, false, keys) }

// AddNow schedules Apply for keys after spacing, without a wait for the end of a back-off: what
// they must remove isn't what has failed. If Apply fails again, the back-off continues.
func (w *Writer[K]) AddNow(keys ...K) { w.add(0, true, keys) }

func (w *Writer[K]) add(wait time.Duration, now bool, keys []K) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return
	}
	due := time.Now().Add(wait)
	for _, key := range keys {
		j := w.jobs[key]
		if j == nil {
			j = &job[K]{tenant: w.tenant(w.cfg.Tenant(key))}
			w.jobs[key] = j
		}
		j.ask(due)
		if now {
			j.earliest, j.now = j.spaced, !j.started.IsZero()
		}
		if j.started.IsZero() {
			j.enqueue(key)
		}
	}
}

// tenant is called with mu held.
func (w *Writer[K]) tenant(name string) *tenant[K] {
	t := w.tenants[name]
	if t == nil {
		t = newTenant(name, &w.cfg)
		w.tenants[name] = t
		if w.start != nil {
			w.start(t)
		}
	}
	return t
}

// Run calls Apply until ctx ends, and returns when all calls have returned. It must not be
// called twice.
func (w *Writer[K]) Run(ctx context.Context) error {
	w.mu.Lock()
	w.start = func(t *tenant[K]) {
		for range w.cfg.Workers {
			w.workers.Go(func() { w.work(ctx, t.queue) })
		}
	}
	for _, t := range w.tenants {
		w.start(t)
	}
	w.mu.Unlock()
	<-ctx.Done()
	w.mu.Lock()
	w.ended = true
	for _, t := range w.tenants {
		t.queue.ShutDown()
	}
	w.mu.Unlock()
	w.workers.Wait()
	return nil
}

func (w *Writer[K]) work(ctx context.Context, queue workqueue.TypedDelayingInterface[K]) {
	for {
		key, ended := queue.Get()
		if ended {
			return
		}
		if j := w.begin(key); j != nil {
			w.run(ctx, key, j)
		}
		queue.Done(key)
	}
}

// begin returns the job to run for a key; nil: none.
func (w *Writer[K]) begin(key K) *job[K] {
	w.mu.Lock()
	defer w.mu.Unlock()
	j, now := w.jobs[key], time.Now()
	if w.ended || j == nil || !j.started.IsZero() {
		return nil
	}
	switch due := j.due(); {
	case due.After(now): // It was queued before spacing or back-off began.
		j.enqueue(key)
		return nil
	case j.asked.IsZero() && j.waits:
		return nil
	case j.asked.IsZero(): // Its spacing is over, and it wasn't added again.
		delete(w.jobs, key)
		return nil
	default:
		j.started, j.waited, j.asked, j.waits = now, now.Sub(due), time.Time{}, false
		return j
	}
}

func (w *Writer[K]) run(ctx context.Context, key K, j *job[K]) {
	bounded, cancel := context.WithTimeout(ctx, w.cfg.Timeout)
	err := w.cfg.Apply(bounded, key)
	cancel()
	// After ctx has ended, errors are most likely caused by that.
	counts := ctx.Err() == nil
	if counts {
		w.cfg.Observe(Outcome[K]{Key: key, Tenant: j.tenant.name, Since: j.since, Waited: j.waited, Took: time.Since(j.started), Err: err})
	}
	spacing := w.cfg.Spacing(key)
	w.mu.Lock()
	defer w.mu.Unlock()
	j.spaced = j.started.Add(spacing)
	j.earliest, j.started = j.spaced, time.Time{}
	if counts {
		j.finish(ctx, key, err)
		j.enqueue(key)
	}
}
