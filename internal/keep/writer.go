package keep

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/kube-semaphore/kube-semaphore/internal/errlog"
	"github.com/kube-semaphore/kube-semaphore/internal/reconcile"
)

// Apply reconciles the objects of a key. It compares the desired and the observed state
// when it is called, not when the key was added, so that it neither writes what is no
// longer desired nor repeats writes after a failure.
//
//   - Calls for one key don't overlap; calls for different keys do.
//   - It may be called without a difference. Then it writes nothing.
//   - After an error it is called again with back-off, also if the key is added again
//     meanwhile.
//   - If a key has several objects, it continues after a failure, and joins the errors: a
//     failed addition doesn't block a removal.
//   - An error that wraps [ErrOutdated] means that the observed state was outdated, and has
//     been updated: it is retried soon, and isn't a failure unless it is repeated.
//   - ctx has the deadline WriterConfig.Timeout, and ends with Run's context. Apply returns
//     soon after that. Errors after the end of Run's context are ignored.
type Apply[K comparable] func(ctx context.Context, key K) error

// ErrOutdated is wrapped by errors of Apply when the observed state was outdated.
var ErrOutdated = errors.New("object has changed meanwhile")

// patience is the number of consecutive ErrOutdated that aren't a failure.
const patience = 4

// quiet is the minimum interval between two logged errors of one kind.
const quiet = time.Minute

// Defaults of a WriterConfig.
const (
	DefaultWorkers    = 8
	DefaultTimeout    = 30 * time.Second
	DefaultRetryRate  = rate.Limit(50)
	DefaultStuckAfter = 2 * time.Minute
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
	// Workers is the number of concurrent calls per tenant. Keys whose last call failed
	// have half as many workers of their own, so that slow failures don't block other
	// keys. 0: DefaultWorkers.
	Workers int
	// Spacing returns the minimum time between the starts of two calls for a key. It is
	// called after each Apply and Observe. Nil: 0.
	Spacing func(K) time.Duration
	// Timeout is that of one Apply; 0: DefaultTimeout.
	Timeout time.Duration
	// RetryMin and RetryMax bound the back-off; 0: those of reconcile.Backoff. RetryRate
	// is the maximum rate of retries per tenant and second; 0: DefaultRetryRate.
	RetryMin, RetryMax time.Duration
	RetryRate          rate.Limit
	// StuckAfter is the duration of one Apply after which Stuck returns an error; 0:
	// DefaultStuckAfter.
	StuckAfter time.Duration
	// Kind returns the kind of an error. The first and the last error of a kind are logged.
	// Nil: the reason of Kubernetes' API errors.
	Kind func(error) string
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
	// Failures is the number of consecutive failures, including this one.
	Failures int
}

// Writer calls Apply for added keys. It is for one term of a leader: Run is called once.
type Writer[K comparable] struct {
	cfg  WriterConfig[K]
	wake chan struct{} // one slot

	mu      sync.Mutex
	seq     uint64
	jobs    map[K]*job[K]
	tenants map[string]*tenant[K]
	ended   bool
}

// NewWriter returns a writer. Keys may be added before Run.
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
	if cfg.RetryRate <= 0 {
		cfg.RetryRate = DefaultRetryRate
	}
	if cfg.StuckAfter <= 0 {
		cfg.StuckAfter = DefaultStuckAfter
	}
	if cfg.Kind == nil {
		cfg.Kind = reason
	}
	if cfg.Observe == nil {
		cfg.Observe = func(Outcome[K]) {}
	}
	return &Writer[K]{cfg: cfg, wake: make(chan struct{}, 1), jobs: map[K]*job[K]{}, tenants: map[string]*tenant[K]{}}
}

// Add schedules Apply for keys, after spacing and back-off. A key whose Apply is running is
// scheduled again after it.
func (w *Writer[K]) Add(keys ...K) { w.AddAfter(0, keys...) }

// AddAfter schedules Apply for keys after a wait, or earlier if they are added again.
func (w *Writer[K]) AddAfter(wait time.Duration, keys ...K) {
	now := time.Now()
	w.mu.Lock()
	for _, key := range keys {
		j := w.jobs[key]
		if j == nil {
			j = &job[K]{key: key, tenant: w.tenant(w.cfg.Tenant(key)), at: -1, backoff: reconcile.Backoff{Min: w.cfg.RetryMin, Max: w.cfg.RetryMax}}
			w.jobs[key] = j
		}
		w.ask(j, now.Add(wait))
	}
	w.mu.Unlock()
	w.nudge()
}

