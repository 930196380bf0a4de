package keep

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"

	"github.com/kube-semaphore/kube-semaphore/internal/errlog"
)

// job is the state of one key.
//
//	Add         Apply begins    ends     end of the spacing, or the back-off
//	 |-- waiting --|-- running ---|-- waiting --|
//
// A job that wasn't added again until then is deleted. Its methods are called with the
// writer's mutex held.
type job[K comparable] struct {
	tenant *tenant[K]

	asked    time.Time     // when it is to run; zero: not added
	since    time.Time     // when it was first added after its last success
	earliest time.Time     // end of spacing and back-off
	started  time.Time     // zero: not running
	waited   time.Duration // since it was due

	err  error
	kind string // of err; empty: no error
}

// tenant is shared by the keys of one tenant.
type tenant[K comparable] struct {
	name string
	// healthy has the keys whose last Apply succeeded, failing the others.
	healthy, failing workqueue.TypedDelayingInterface[K]
	retries          workqueue.TypedRateLimiter[K]
	failureLog       errlog.Log     // by kind: thousands of keys that fail for one reason make one line
	kinds            map[string]int // how many keys fail for each
}

func newTenant[K comparable](name string, cfg *WriterConfig[K]) *tenant[K] {
	return &tenant[K]{
		name: name, healthy: workqueue.NewTypedDelayingQueue[K](), failing: workqueue.NewTypedDelayingQueue[K](),
		retries: workqueue.NewTypedMaxOfRateLimiter(
			workqueue.NewTypedItemExponentialFailureRateLimiter[K](cfg.RetryMin, cfg.RetryMax),
			&workqueue.TypedBucketRateLimiter[K]{Limiter: rate.NewLimiter(cfg.RetryRate, max(1, int(cfg.RetryRate)))},
		),
		failureLog: errlog.Log{
			Logger: cfg.Logger.With("writes", cfg.Name, "cluster", name), Level: slog.LevelError, Quiet: quiet,
			Failing: "write failed", Over: "writes recovered",
			Kind: func(error) string { return "" }, // the key is the kind
		},
		kinds: map[string]int{},
	}
}

// ask has a job run at a time, or earlier if it was to run earlier.
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

func (j *job[K]) queue(key K) workqueue.TypedDelayingInterface[K] {
	if j.tenant.retries.NumRequeues(key) > 0 {
		return j.tenant.failing
	}
	return j.tenant.healthy
}

func (j *job[K]) enqueue(key K) { j.queue(key).AddAfter(key, time.Until(j.due())) }

// finish records the outcome of a run.
func (j *job[K]) finish(ctx context.Context, key K, err error) {
	t, before := j.tenant, j.kind
	if err == nil {
		j.err, j.kind, j.since = nil, "", j.asked
		t.retries.Forget(key)
	} else {
		j.kind = ""
		if again := time.Now().Add(t.retries.When(key)); again.After(j.earliest) {
			j.earliest = again
		}
		j.ask(j.earliest)
		if !errors.Is(err, ErrOutdated) || t.retries.NumRequeues(key) > patience {
			j.err, j.kind = err, reason(err)
		}
	}
	if before != "" && before != j.kind {
		if t.kinds[before]--; t.kinds[before] == 0 {
			delete(t.kinds, before)
			t.failureLog.NoteOf(ctx, before, nil, "reason", before)
		}
	}
	if j.kind != "" {
		if before != j.kind {
			t.kinds[j.kind]++
		}
		t.failureLog.NoteOf(ctx, j.kind, err, "reason", j.kind, "key", key)
	}
}

// reason returns the reason of Kubernetes' API errors.
func reason(err error) string {
	if r := apierrors.ReasonForError(err); r != "" {
		return string(r)
	}
	return "request"
}
