package leader

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/kube-semaphore/kube-semaphore/internal/run"
)

// replica is one candidate; time is that of a synctest bubble.
type replica struct {
	*Replica
	logged *bytes.Buffer
	away   atomic.Pointer[func(context.Context) error] // what requests end with; nil: the server answers
	stop   context.CancelFunc
	done   chan error

	mu    sync.Mutex
	terms int
}

func startReplica(t *testing.T, client *fake.Clientset, name string, lead func(ctx context.Context) error) *replica {
	t.Helper()
	r := &replica{logged: new(bytes.Buffer), done: make(chan error, 1)}
	var err error
	r.Replica, err = New(Config{
		Election: true, Leases: client.CoordinationV1().Leases("sys"), Namespace: "sys", Name: "mirror", identity: name,
		Logger: slog.New(slog.NewTextHandler(r.logged, nil)),
		Lead: func(ctx context.Context) error {
			r.mu.Lock()
			r.terms++
			r.mu.Unlock()
			return lead(ctx)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	r.lock.Interface = unreachable{r.lock.Interface, r}
	ctx, cancel := context.WithCancel(t.Context())
	r.stop = cancel
	go func() { r.done <- r.Run(ctx) }()
	t.Cleanup(cancel)
	return r
}

func (r *replica) termCount() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.terms
}

func (r *replica) end(t *testing.T) {
	t.Helper()
	r.stop()
	if err := <-r.done; err != nil {
		t.Errorf("Run() = %v, want nil when its context ends", err)
	}
}

func leadUntilCancelled(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func leaseOf(t *testing.T, client *fake.Clientset) *coordinationv1.Lease {
	t.Helper()
	l, err := client.CoordinationV1().Leases("sys").Get(t.Context(), "mirror", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// pass lets a duration of the bubble's time go by.
func pass(t *testing.T, d time.Duration) {
	t.Helper()
	<-time.After(d)
	synctest.Wait()
}

func TestOneOfTwoLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		first := startReplica(t, client, "first", leadUntilCancelled)
		pass(t, time.Second)
		second := startReplica(t, client, "second", leadUntilCancelled)
		pass(t, time.Minute)
		if !first.Leads() || second.Leads() {
			t.Errorf("first leads: %v, second leads: %v", first.Leads(), second.Leads())
		}
		if first.Leader() != "first" || second.Leader() != "first" {
			t.Errorf("leader is %q to the first, %q to the second", first.Leader(), second.Leader())
		}
		if first.termCount() != 1 || second.termCount() != 0 {
			t.Errorf("terms: %d and %d", first.termCount(), second.termCount())
		}
		first.end(t)
		second.end(t)
	})
}

func TestShutdownHandsOverAfterTheWorkHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		var ended time.Time
		first := startReplica(t, client, "first", func(ctx context.Context) error {
			<-ctx.Done()
			<-time.After(4 * time.Second) // the last writes
			ended = time.Now()
			return nil
		})
		pass(t, time.Second)
		var began time.Time
		second := startReplica(t, client, "second", func(ctx context.Context) error {
			began = time.Now()
			return leadUntilCancelled(ctx)
		})
		pass(t, time.Minute)
		first.stop()
		pass(t, 10*time.Second)
		if began.IsZero() {
			t.Fatal("no successor within 10 s")
		}
		if took := began.Sub(ended); took < 0 || took > retryPeriod*11/5 {
			t.Errorf("the successor began %v after the work of the first had ended", took)
		}
		first.end(t)
		second.end(t)
	})
}

func TestCandidateThatNeverLedLeavesTheLeaseAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		first := startReplica(t, client, "first", leadUntilCancelled)
		pass(t, time.Second)
		second := startReplica(t, client, "second", leadUntilCancelled)
		pass(t, 10*time.Second)
		second.end(t)
		if holder := *leaseOf(t, client).Spec.HolderIdentity; holder != "first" {
			t.Errorf("held by %q", holder)
		}
		first.end(t)
		if holder := *leaseOf(t, client).Spec.HolderIdentity; holder != "" {
			t.Errorf("held by %q after everybody ended", holder)
		}
	})
}

func TestRestartWithTheSameIdentityLeadsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		now := metav1.NewMicroTime(time.Now())
		identity, seconds := "pod", int32(15)
		killed := &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: "sys", Name: "mirror"},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &identity, LeaseDurationSeconds: &seconds, AcquireTime: &now, RenewTime: &now},
		}
		if err := client.Tracker().Add(killed); err != nil {
			t.Fatal(err)
		}
		again := startReplica(t, client, "pod", leadUntilCancelled)
		pass(t, 100*time.Millisecond)
		if !again.Leads() {
			t.Error("waits for its own lease")
		}
		again.end(t)
	})
}

