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

// leases are those of one namespace as client-go's lock wants them. It calls none of the
// methods that kube.Objects doesn't have.
type leases struct {
	kube.Objects[*coordinationv1.Lease, *coordinationv1.LeaseList]
	uncalled
}

// uncalled has the methods that nobody calls, one level below those that Objects has.
type uncalled struct{ coordination.LeaseInterface }

// Leases implements coordination.LeasesGetter.
func (l leases) Leases(string) coordination.LeaseInterface { return l }

// lease is a Lease that notes how requests for it go and who holds it, and ends the
// work of the leader in time. client-go's elector does so too late: it goes on trying
// to renew a lease that another one holds until its deadline, and when that has passed
// it first tries to give the lease up, which takes as long again where the server
// doesn't answer.
type lease struct {
	resourcelock.Interface
	deadline time.Duration // of the work, after the last renewal
	patience time.Duration // with each request when all has ended
	errors   errlog.Log    // by verb
	ending   atomic.Bool

	mu     sync.Mutex
	holder string
	lost   *time.Timer // ends the work; nil: there is none
}

const (
	verbGet   = "get"
	verbWrite = "write"
)

func newLease(inner resourcelock.Interface, deadline, patience time.Duration, log *slog.Logger) *lease {
	return &lease{Interface: inner, deadline: deadline, patience: patience, errors: errlog.Log{
		Logger: log, Level: slog.LevelWarn, Failing: "election hindered", Over: "election recovered", Quiet: time.Minute,
	}}
}

// bound has requests be brief when the lease is only to be given up: an API server that
// doesn't answer must not keep the process from ending. The lease expires by itself.
func (l *lease) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if l.ending.Load() {
		return context.WithTimeout(ctx, l.patience)
	}
	return ctx, func() {}
}

// works notes that the work of the leader has begun. Stop is called as soon as the lease
// is lost, and until the function that works returns is called the lease isn't given up.
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
	if apierrors.IsNotFound(err) { // it is created next
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

// errNotOurs is why a lease isn't given up.
var errNotOurs = errors.New("another replica holds the lease, or work goes on")

// Update implements resourcelock.Interface.
func (l *lease) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if record.HolderIdentity == "" && !l.free() {
		return errNotOurs
	}
	ctx, cancel := l.bound(ctx)
	defer cancel()
	return l.written(ctx, record, l.Interface.Update(ctx, record))
}

// free reports whether the lease may be given up.
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
		// Somebody was faster, which is what the lock is for.
		l.note(ctx, verbWrite, nil)
	} else {
		l.note(ctx, verbWrite, err)
	}
	return err
}

// held notes who has the lease, and whether that was just written.
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
		// A candidate doesn't write while another one leads.
		l.note(ctx, verbWrite, nil)
	}
}

func (l *lease) note(ctx context.Context, verb string, err error) {
	if err != nil {
		err = fmt.Errorf("%s lease: %w", verb, err)
	}
	l.errors.NoteOf(ctx, verb, err, "verb", verb)
}
