package keep

import (
	"container/heap"
	"context"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kube-semaphore/kube-semaphore/internal/errlog"
	"github.com/kube-semaphore/kube-semaphore/internal/reconcile"
)

// job is the state of one key.
//
//	Add         Apply begins    ends     end of the spacing, or the back-off
//	 |-- waiting --|-- running ---|-- waiting --|
//
// A job that wasn't added again until then is deleted.
type job[K comparable] struct {
	key    K
	tenant *tenant[K]

	asked    time.Time // when it is to run; zero: not added
	since    time.Time // when it was first added after its last success
	earliest time.Time // end of spacing and back-off

	lane *lane[K]  // in which it waits or runs
	at   int       // index in the lane's queue; -1: not waiting
	due  time.Time // when it runs, while it waits
	seq  uint64    // orders jobs that are due at the same time

	running bool
	started time.Time
	waited  time.Duration // since it was due

	failures int // consecutive, including ErrOutdated
	err      error
	kind     string // of err; empty: no error
	backoff  reconcile.Backoff
}

// tenant is shared by the keys of one tenant.
type tenant[K comparable] struct {
	name             string
	healthy, failing lane[K] // keys whose last Apply succeeded, or failed
	retries          *rate.Limiter
	failureLog       errlog.Log     // by kind: thousands of keys that fail for one reason make one line
	kinds            map[string]int // how many keys fail for each
}

// note records the outcome of a job, whose previous error was of the kind before.
func (t *tenant[K]) note(ctx context.Context, before string, j *job[K], err error) {
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
		t.failureLog.NoteOf(ctx, j.kind, err, "reason", j.kind, "key", j.key)
	}
}

// reason is the default of WriterConfig.Kind.
func reason(err error) string {
	if r := apierrors.ReasonForError(err); r != "" {
		return string(r)
	}
	return "request"
}

// lane has jobs that share workers.
type lane[K comparable] struct {
	workers, running int
	waiting          queue[K]
}

func (l *lane[K]) put(j *job[K]) {
	j.lane = l
	heap.Push(&l.waiting, j)
}

func (l *lane[K]) remove(j *job[K]) { heap.Remove(&l.waiting, j.at) }

// queue is a heap of jobs by due time.
type queue[K comparable] []*job[K]

func (q queue[K]) Len() int { return len(q) }

func (q queue[K]) Less(i, j int) bool {
	if order := q[i].due.Compare(q[j].due); order != 0 {
		return order < 0
	}
	return q[i].seq < q[j].seq
}

func (q queue[K]) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].at, q[j].at = i, j
}

func (q *queue[K]) Push(j any) {
	added, ok := j.(*job[K])
	if !ok {
		return
	}
	added.at = len(*q)
	*q = append(*q, added)
}

func (q *queue[K]) Pop() any {
	all := *q
	last := all[len(all)-1]
	all[len(all)-1] = nil
	*q = all[:len(all)-1]
	last.at = -1
	return last
}
