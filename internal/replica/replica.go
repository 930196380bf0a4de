// Package replica has one of a program's processes do what two would undo each other's of.
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

// The times of an election where Config leaves them zero; those of
// Kubernetes' own controllers.
const (
	DefaultLeaseDuration = 15 * time.Second
	DefaultRenewDeadline = 10 * time.Second
	DefaultRetryPeriod   = 2 * time.Second
)

// ErrLeaseLost is wrapped by the error of Replica.Run when another replica may lead
// from now on. The process ends with it: what it had under way is no matter of the
// next leader's.
var ErrLeaseLost = errors.New("lost the lease")

// Config describes a Replica. The three times may be zero; all other fields
// are required.
type Config struct {
	// Election is whether there are other replicas. One that is alone leads without
	// asking anybody.
	Election bool
	// Leases are those of Namespace, in the cluster that keeps the Lease.
	Leases kube.Objects[*coordinationv1.Lease, *coordinationv1.LeaseList]
	// Namespace and Name are those of the Lease. It is created if necessary.
	Namespace, Name string
	// Listen is the address that the program listens on.
	Listen string
	// Lead does what only one replica may do, until ctx ends. It must then
	// return soon: with the lease lost, somebody else begins after
	// LeaseDuration - RenewDeadline. Returning before ctx ends, with or without an
	// error, ends Run.
	Lead func(ctx context.Context) error
	// Logger gets the beginning of the work, and why requests for the Lease fail.
	Logger *slog.Logger

	// LeaseDuration is how long after the last renewal that it saw another
	// replica waits before it takes over.
	LeaseDuration time.Duration
	// RenewDeadline is how long a leader that can't renew goes on.
	RenewDeadline time.Duration
	// RetryPeriod is the time between attempts to get and to renew.
	RetryPeriod time.Duration

	identity string // empty: that of the host and of Listen
}

// Replica is one process of a program, one of which leads: it does what two would
// undo each other's of.
type Replica struct {
	cfg     Config
	lease   *lease // nil: alone
	leading atomic.Bool
}

// identity returns what tells a replica from others: the name of its host, which is
// that of the pod, and the address that it listens on, because outside of pods two of
// them may share a host. One that is restarted with the identity that it had leads at
// once, another one waits for the lease to expire.
func identity(listen string) (string, error) {
	// Container runtimes put it into the environment, too.
	host := os.Getenv("HOSTNAME")
	if host == "" {
		var err error
		if host, err = os.Hostname(); err != nil {
			return "", fmt.Errorf("name this replica: %w", err)
		}
	}
	return host + listen, nil
}

// New returns a replica that Run runs.
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

// Leader returns the identity of the last leader seen; empty: none yet, or there is no
// election.
func (r *Replica) Leader() string {
	if r.lease == nil {
		return ""
	}
	return r.lease.lastHolder()
}

// Elected reports whether there is an election.
func (r *Replica) Elected() bool { return r.lease != nil }

// Err returns why the last request for the Lease failed; nil when it didn't.
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

// Run leads when it is this replica's turn, until ctx ends, which is not an error: then
// it waits for Lead and gives the lease up, so that another replica takes over as soon
// as it tries, which it does every one to two RetryPeriods. An error comes from Lead, or
// wraps ErrLeaseLost, or run.ErrStuck where Lead goes on although it must not: only the end
// of the process can stop its writes then.
func (r *Replica) Run(ctx context.Context) error {
	if r.lease == nil {
		return r.lead(ctx, func(func()) func() { return func() {} }, 0)
	}
	// The lease is renewed until Lead has ended, hence beyond ctx.
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

// lead runs Lead until it ends, or has gone on for too long after it had to. Works is
// told what ends it, and returns what is to be called when it has ended.
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
			return fmt.Errorf("work without the lease: %w", run.ErrStuck)
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
