package manager

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/kube-semaphore/kube-semaphore/internal/errlog"
)

// requestTimeout bounds a request for the Lease: half of the time for which the leader tries to
// renew it, as in controller-runtime.
const requestTimeout = 5 * time.Second

// Election is the Lease by which one replica leads. It notes what the elector only logs: who
// leads, and failed requests.
type Election struct {
	resourcelock.Interface // nil: this replica leads at once

	log     *slog.Logger
	leading atomic.Bool
	holder  atomic.Pointer[string] // as last seen
	errors  errlog.Log             // by verb
}

func newElection(access *rest.Config, elect bool, namespace, name, listen string, log *slog.Logger) (*Election, error) {
	if !elect {
		return newElectionOf(nil, log), nil
	}
	identity, err := identity(listen)
	if err != nil {
		return nil, err
	}
	bounded := rest.CopyConfig(access)
	bounded.Timeout = requestTimeout
	client, err := coordination.NewForConfig(bounded)
	if err != nil {
		return nil, err
	}
	return newElectionOf(&resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Client: client,
		LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
	}, log.With("lease", namespace+"/"+name)), nil
}

func newElectionOf(lock resourcelock.Interface, log *slog.Logger) *Election {
	return &Election{Interface: lock, log: log, errors: errlog.Log{
		Logger: log, Level: slog.LevelWarn, Failing: "leader election failing", Over: "leader election recovered", Quiet: time.Minute,
	}}
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

// Elected reports whether leader election is enabled.
func (e *Election) Elected() bool { return e.Interface != nil }

// Leads reports whether this replica leads.
func (e *Election) Leads() bool { return e.leading.Load() }

// Leader returns the identity of the last observed leader; empty without one, or without an
// election.
func (e *Election) Leader() string {
	if holder := e.holder.Load(); holder != nil {
		return *holder
	}
	return ""
}

// Err returns the error of the last request for the Lease; nil if it succeeded.
func (e *Election) Err() error { return e.errors.Err() }

// Collector returns a gauge named <prefix>_leader: 1 on the replica that leads.
func (e *Election) Collector(prefix string) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: prefix + "_leader", Help: "Whether this replica is the one that writes.",
	}, func() float64 {
		if e.Leads() {
			return 1
		}
		return 0
	})
}

// lead does the leader's work.
func (e *Election) lead(ctx context.Context, work func(context.Context) error) error {
	identity := ""
	if e.Elected() {
		identity = e.Identity()
	}
	e.log.InfoContext(ctx, "leading", "identity", identity)
	e.leading.Store(true)
	defer e.leading.Store(false)
	return work(ctx)
}

// Get implements resourcelock.Interface.
func (e *Election) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := e.Interface.Get(ctx)
	if apierrors.IsNotFound(err) { // The elector creates it next.
		e.note(ctx, "get", nil)
	} else {
		e.note(ctx, "get", err)
	}
	if err == nil {
		e.holder.Store(&record.HolderIdentity)
		if record.HolderIdentity != "" && record.HolderIdentity != e.Identity() {
			e.note(ctx, "write", nil) // Candidates don't write while another replica leads.
		}
	}
	return record, raw, err
}

// Create implements resourcelock.Interface.
func (e *Election) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return e.write(ctx, record, e.Interface.Create)
}

// Update implements resourcelock.Interface.
func (e *Election) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return e.write(ctx, record, e.Interface.Update)
}

// release releases the lease after the end of the elector, so that another replica needn't wait
// until it expires. The elector's own release also takes it from another replica, gives it away
// while the leader's work continues, and delays the end of a program that has lost it.
func (e *Election) release(ctx context.Context) {
	if !e.Elected() || e.Leads() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	record, _, err := e.Get(ctx)
	if err != nil || record.HolderIdentity != e.Identity() {
		return
	}
	now := metav1.Now()
	// The error is logged.
	_ = e.Update(ctx, resourcelock.LeaderElectionRecord{
		LeaderTransitions: record.LeaderTransitions, LeaseDurationSeconds: 1, RenewTime: now, AcquireTime: now,
	})
}

func (e *Election) write(ctx context.Context, record resourcelock.LeaderElectionRecord, request func(context.Context, resourcelock.LeaderElectionRecord) error) error {
	err := request(ctx, record)
	if err == nil {
		e.holder.Store(&record.HolderIdentity)
	}
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		e.note(ctx, "write", nil) // Another replica was faster.
	} else {
		e.note(ctx, "write", err)
	}
	return err
}

func (e *Election) note(ctx context.Context, verb string, err error) {
	if err != nil {
		err = fmt.Errorf("%s lease: %w", verb, err)
	}
	e.errors.NoteOf(ctx, verb, err, "verb", verb)
}
