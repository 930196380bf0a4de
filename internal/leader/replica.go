// Package leader runs leader election for a Deployment.
package leader

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/run"
)

// Times of an election, as in Kubernetes' own controllers.
const (
	// leaseDuration is the time after the last renewal until another replica takes over.
	leaseDuration = 15 * time.Second
	// renewDeadline is the time after the last renewal for which the leader's work continues.
	renewDeadline = 10 * time.Second
	// retryPeriod is the interval between attempts to acquire and to renew.
	retryPeriod = 2 * time.Second
)

// ErrLeaseLost is wrapped by the error of Replica.Run when another replica may lead from now
// on. The process must exit: its pending writes must not reach the next leader's objects.
var ErrLeaseLost = errors.New("leader election lost")

// Config describes a Replica. All fields are required.
type Config struct {
	// Election enables leader election. Without it the replica leads at once.
	Election bool
	// Leases are those of Namespace.
	Leases kube.Objects[*coordinationv1.Lease, *coordinationv1.LeaseList]
	// Namespace and Name are those of the Lease. It is created if necessary.
	Namespace, Name string
	// Listen is the program's listen address, a part of its identity.
	Listen string
	// Lead does the leader's work until ctx ends. It must then return soon: after a lost
	// lease, another replica leads within leaseDuration - renewDeadline. Run ends when Lead
	// returns.
	Lead func(ctx context.Context) error
	// Logger gets the start of leading, and failed requests for the Lease.
	Logger *slog.Logger

	identity string // empty: of the host and Listen
}

// Replica is a candidate of the leader election.
type Replica struct {
	cfg     Config
	lock    *lock
	elector *leaderelection.LeaderElector // nil: no election
	won     chan context.Context          // which ends with the lease
	leading atomic.Bool
	stop    atomic.Pointer[context.CancelFunc] // ends the leader's work; nil: it has not begun
}

// identity returns the unique identity of a replica: its host name, which is that of the
// pod, and its listen address, because outside of pods replicas may share a host. A replica
// that restarts with the same identity leads at once instead of waiting for the lease to
// expire.
func identity(listen string) (string, error) {
	// Container runtimes set it in the environment.
	host := os.Getenv("HOSTNAME")
	if host == "" {
		var err error
		if host, err = os.Hostname(); err != nil {
			return "", fmt.Errorf("name this replica: %w", err)
		}
	}
	return host + listen, nil
}

// New returns a replica.
func New(cfg Config) (*Replica, error) {
	r := &Replica{cfg: cfg}
	if !cfg.Election {
		return r, nil
	}
	if cfg.identity == "" {
		var err error
		if r.cfg.identity, err = identity(cfg.Listen); err != nil {
			return nil, err
		}
	}
	r.cfg.Logger = cfg.Logger.With("lease", cfg.Namespace+"/"+cfg.Name)
	r.lock = newLock(&resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: cfg.Namespace, Name: cfg.Name},
		Client:     leases{Objects: cfg.Leases},
		LockConfig: resourcelock.ResourceLockConfig{Identity: r.cfg.identity},
	}, r.cfg.Logger, r.yield)
	r.won = make(chan context.Context, 1)
	var err error
	r.elector, err = leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:          r.lock,
		LeaseDuration: leaseDuration,
		RenewDeadline: renewDeadline,
		RetryPeriod:   retryPeriod,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) { r.won <- ctx }, OnStoppedLeading: func() {},
		},
		Name: r.cfg.Name,
	})
	return r, err
}

// String names the replica as a task.
func (r *Replica) String() string {
	if r.elector == nil {
		return r.cfg.Name
	}
	return "election " + r.cfg.Namespace + "/" + r.cfg.Name
}

// Leads reports whether Lead is running.
func (r *Replica) Leads() bool { return r.leading.Load() }

// Leader returns the identity of the last observed leader; empty without one, or without an
// election.
func (r *Replica) Leader() string {
	if r.elector == nil {
		return ""
	}
	if holder := r.lock.holder.Load(); holder != nil {
		return *holder
	}
	return ""
}