// TestUnreachableServerEndsTheWorkInTime makes requests fail or hang. The process
// ends with the work, even where that needed longer than the next leader's to begin.
func TestUnreachableServerEndsTheWorkInTime(t *testing.T) {
	for name, down := range map[string]func(context.Context) error{
		"that refuses": refuses, "that never answers": neverAnswers,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewClientset()
				var lost time.Time
				r := startReplica(t, client, "only", func(ctx context.Context) error {
					<-ctx.Done()
					lost = time.Now()
					return ctx.Err()
				})
				pass(t, time.Second)
				r.goesAway(down)
				cut := time.Now()
				err := <-r.done
				if took := lost.Sub(cut); lost.IsZero() || took > renewDeadline {
					t.Errorf("went on for %v", took)
				}
				if r.Leads() || !errors.Is(err, ErrLeaseLost) || errors.Is(err, run.ErrStuck) {
					t.Errorf("leads %v, Run() = %v, want that it lost the lease", r.Leads(), err)
				}
				if err := r.Err(); name == "that refuses" && (err == nil || !strings.Contains(err.Error(), "no route to host")) {
					t.Errorf("Err() = %v", err)
				}
				if n := strings.Count(r.logged.String(), "level=WARN"); n > 2 {
					t.Errorf("%d warnings:\n%s", n, r.logged)
				}
			})
		})
	}
}

// unreachable is a lease whose server may be.
type unreachable struct {
	resourcelock.Interface
	r *replica
}

// Get implements resourcelock.Interface.
func (u unreachable) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	if ask := u.r.away.Load(); ask != nil {
		return nil, nil, (*ask)(ctx)
	}
	return u.Interface.Get(ctx)
}

// Update implements resourcelock.Interface.
func (u unreachable) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if ask := u.r.away.Load(); ask != nil {
		return (*ask)(ctx)
	}
	return u.Interface.Update(ctx, record)
}

func refuses(context.Context) error { return errors.New("no route to host") }

func neverAnswers(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// goesAway makes all further requests fail or hang.
func (r *replica) goesAway(ask func(context.Context) error) { r.away.Store(&ask) }

// TestShutdownDoesNotWaitForAnUnreachableServer stops trying to release the lease.
func TestShutdownDoesNotWaitForAnUnreachableServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startReplica(t, fake.NewClientset(), "only", leadUntilCancelled)
		pass(t, time.Second)
		r.goesAway(neverAnswers)
		began := time.Now()
		r.end(t)
		if took := time.Since(began); took > 2*retryPeriod {
			t.Errorf("took %v", took)
		}
	})
}

// TestWriteInFlightEndsWithTheProcess continues work for a while after the lease was
// lost: nothing of it is left for the process to report as stuck later.
func TestWriteInFlightEndsWithTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		r := startReplica(t, client, "only", func(ctx context.Context) error {
			<-ctx.Done()
			<-time.After(leaseDuration - renewDeadline - time.Second)
			return nil
		})
		pass(t, time.Second)
		r.goesAway(refuses)
		if err := <-r.done; !errors.Is(err, ErrLeaseLost) || errors.Is(err, run.ErrStuck) {
			t.Errorf("Run() = %v", err)
		}
	})
}

// TestReplicaThatIsAlone leads without a Lease.
func TestReplicaThatIsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, ended := range []error{nil, context.Canceled} {
			r, err := New(Config{Name: "sets", Logger: slog.New(slog.DiscardHandler), Lead: func(ctx context.Context) error {
				<-ctx.Done()
				return ended
			}})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { done <- r.Run(ctx) }()
			synctest.Wait()
			if !r.Leads() || r.Elected() || r.Leader() != "" || r.Err() != nil || r.String() != "sets" {
				t.Errorf("leads %v, elected %v, leader %q, error %v", r.Leads(), r.Elected(), r.Leader(), r.Err())
			}
			cancel()
			if err := <-done; err != nil || r.Leads() {
				t.Errorf("Run() = %v, leads %v", err, r.Leads())
			}
		}
	})
}

