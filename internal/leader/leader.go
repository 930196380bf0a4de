// Package leader elects, among the replicas of a program, the one that writes.
package leader

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

	"github.com/kube-semaphore/kube-semaphore/internal/clientlog"
)

// The times of an election where Config leaves them zero; those of
// Kubernetes' own controllers.
const (
	DefaultLeaseDuration = 15 * time.Second
	DefaultRenewDeadline = 10 * time.Second
	DefaultRetryPeriod   = 2 * time.Second
)

// ErrStuck is wrapped by the error of Run when Lead went on although it lost
// the lease. Only the end of the process can stop its writes then.
var ErrStuck = errors.New("work went on without the lease")

// Config describes an Election. The three times may be zero; all other fields
// are required.
type Config struct {
	// Client reaches the cluster that keeps the Lease.
	Client kubernetes.Interface
	// Namespace and Name are those of the Lease. It is created if necessary.
	Namespace, Name string
	// Identity tells replicas apart. One that is restarted with the identity
	// that it had goes on at once, another one would wait for the lease to
	// expire: the name of a pod does well.
	Identity string
	// Lead does what only one replica may do, until ctx ends. It must then
	// return soon: with the lease lost, somebody else begins after
	// LeaseDuration - RenewDeadline. It is called again when the lease was
	// lost and won back. Returning before ctx ends, with or without an error,
	// ends the election.
	Lead func(ctx context.Context) error
	// Logger gets the beginning and the end of each term, and why requests
	// for the Lease fail.
	Logger *slog.Logger

	// LeaseDuration is how long after the last renewal that it saw another
	// replica waits before it takes over.
	LeaseDuration time.Duration
	// RenewDeadline is how long a leader that can't renew goes on.
	RenewDeadline time.Duration
	// RetryPeriod is the time between attempts to get and to renew.
	RetryPeriod time.Duration
}

// Election takes part in an election for as long as it runs. A replica that
// loses the lease goes on as a candidate: its caches stay warm, and it is as
// good a successor as a new process.
type Election struct {
	cfg     Config
	lock    *lock
	leading atomic.Bool
}

// New returns an election that Run takes part in.
func New(cfg Config) (*Election, error) {
	setDefault(&cfg.LeaseDuration, DefaultLeaseDuration)
	setDefault(&cfg.RenewDeadline, DefaultRenewDeadline)
	setDefault(&cfg.RetryPeriod, DefaultRetryPeriod)
	cfg.Logger = cfg.Logger.With("lease", cfg.Namespace+"/"+cfg.Name)
	e := &Election{cfg: cfg}
	e.lock = &lock{
		Interface: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: cfg.Namespace, Name: cfg.Name},
			Client:     cfg.Client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: cfg.Identity},
		},
		log: cfg.Logger,
	}
	if _, err := e.elector(nil); err != nil {
		return nil, fmt.Errorf("election %s/%s: %w", cfg.Namespace, cfg.Name, err)
	}
	return e, nil
}

func setDefault(d *time.Duration, value time.Duration) {
	if *d == 0 {
		*d = value
	}
}

// String names the election as a task.
func (e *Election) String() string { return "election " + e.cfg.Namespace + "/" + e.cfg.Name }

// IsLeader reports whether Lead is running.
func (e *Election) IsLeader() bool { return e.leading.Load() }

// Leader returns the identity of the last leader seen; empty: none yet.
func (e *Election) Leader() string { return e.lock.lastHolder() }

// Err returns why the last request for the Lease failed; nil when it didn't.
func (e *Election) Err() error { return e.lock.lastError() }

// Run takes part until ctx ends, which is not an error; when it leads then,
// it waits for Lead and gives the lease up, so that another replica takes
// over as soon as it tries, which it does every one to two RetryPeriods. An
// error comes from Lead, or is ErrStuck.
func (e *Election) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := e.term(ctx); err != nil {
			return err
		}
	}
	return nil
}

// term waits for the lease and leads until it is lost or ctx ends.
func (e *Election) term(ctx context.Context) error {
	logger := clientlog.New(e.cfg.Logger)
	// The lease is renewed until Lead has ended, hence beyond ctx.
	keeping, drop := context.WithCancel(klog.NewContext(context.WithoutCancel(ctx), logger))
	won := make(chan context.Context, 1)
	elector, err := e.elector(func(held context.Context) { won <- held })
	if err != nil {
		drop()
		return err
	}
	dropped := make(chan struct{})
	go func() {
		defer close(dropped)
		elector.Run(keeping)
	}()

	lost := false
	select {
	case <-ctx.Done():
	case held := <-won:
		lost, err = e.lead(ctx, held)
	}
	drop()
	<-dropped
	if !lost {
		// Also where it was not won: it may have been, just now.
		e.release(ctx)
	}
	return err
}

// lead runs Lead while held, the context of the lease, lasts. Lost says that
// it didn't last, and that Lead has ended.
func (e *Election) lead(ctx, held context.Context) (lost bool, err error) {
	leading, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(held, stop)()
	defer e.lock.guard(stop)()

	e.cfg.Logger.InfoContext(ctx, "leading", "identity", e.cfg.Identity)
	e.leading.Store(true)
	done := make(chan error, 1)
	go func() { done <- e.cfg.Lead(leading) }()
	ended := false
	select {
	case err = <-done:
		ended = true
	case <-leading.Done():
	}
	e.leading.Store(false)
	if !ended {
		if err = e.await(done); errors.Is(err, ErrStuck) {
			return true, fmt.Errorf("%v: %w", e, err)
		}
	}
	switch {
	case leading.Err() == nil && err == nil:
		return false, errors.New("leader's work ended by itself")
	case leading.Err() == nil:
		return false, err
	case errors.Is(err, context.Canceled):
		err = nil
	}
	if ctx.Err() == nil && err == nil {
		e.cfg.Logger.WarnContext(ctx, "lost the lease", "leader", e.Leader())
	}
	return ctx.Err() == nil, err
}

// await waits for Lead, which was told to end, for as long as no other replica
// can have begun.
func (e *Election) await(done <-chan error) error {
	patience := time.NewTimer(e.cfg.LeaseDuration - e.cfg.RenewDeadline)
	defer patience.Stop()
	select {
	case err := <-done:
		return err
	case <-patience.C:
		return ErrStuck
	}
}

// release gives the lease up, if it is ours. Where that doesn't work it
// expires by itself.
func (e *Election) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.cfg.RetryPeriod)
	defer cancel()
	if err := e.lock.release(ctx); err != nil {
		e.cfg.Logger.WarnContext(ctx, "lease not given up", "err", err)
	}
}

// elector returns client-go's part of one term. It doesn't release the lease
// for us: it would do so before Lead has ended, and, after a renewal failed,
// before it tells Lead at all.
func (e *Election) elector(won func(ctx context.Context)) (*leaderelection.LeaderElector, error) {
	if won == nil {
		won = func(context.Context) {}
	}
	return leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:          e.lock,
		LeaseDuration: e.cfg.LeaseDuration,
		RenewDeadline: e.cfg.RenewDeadline,
		RetryPeriod:   e.cfg.RetryPeriod,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: won,
			OnStoppedLeading: func() {},
		},
		Name: e.cfg.Name,
	})
}