// Elected reports whether leader election is enabled.
func (r *Replica) Elected() bool { return r.elector != nil }

// Err returns the error of the last request for the Lease; nil if it succeeded.
func (r *Replica) Err() error {
	if r.elector == nil {
		return nil
	}
	return r.lock.errors.Err()
}

// Collector returns a gauge named <prefix>_leader: 1 on the replica that leads.
func (r *Replica) Collector(prefix string) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: prefix + "_leader", Help: "Whether this replica is the one that writes.",
	}, func() float64 {
		if r.Leads() {
			return 1
		}
		return 0
	})
}

// Run calls Lead when this replica is elected. When ctx ends, it waits for Lead, releases the
// lease, so that another replica takes over within one to two retryPeriods, and returns nil.
// An error is that of Lead, or wraps ErrLeaseLost, or run.ErrStuck if Lead doesn't end:
// then only the end of the process stops its writes.
//
//	last renewal                    the leader's work ends      another replica may lead
//	 |---------- renewDeadline ------------|------- until Lead returns --|
//	 |------------------------ leaseDuration ----------------------------|
func (r *Replica) Run(ctx context.Context) error {
	if r.elector == nil {
		return r.lead(ctx, ctx)
	}
	// The lease is renewed until Lead has ended, which is after ctx.
	holding, stop := context.WithCancel(klog.NewContext(context.WithoutCancel(ctx), run.ClientLog(r.cfg.Logger)))
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		r.elector.Run(holding)
	}()
	var err error
	select {
	case <-ctx.Done():
	case leading := <-r.won:
		err = r.lead(ctx, leading)
	}
	stop()
	<-stopped
	r.lock.lost.Stop()
	if !errors.Is(err, run.ErrStuck) {
		r.release(context.WithoutCancel(ctx))
	}
	return err
}

// release releases the lease if this replica holds it, so that another one needn't wait until it
// expires. client-go's ReleaseOnCancel does so while the leader's work continues, waits for a
// server that doesn't respond, and takes the lease from another replica.
func (r *Replica) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, retryPeriod)
	defer cancel()
	record, _, err := r.lock.Get(ctx)
	if err != nil || record.HolderIdentity != r.cfg.identity {
		return
	}
	now := metav1.Now()
	// The lock logs the error.
	_ = r.lock.Update(ctx, resourcelock.LeaderElectionRecord{
		LeaderTransitions: record.LeaderTransitions, LeaseDurationSeconds: 1, RenewTime: now, AcquireTime: now,
	})
}

// yield ends the leader's work.
func (r *Replica) yield() {
	if stop := r.stop.Load(); stop != nil {
		(*stop)()
	}
}

// lead runs Lead until it ends, or for a while after ctx or leading has ended. Leading ends with
// the lease.
func (r *Replica) lead(ctx, leading context.Context) error {
	working, stop := context.WithCancel(leading)
	defer stop()
	defer context.AfterFunc(ctx, stop)()
	r.stop.Store(&stop)
	r.cfg.Logger.InfoContext(ctx, "leading", "identity", r.cfg.identity)
	r.leading.Store(true)
	defer r.leading.Store(false)
	done := make(chan error, 1)
	go func() { done <- r.cfg.Lead(working) }()

	var err error
	select {
	case err = <-done:
	case <-working.Done():
		r.leading.Store(false)
		var late <-chan time.Time
		if r.elector != nil {
			late = time.After(leaseDuration - renewDeadline)
		}
		select {
		case err = <-done:
		case <-late:
			return fmt.Errorf("leader's work continues without the lease: %w", run.ErrStuck)
		}
	}
	asked, ended := ctx.Err() != nil, working.Err() != nil
	if ended && errors.Is(err, context.Canceled) {
		err = nil
	}
	switch {
	case err != nil || asked:
		return err
	case ended:
		return fmt.Errorf("%w, last seen with %q", ErrLeaseLost, r.Leader())
	default:
		return errors.New("leader's work ended by itself")
	}
}