func TestIdentitiesOfReplicasOfAHostDiffer(t *testing.T) {
	t.Setenv("HOSTNAME", "mirror-7d9f-abcde")
	one, err := identity(":8080")
	if err != nil || one != "mirror-7d9f-abcde:8080" {
		t.Errorf("%q, %v", one, err)
	}
	t.Setenv("HOSTNAME", "")
	if other, err := identity(":8081"); err != nil || !strings.HasSuffix(other, ":8081") || len(other) < 6 {
		t.Errorf("%q, %v", other, err)
	}
}

func TestLeaseTakenByForceEndsTheTermAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		// The fake doesn't compare versions by itself.
		client.PrependReactor("update", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
			update := action.(clienttesting.UpdateAction).GetObject().(*coordinationv1.Lease)
			have, err := client.Tracker().Get(coordinationv1.SchemeGroupVersion.WithResource("leases"), "sys", "mirror")
			if err != nil {
				return true, nil, err
			}
			if *have.(*coordinationv1.Lease).Spec.HolderIdentity == "thief" && *update.Spec.HolderIdentity != "thief" {
				return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "leases"}, "mirror", nil)
			}
			return false, nil, nil
		})
		r := startReplica(t, client, "only", leadUntilCancelled)
		pass(t, 5*time.Second)
		taken := leaseOf(t, client)
		thief := "thief"
		taken.Spec.HolderIdentity = &thief
		if err := client.Tracker().Update(coordinationv1.SchemeGroupVersion.WithResource("leases"), taken, "sys"); err != nil {
			t.Fatal(err)
		}
		pass(t, retryPeriod*6/5)
		if r.Leads() {
			t.Error("leads although another one holds the lease")
		}
		if err := <-r.done; !errors.Is(err, ErrLeaseLost) || !strings.Contains(err.Error(), "thief") {
			t.Errorf("Run() = %v, want that the lease is lost", err)
		}
		if holder := *leaseOf(t, client).Spec.HolderIdentity; holder != "thief" {
			t.Errorf("held by %q", holder)
		}
	})
}

func TestWorkThatFailsEndsTheElectionAndFreesTheLease(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		name string
		err  error
		want string
	}{
		{"with an error", broken, "broken"},
		{"without one", nil, "leader's work ended by itself"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewClientset()
				r := startReplica(t, client, "only", func(context.Context) error { return c.err })
				if err := <-r.done; err == nil || err.Error() != c.want {
					t.Errorf("Run() = %v, want %q", err, c.want)
				}
				if holder := *leaseOf(t, client).Spec.HolderIdentity; holder != "" {
					t.Errorf("held by %q", holder)
				}
			})
		})
	}
}

func TestWorkThatGoesOnWithoutTheLeaseIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		release := make(chan struct{})
		r := startReplica(t, client, "only", func(context.Context) error {
			<-release
			return nil
		})
		pass(t, time.Second)
		r.stop()
		if err := <-r.done; !errors.Is(err, run.ErrStuck) {
			t.Errorf("Run() = %v, want run.ErrStuck", err)
		}
		if holder := *leaseOf(t, client).Spec.HolderIdentity; holder != "only" {
			t.Errorf("the lease was given to %q while the work went on", holder)
		}
		close(release)
	})
}

func TestMissingPermissionIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		client.PrependReactor("create", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "leases"}, "mirror", errors.New("no rule"))
		})
		r := startReplica(t, client, "only", leadUntilCancelled)
		pass(t, time.Minute)
		if err := r.Err(); !apierrors.IsForbidden(err) {
			t.Errorf("Err() = %v, want that it is forbidden", err)
		}
		r.end(t)
		if n := strings.Count(r.logged.String(), "leader election failing"); n != 1 {
			t.Errorf("logged %d times:\n%s", n, r.logged)
		}
	})
}

// TestSlowRenewalDoesNotExtendTheWork delays the response to a renewal, and then all requests
// fail: the lease counts from when the server got the renewal.
func TestSlowRenewalDoesNotExtendTheWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		var renewed, lost time.Time
		client.PrependReactor("*", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
			if !renewed.IsZero() {
				return true, nil, errors.New("no route to host")
			}
			if action.GetVerb() == "update" {
				renewed = time.Now()
				<-time.After(7 * time.Second)
			}
			return false, nil, nil
		})
		r := startReplica(t, client, "only", func(ctx context.Context) error {
			<-ctx.Done()
			lost = time.Now()
			return nil
		})
		if err := <-r.done; !errors.Is(err, ErrLeaseLost) {
			t.Errorf("Run() = %v", err)
		}
		if took := lost.Sub(renewed); renewed.IsZero() || took > renewDeadline {
			t.Errorf("the work ended %v after the last renewal", took)
		}
	})
}
