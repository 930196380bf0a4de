package replica

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/kube-semaphore/kube-semaphore/internal/errlog"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
)

// leases adapts the Leases of one namespace to client-go's lock, which calls only methods
// of kube.Objects.
type leases struct {
	kube.Objects[*coordinationv1.Lease, *coordinationv1.LeaseList]
	uncalled
}

// uncalled has the methods that are never called, embedded one level below those of Objects.
type uncalled struct{ coordination.LeaseInterface }

// Leases implements coordination.LeasesGetter.
func (l leases) Leases(string) coordination.LeaseInterface { return l }

// lease is a Lease lock that records failed requests and the holder, and ends the leader's
// work in time. client-go's elector does so too late: it tries to renew a lease that another
// replica holds until the renew deadline, and then first tries to release it, which takes
// as long again if the server doesn't respond.
type lease struct {
	resourcelock.Interface
	deadline time.Duration // of the leader's work, after the last renewal
	patience time.Duration // timeout of requests after the end
	errors   errlog.Log    // by verb
	ending   atomic.Bool

	mu     sync.Mutex
	holder string
	lost   *time.Timer // ends the leader's work; nil: not leading
}

const (
	verbGet   = "get"
	verbWrite = "write"
)

func newLease(inner resourcelock.Interface, deadline, patience time.Duration, log *slog.Logger) *lease {
	return &lease{Interface: inner, deadline: deadline, patience: patience, errors: errlog.Log{
		Logger: log, Level: slog.LevelWarn, Failing: "leader election failing", Over: "leader election recovered", Quiet: time.Minute,
	}}
}

// bound sets a short timeout for requests that release the lease: an API server that doesn't
// respond must not delay the end of the process. The lease expires by itself.
func (l *lease) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if l.ending.Load() {
		return context.WithTimeout(ctx, l.patience)
	}
	return ctx, func() {}
}

// works records the start of the leader's work. stop is called as soon as the lease is lost.
// The lease isn't released before ended is called.
func (l *lease) works(stop func()) (ended func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = time.AfterFunc(l.deadline, stop)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.lost.Stop()
		l.lost = nil
	}
}

func (l *lease) lastHolder() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.holder
}

// Get implements resourcelock.Interface.
func (l *lease) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	ctx, cancel := l.bound(ctx)
	defer cancel()
	record, raw, err := l.Interface.Get(ctx)
	if err == nil {
		l.held(ctx, record.HolderIdentity, false)
	}
	if apierrors.IsNotFound(err) { // the elector creates it next
		l.note(ctx, verbGet, nil)
	} else {
		l.note(ctx, verbGet, err)
	}
	return record, raw, err
}

// Create implements resourcelock.Interface.
func (l *lease) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.written(ctx, record, l.Interface.Create(ctx, record))
}

// errNotOurs prevents the release of a lease.
var errNotOurs = errors.New("another replica holds the lease, or the leader's work has not ended")

// Update implements resourcelock.Interface.
func (l *lease) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if record.HolderIdentity == "" && !l.free() {
		return errNotOurs
	}
	ctx, cancel := l.bound(ctx)
	defer cancel()
	return l.written(ctx, record, l.Interface.Update(ctx, record))
}

// free reports whether the lease may be released.
func (l *lease) free() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.holder == l.Identity() && l.lost == nil
}

func (l *lease) written(ctx context.Context, record resourcelock.LeaderElectionRecord, err error) error {
	if err == nil {
		l.held(ctx, record.HolderIdentity, true)
	}
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		// Another replica was faster.
		l.note(ctx, verbWrite, nil)
	} else {
		l.note(ctx, verbWrite, err)
	}
	return err
}

// held records the holder of the lease, and whether it was written by this replica now.
func (l *lease) held(ctx context.Context, by string, written bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holder = by
	ours := by == l.Identity()
	switch {
	case l.lost == nil:
	case !ours:
		l.lost.Reset(0)
	case written:
		l.lost.Reset(l.deadline)
	}
	if by != "" && !ours {
		// Candidates don't write while another replica leads.
		l.note(ctx, verbWrite, nil)
	}
}

func (l *lease) note(ctx context.Context, verb string, err error) {
	if err != nil {
		err = fmt.Errorf("%s lease: %w", verb, err)
	}
	l.errors.NoteOf(ctx, verb, err, "verb", verb)
}
