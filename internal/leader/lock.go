package leader

import (
	"context"
	"fmt"
	"log/slog"
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

// lock is a Lease lock that records failed requests, which client-go's elector only logs, and
// ends the leader's work in time, which the elector does too late: it counts the renew deadline
// from the response to the last renewal plus retryPeriod, however slow that was, and waits for it
// even while another replica holds the lease.
type lock struct {
	resourcelock.Interface
	holder atomic.Pointer[string] // as last seen; before yield is called, unlike the elector's
	yield  func()                 // ends the leader's work
	lost   *time.Timer            // calls yield
	errors errlog.Log             // by verb
}

const (
	verbGet   = "get"
	verbWrite = "write"
)

func newLock(inner resourcelock.Interface, log *slog.Logger, yield func()) *lock {
	return &lock{Interface: inner, yield: yield, lost: time.AfterFunc(renewDeadline, yield), errors: errlog.Log{
		Logger: log, Level: slog.LevelWarn, Failing: "leader election failing", Over: "leader election recovered", Quiet: time.Minute,
	}}
}

// Get implements resourcelock.Interface.
func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	if apierrors.IsNotFound(err) { // the elector creates it next
		l.note(ctx, verbGet, nil)
	} else {
		l.note(ctx, verbGet, err)
	}
	if err == nil {
		l.holder.Store(&record.HolderIdentity)
	}
	if err == nil && record.HolderIdentity != "" && record.HolderIdentity != l.Identity() {
		// Candidates don't write while another replica leads.
		l.note(ctx, verbWrite, nil)
		l.yield()
	}
	return record, raw, err
}

// Create implements resourcelock.Interface.
func (l *lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(ctx, record, l.Interface.Create)
}

// Update implements resourcelock.Interface.
func (l *lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(ctx, record, l.Interface.Update)
}

func (l *lock) write(ctx context.Context, record resourcelock.LeaderElectionRecord, request func(context.Context, resourcelock.LeaderElectionRecord) error) error {
	// Other replicas may have seen the renewal long before its response.
	deadline := time.Now().Add(renewDeadline)
	err := request(ctx, record)
	if err == nil {
		l.holder.Store(&record.HolderIdentity)
		l.lost.Reset(time.Until(deadline))
	}
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		// Another replica was faster.
		l.note(ctx, verbWrite, nil)
	} else {
		l.note(ctx, verbWrite, err)
	}
	return err
}

func (l *lock) note(ctx context.Context, verb string, err error) {
	if err != nil {
		err = fmt.Errorf("%s lease: %w", verb, err)
	}
	l.errors.NoteOf(ctx, verb, err, "verb", verb)
}
