// Package replica runs leader election for a Deployment.
package replica

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

// Default times of an election, as in Kubernetes' own controllers.
const (
	DefaultLeaseDuration = 15 * time.Second
	DefaultRenewDeadline = 10 * time.Second
	DefaultRetryPeriod   = 2 * time.Second
)

// ErrLeaseLost is wrapped by the error of Replica.Run when another replica may lead from now
// on. The process must exit: its pending writes must not reach the next leader's objects.
var ErrLeaseLost = errors.New("leader election lost")

// Config describes a Replica. The three times may be zero; all other fields
// are required.
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
	// lease, another replica leads after LeaseDuration - RenewDeadline. Run ends when Lead
	// returns.
	Lead func(ctx context.Context) error
	// Logger gets the start of leading, and failed requests for the Lease.
	Logger *slog.Logger
	// LeaseDuration is the time after the last renewal until another replica takes over.
	LeaseDuration time.Duration
	// RenewDeadline is the time that a leader continues without a renewal.
	RenewDeadline time.Duration
	// RetryPeriod is the interval between attempts to acquire and to renew.
	RetryPeriod time.Duration

	identity string // empty: of the host and Listen
}

// Replica is a candidate of the leader election.
type Replica struct {
	cfg     Config
	lease   *lease // nil: no election
	leading atomic.Bool
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
	setDefault(&r.cfg.LeaseDuration, DefaultLeaseDuration)
	setDefault(&r.cfg.RenewDeadline, DefaultRenewDeadline)
	setDefault(&r.cfg.RetryPeriod, DefaultRetryPeriod)
	r.cfg.Logger = cfg.Logger.With("lease", cfg.Namespace+"/"+cfg.Name)
	r.lease = newLease(&resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: cfg.Namespace, Name: cfg.Name},
		Client:     leases{Objects: cfg.Leases},
		LockConfig: resourcelock.ResourceLockConfig{Identity: r.cfg.identity},
	}, r.cfg.RenewDeadline, r.cfg.RetryPeriod, r.cfg.Logger)
	if _, err := r.elector(func(context.Context) {}); err != nil {
		return nil, fmt.Errorf("%v: %w", r, err)
	}
	return r, nil
}

func setDefault(d *time.Duration, value time.Duration) {
	if *d == 0 {
		*d = value
	}
}

// String names the replica as a task.
func (r *Replica) String() string {
	if r.lease == nil {
		return r.cfg.Name
	}
	return "election " + r.cfg.Namespace + "/" + r.cfg.Name
}

// Leads reports whether Lead is running.
func (r *Replica) Leads() bool { return r.leading.Load() }

// Leader returns the identity of the last observed leader; empty without one, or without an
// election.
func (r *Replica) Leader() string {
	if r.lease == nil {
		return ""
	}
	return r.lease.lastHolder()
}

// Elected reports whether leader election is enabled.
func (r *Replica) Elected() bool { return r.lease != nil }

// Err returns the error of the last request for the Lease; nil if it succeeded.
func (r *Replica) Err() error {
	if r.lease == nil {
		return nil
	}
	return r.lease.errors.Err()
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
// lease, so that another replica takes over within one to two RetryPeriods, and returns nil.
// An error is that of Lead, or wraps ErrLeaseLost, or run.ErrStuck if Lead doesn't end:
// then only the end of the process stops its writes.
func (r *Replica) Run(ctx context.Context) error {
	if r.lease == nil {
		return r.lead(ctx, func(func()) func() { return func() {} }, 0)
	}
	// The lease is renewed until Lead has ended, which is after ctx.
	holding, release := context.WithCancel(klog.NewContext(context.WithoutCancel(ctx), run.ClientLog(r.cfg.Logger)))
	won, released := make(chan struct{}, 1), make(chan struct{})
	elector, err := r.elector(func(context.Context) { won <- struct{}{} })
	if err != nil {
		release()
		return err
	}
	go func() {
		defer close(released)
		elector.Run(holding)
	}()
	select {
	case <-ctx.Done():
	case <-won:
		err = r.lead(ctx, r.lease.works, r.cfg.LeaseDuration-r.cfg.RenewDeadline)
	}
	r.lease.ending.Store(true)
	release()
	<-released
	return err
}

// lead runs Lead until it ends, or for patience after its context has ended. works gets a
// function that ends it, and returns one that is called when it has ended.
func (r *Replica) lead(ctx context.Context, works func(stop func()) (ended func()), patience time.Duration) error {
	leading, stop := context.WithCancel(ctx)
	defer stop()
	ended := works(stop)
	r.cfg.Logger.InfoContext(ctx, "leading", "identity", r.cfg.identity)
	r.leading.Store(true)
	done := make(chan error, 1)
	go func() { done <- r.cfg.Lead(leading) }()

	var err error
	select {
	case err = <-done:
		r.leading.Store(false)
	case <-leading.Done():
		r.leading.Store(false)
		var late <-chan time.Time
		if r.lease != nil {
			timer := time.NewTimer(patience)
			defer timer.Stop()
			late = timer.C
		}
		select {
		case err = <-done:
		case <-late:
			return fmt.Errorf("leader's work continues without the lease: %w", run.ErrStuck)
		}
	}
	asked, lost := ctx.Err() != nil, leading.Err() != nil
	ended()
	if lost && errors.Is(err, context.Canceled) {
		err = nil
	}
	switch {
	case err != nil || asked:
		return err
	case lost:
		return fmt.Errorf("%w, last seen with %q", ErrLeaseLost, r.Leader())
	default:
		return errors.New("leader's work ended by itself")
	}
}

// elector returns client-go's part of an election.
func (r *Replica) elector(won func(ctx context.Context)) (*leaderelection.LeaderElector, error) {
	return leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:            r.lease,
		LeaseDuration:   r.cfg.LeaseDuration,
		RenewDeadline:   r.cfg.RenewDeadline,
		RetryPeriod:     r.cfg.RetryPeriod,
		ReleaseOnCancel: true,
		Callbacks:       leaderelection.LeaderCallbacks{OnStartedLeading: won, OnStoppedLeading: func() {}},
		Name:            r.cfg.Name,
	})
}
