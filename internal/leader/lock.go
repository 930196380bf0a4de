package leader

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// lock is a Lease that notes how requests for it go and who holds it.
type lock struct {
	resourcelock.Interface
	log *slog.Logger

	mu     sync.Mutex
	holder string
	errs   map[string]error // by verb, of the last request
	lost   func()           // called when somebody else holds it; nil: nobody minds
}

const (
	verbGet   = "get"
	verbWrite = "write"
)

// guard has lost called as soon as another holder is seen: client-go goes on
// trying to renew until its deadline. The function that it returns ends that.
func (l *lock) guard(lost func()) (end func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = lost
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.lost = nil
	}
}

func (l *lock) lastHolder() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.holder
}

func (l *lock) lastError() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return errors.Join(l.errs[verbGet], l.errs[verbWrite])
}

// Get implements resourcelock.Interface.
func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	switch {
	case err == nil:
		l.note(ctx, verbGet, nil)
		l.held(record.HolderIdentity)
	case apierrors.IsNotFound(err): // it is created next
		l.note(ctx, verbGet, nil)
	default:
		l.note(ctx, verbGet, err)
	}
	return record, raw, err
}

// Create implements resourcelock.Interface.
func (l *lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	err := l.Interface.Create(ctx, record)
	l.written(ctx, record, err)
	return err
}

// Update implements resourcelock.Interface.
func (l *lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	err := l.Interface.Update(ctx, record)
	l.written(ctx, record, err)
	return err
}

func (l *lock) written(ctx context.Context, record resourcelock.LeaderElectionRecord, err error) {
	switch {
	case err == nil:
		l.note(ctx, verbWrite, nil)
		l.held(record.HolderIdentity)
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		// Somebody was faster, which is what the lock is for.
		l.note(ctx, verbWrite, nil)
	default:
		l.note(ctx, verbWrite, err)
	}
}

// held notes who has the lease.
func (l *lock) held(by string) {
	l.mu.Lock()
	l.holder = by
	lost := l.lost
	if by != "" && by != l.Identity() {
		// A candidate doesn't write while another one leads.
		delete(l.errs, verbWrite)
	}
	l.mu.Unlock()
	if lost != nil && by != l.Identity() {
		lost()
	}
}

// note logs an error when it appears or changes, and when it is over.
func (l *lock) note(ctx context.Context, verb string, err error) {
	if ctx.Err() != nil && err != nil {
		// Most likely cut short by us; what isn't comes again.
		return
	}
	if err != nil {
		err = fmt.Errorf("%s lease: %w", verb, err)
	}
	l.mu.Lock()
	before := l.errs[verb]
	if l.errs == nil {
		l.errs = map[string]error{}
	}
	l.errs[verb] = err
	l.mu.Unlock()
	switch {
	case err == nil && before != nil:
		l.log.InfoContext(ctx, "election recovered", "verb", verb)
	case err != nil && (before == nil || before.Error() != err.Error()):
		l.log.WarnContext(ctx, "election hindered", "err", err)
	}
}

// release makes the lease free to take, if we hold it.
func (l *lock) release(ctx context.Context) error {
	for {
		record, _, err := l.Interface.Get(ctx)
		if apierrors.IsNotFound(err) || err == nil && record.HolderIdentity != l.Identity() {
			return nil
		}
		if err != nil {
			return fmt.Errorf("get lease: %w", err)
		}
		now := metav1.NewTime(time.Now())
		err = l.Interface.Update(ctx, resourcelock.LeaderElectionRecord{
			LeaderTransitions:    record.LeaderTransitions,
			LeaseDurationSeconds: 1,
			AcquireTime:          now,
			RenewTime:            now,
		})
		if err == nil {
			return nil
		}
		if !apierrors.IsConflict(err) {
			return fmt.Errorf("update lease: %w", err)
		}
	}
}
