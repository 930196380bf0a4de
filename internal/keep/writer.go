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

// Apply brings what belongs to a key to what it must be. It looks, at that moment,
// at what is there and at what must be, and makes the difference: what was so when
// the key was added doesn't matter, so that nothing is written which isn't wanted
// any more, and a second call after a failure doesn't repeat the first.
//
//   - It is called for one key at a time, for many keys side by side.
//   - It may be called when there is nothing to do. Then it writes nothing.
//   - It is called again after an error, by and by less often, and when the key is
//     added again, but not before the wait after the error is over.
//   - It goes on past single failures where a key has several objects, and joins
//     the errors: an addition that fails doesn't hold up a removal.
//   - An error that wraps [ErrOutdated] says that what is there isn't what the
//     caller thought, and that it has been noted: it looks again soon, and that is
//     no failure unless it goes on.
//   - ctx has a deadline (WriterConfig.Timeout), and ends with Run's. Apply returns
//     soon after that. What it returns when Run's has ended doesn't count.
type Apply[K comparable] func(ctx context.Context, key K) error

// ErrOutdated is wrapped by errors of Apply that say that an object isn't what it
// was thought to be.
var ErrOutdated = errors.New("object has changed meanwhile")

// patience is how often in a row Apply may return ErrOutdated before that is a
// failure.
const patience = 4

// quiet is the least time between two errors in the log for one reason.
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
	// Name says what is written, as in "network sets".
	Name  string
	Apply Apply[K]
	// Tenant returns whose a key is, as a rule the remote's name. Tenants share
	// nothing: the keys of one never wait for those of another. It is called once
	// for a key as long as there is something to do about it. Nil: all are of one.
	Tenant func(K) string
	// Workers is how many keys of one tenant are written at the same time. Keys
	// that failed last time have half as many workers of their own, so that those
	// that keep failing slowly don't hold up others. 0: DefaultWorkers.
	Workers int
	// Spacing is asked after each Apply, and after Observe, how long after it began
	// the next one of that key may begin. Nil: at once.
	Spacing func(K) time.Duration
	// Timeout is that of one Apply; 0: DefaultTimeout.
	Timeout time.Duration
	// RetryMin and RetryMax bound the waits after failures; 0: those of
	// reconcile.Backoff. RetryRate bounds the retries of one tenant a second; 0:
	// DefaultRetryRate.
	RetryMin, RetryMax time.Duration
	RetryRate          rate.Limit
	// StuckAfter is how long one Apply may take before Stuck says so; 0:
	// DefaultStuckAfter.
	StuckAfter time.Duration
	// Kind says what sort of trouble an error is; a sort is logged when it appears
	// and ends. Nil: the reason that Kubernetes gives for it.
	Kind func(error) string
	// Observe, unless nil, is told how each Apply went, without a lock and before
	// the next one of that key begins.
	Observe func(Outcome[K])
	Logger  *slog.Logger
}

// Outcome is how one Apply went.
type Outcome[K comparable] struct {
	Key    K
	Tenant string
	// Since is when the key was first asked for after it had been in order.
	Since time.Time
	// Waited is how long it had been due, which it isn't during spacing and waits
	// after failures.
	Waited, Took time.Duration
	Err          error
	// Failures is how many there were in a row, this one included.
	Failures int
}

// Writer calls Apply for the keys that it is given. It is for one term of a leader:
// Run is called once.
type Writer[K comparable] struct {
	cfg  WriterConfig[K]
	wake chan struct{} // one slot

	mu      sync.Mutex
	seq     uint64
	jobs    map[K]*job[K]
	tenants map[string]*tenant[K]
	ended   bool
}

// NewWriter returns a writer to which keys can be added at once.
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

// Add has Apply called for keys, as soon as spacing and waits after failures let
// it. A key whose Apply is running has another one after it.
func (w *Writer[K]) Add(keys ...K) { w.AddAfter(0, keys...) }

// AddAfter has Apply called for keys when so much time has gone by, or earlier when
// there is another reason to.
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
			trouble: errlog.Log{
				Logger: w.cfg.Logger.With("writes", w.cfg.Name, "cluster", name), Level: slog.LevelError, Quiet: quiet,
				Failing: "not written", Over: "no more writes fail for this reason",
				Kind: func(error) string { return "" }, // its key says that
			},
		}
		t.healthy.workers, t.failing.workers = w.cfg.Workers, max(1, w.cfg.Workers/2)
		w.tenants[name] = t
	}
	return t
}

// ask has a job done when it is due; mu is held.
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

// queue puts a job where it waits for its time; mu is held.
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

// Run works until ctx ends, and returns when no Apply is running any more. It must
// not be called twice.
func (w *Writer[K]) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.ended = true
	}()
	idle := make(chan *job[K]) // to workers that have nothing to do
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

// take returns the jobs to start now, and when there will be others unless somebody
// asks for them or a worker becomes free. The zero time is never.
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
					// It only waited for its spacing to be over.
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

// work runs a job, and others as they come until ctx ends: what a request takes of a
// stack is more than a goroutine begins with, and to grow it anew for each takes longer
// than much of what is done on it.
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
	// Whatever it returned after ctx has ended comes from the end of the term.
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

// finish decides when a job is done again; mu is held.
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