func (w *Writer[K]) nudge() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// tenant is called with mu held.
func (w *Writer[K]) tenant(name string) *tenant[K] {
	t := w.tenants[name]
	if t == nil {
		t = &tenant[K]{
			name: name, retries: rate.NewLimiter(w.cfg.RetryRate, max(1, int(w.cfg.RetryRate))), kinds: map[string]int{},
			failureLog: errlog.Log{
				Logger: w.cfg.Logger.With("writes", w.cfg.Name, "cluster", name), Level: slog.LevelError, Quiet: quiet,
				Failing: "write failed", Over: "writes recovered",
				Kind: func(error) string { return "" }, // the key is the kind
			},
		}
		t.healthy.workers, t.failing.workers = w.cfg.Workers, max(1, w.cfg.Workers/2)
		w.tenants[name] = t
	}
	return t
}

// ask schedules a job. Callers hold mu.
func (w *Writer[K]) ask(j *job[K], due time.Time) {
	if j.asked.IsZero() || due.Before(j.asked) {
		j.asked = due
	}
	if j.since.IsZero() || due.Before(j.since) {
		j.since = due
	}
	if !j.running {
		w.queue(j)
	}
}

// queue puts a job into the queue of its lane. Callers hold mu.
func (w *Writer[K]) queue(j *job[K]) {
	if j.at >= 0 {
		j.lane.remove(j)
	} else {
		w.seq++
		j.seq = w.seq
	}
	j.due = j.earliest
	if j.asked.After(j.due) {
		j.due = j.asked
	}
	l := &j.tenant.healthy
	if j.failures > 0 {
		l = &j.tenant.failing
	}
	l.put(j)
}

// Run calls Apply until ctx ends, and returns when all calls have returned. It must not be
// called twice.
func (w *Writer[K]) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.ended = true
	}()
	idle := make(chan *job[K]) // to idle workers
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.wake:
		case <-timer.C:
		}
		now := time.Now()
		jobs, next := w.take(now)
		for _, j := range jobs {
			select {
			case idle <- j:
			default:
				running.Go(func() { w.work(ctx, j, idle) })
			}
		}
		if !next.IsZero() {
			timer.Reset(next.Sub(now))
		}
	}
}

// take returns the jobs to start now, and when the next one is due. The zero time is never.
func (w *Writer[K]) take(now time.Time) (start []*job[K], next time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.tenants {
		for _, l := range []*lane[K]{&t.healthy, &t.failing} {
			for len(l.waiting) > 0 && l.running < l.workers {
				j := l.waiting[0]
				if j.due.After(now) {
					if next.IsZero() || j.due.Before(next) {
						next = j.due
					}
					break
				}
				l.remove(j)
				if j.asked.IsZero() {
					// Its spacing is over, and it wasn't added again.
					delete(w.jobs, j.key)
					continue
				}
				l.running++
				j.running, j.started, j.waited, j.asked = true, now, now.Sub(j.due), time.Time{}
				start = append(start, j)
			}
		}
	}
	return start, next
}

// work runs a job, and further ones until ctx ends: a request needs more stack than a new
// goroutine has, and growing it each time costs more than much of the work.
func (w *Writer[K]) work(ctx context.Context, j *job[K], next <-chan *job[K]) {
	for {
		w.run(ctx, j)
		select {
		case <-ctx.Done():
			return
		case j = <-next:
		}
	}
}

func (w *Writer[K]) run(ctx context.Context, j *job[K]) {
	bounded, cancel := context.WithTimeout(ctx, w.cfg.Timeout)
	err := w.cfg.Apply(bounded, j.key)
	cancel()
	// After ctx has ended, errors are most likely caused by that.
	counts := ctx.Err() == nil
	if counts {
		outcome := Outcome[K]{Key: j.key, Tenant: j.tenant.name, Since: j.since, Waited: j.waited, Took: time.Since(j.started), Err: err}
		if err != nil {
			outcome.Failures = j.failures + 1
		}
		w.cfg.Observe(outcome)
	}
	spacing := w.cfg.Spacing(j.key)
	w.mu.Lock()
	j.lane.running--
	j.running = false
	if counts {
		w.finish(ctx, j, err, spacing)
	}
	w.mu.Unlock()
	w.nudge()
}

// finish schedules the next run of a job. Callers hold mu.
func (w *Writer[K]) finish(ctx context.Context, j *job[K], err error, spacing time.Duration) {
	now := time.Now()
	j.earliest = j.started.Add(spacing)
	before := j.kind
	j.kind = ""
	if err == nil {
		j.err, j.failures, j.since = nil, 0, j.asked
		j.backoff.Reset()
	} else {
		j.failures++
		wait := max(j.backoff.Next(), j.tenant.retries.ReserveN(now, 1).DelayFrom(now))
		if again := now.Add(wait); again.After(j.earliest) {
			j.earliest = again
		}
		if j.asked.IsZero() || j.earliest.Before(j.asked) {
			j.asked = j.earliest
		}
		if !errors.Is(err, ErrOutdated) || j.failures > patience {
			j.err, j.kind = err, w.cfg.Kind(err)
		}
	}
	j.tenant.note(ctx, before, j, err)
	w.queue(j)
}
