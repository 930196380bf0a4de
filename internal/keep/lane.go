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

// job is what there is to do about one key.
//
//	asked       Apply begins    ends     spacing, or the wait after a failure, is over
//	 |-- waiting --|-- running ---|-- waiting --|
//
// One that nobody asked for until then is forgotten.
type job[K comparable] struct {
	key    K
	tenant *tenant[K]

	asked    time.Time // when somebody wants it done; zero: nobody does
	since    time.Time // when that was first so after it had been done
	earliest time.Time // it may not be done before

	lane *lane[K]  // where it waits or runs
	at   int       // its place there; -1: it doesn't wait
	due  time.Time // when it is done, while it waits
	seq  uint64    // orders those that are due at the same time

	running bool
	started time.Time
	waited  time.Duration // from when it was due

	failures int // in a row, being outdated included
	err      error
	kind     string // of err; empty: none
	backoff  reconcile.Backoff
}

// tenant is what the keys of one tenant have in common.
type tenant[K comparable] struct {
	name             string
	healthy, failing lane[K] // of keys whose last Apply succeeded, or failed
	retries          *rate.Limiter
	trouble          errlog.Log     // by kind: thousands of keys that fail for one reason make one line
	kinds            map[string]int // how many keys fail for each
}

// note notes the outcome of a job that had trouble of some kind before.
func (t *tenant[K]) note(ctx context.Context, before string, j *job[K], err error) {
	if before != "" && before != j.kind {
		if t.kinds[before]--; t.kinds[before] == 0 {
			delete(t.kinds, before)
			t.trouble.NoteOf(ctx, before, nil, "reason", before)
		}
	}
	if j.kind != "" {
		if before != j.kind {
			t.kinds[j.kind]++
		}
		t.trouble.NoteOf(ctx, j.kind, err, "reason", j.kind, "key", j.key)
	}
}

// reason is the kind of an error of a request.
func reason(err error) string {
	if r := apierrors.ReasonForError(err); r != "" {
		return string(r)
	}
	return "request"
}

// lane is jobs that share workers.
type lane[K comparable] struct {
	workers, running int
	waiting          queue[K]
}

func (l *lane[K]) put(j *job[K]) {
	j.lane = l
	heap.Push(&l.waiting, j)
}

func (l *lane[K]) remove(j *job[K]) { heap.Remove(&l.waiting, j.at) }

// queue is a heap of jobs, by when they are due.
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
