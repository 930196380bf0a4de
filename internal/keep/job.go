package keep

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
)

// job is the state of one key.
//
//	Add         Apply begins    ends     end of the spacing, or the back-off
//	 |-- waiting --|-- running ---|-- waiting --|
//
// A job that wasn't added again until then is deleted, unless it waits for its turn. Its methods
// are called with the writer's mutex held.
type job[K comparable] struct {
	tenant *tenant[K]

	asked    time.Time     // when it is to run; zero: not added
	since    time.Time     // when it was first added after its last success
	earliest time.Time     // end of spacing and back-off
	spaced   time.Time     // end of spacing
	now      bool          // added by AddNow while it runs: no back-off follows
	started  time.Time     // zero: not running
	waited   time.Duration // since it was due
	waits    bool          // the last Apply returned ErrWaits

	err  error
	kind string // of err; empty: no error
}

// tenant is shared by the keys of one tenant.
type tenant[K comparable] struct {
	name     string
	queue    workqueue.TypedDelayingInterface[K]
	retries  workqueue.TypedRateLimiter[K]
	failures kinds
}

func newTenant[K comparable](name string, cfg *WriterConfig[K]) *tenant[K] {
	return &tenant[K]{
		name: name, queue: workqueue.NewTypedDelayingQueue[K](),
		retries: workqueue.NewTypedMaxOfRateLimiter(
			workqueue.NewTypedItemExponentialFailureRateLimiter[K](cfg.RetryMin, cfg.RetryMax),
			&workqueue.TypedBucketRateLimiter[K]{Limiter: rate.NewLimiter(cfg.RetryRate, max(1, int(cfg.RetryRate)))},
		),
		failures: newKinds(cfg.Logger.With("writes", cfg.Name, "cluster", name), slog.LevelError, "write failed", "writes recovered"),
	}
}

// ask schedules a job, unless it is scheduled earlier.
func (j *job[K]) ask(due time.Time) {
	if j.asked.IsZero() || due.Before(j.asked) {
		j.asked = due
	}
	if j.since.IsZero() || due.Before(j.since) {
		j.since = due
	}
}

// due returns when a job runs, or is deleted.
func (j *job[K]) due() time.Time {
	if j.asked.After(j.earliest) {
		return j.asked
	}
	return j.earliest
}

func (j *job[K]) enqueue(key K) { j.tenant.queue.AddAfter(key, time.Until(j.due())) }

// finish records the outcome of a run.
func (j *job[K]) finish(ctx context.Context, key K, err error) {
	t, before := j.tenant, j.kind
	switch {
	case err == nil:
		j.err, j.kind, j.since = nil, "", j.asked
		t.retries.Forget(key)
	case errors.Is(err, ErrWaits):
		j.err, j.kind, j.waits = nil, "", true
		t.retries.Forget(key)
		err = nil
	default:
		j.kind = ""
		if again := time.Now().Add(t.retries.When(key)); !j.now && again.After(j.earliest) {
			j.earliest = again
		}
		j.ask(j.earliest)
		if !errors.Is(err, ErrOutdated) || t.retries.NumRequeues(key) > maxStaleRetries {
			j.err, j.kind = err, reason(err)
		}
	}
	j.now = false
	t.failures.move(ctx, before, j.kind, err, "reason", j.kind, "key", key)
}

// reason returns the reason of Kubernetes' API errors.
func reason(err error) string {
	if r := apierrors.ReasonForError(err); r != "" {
		return string(r)
	}
	return "request"
}
