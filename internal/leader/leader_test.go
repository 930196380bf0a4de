package leader

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// replica is one candidate; time is that of a synctest bubble.
type replica struct {
	*Election
	logged *bytes.Buffer
	stop   context.CancelFunc
	done   chan error

	mu    sync.Mutex
	terms int
}

func start(t *testing.T, client *fake.Clientset, name string, lead func(ctx context.Context) error) *replica {
	t.Helper()
	r := &replica{logged: new(bytes.Buffer), done: make(chan error, 1)}
	var err error
	r.Election, err = New(Config{
		Client: client, Namespace: "sys", Name: "mirror", Identity: name,
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

func untilCancelled(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func lease(t *testing.T, client *fake.Clientset) *coordinationv1.Lease {
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
		first := start(t, client, "first", untilCancelled)
		pass(t, time.Second)
		second := start(t, client, "second", untilCancelled)
		pass(t, time.Minute)
		if !first.IsLeader() || second.IsLeader() {
			t.Errorf("first leads: %v, second leads: %v", first.IsLeader(), second.IsLeader())
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
		first := start(t, client, "first", func(ctx context.Context) error {
			<-ctx.Done()
			<-time.After(4 * time.Second) // the last writes
			ended = time.Now()
			return nil
		})
		pass(t, time.Second)
		var began time.Time
		second := start(t, client, "second", func(ctx context.Context) error {
			began = time.Now()
			return untilCancelled(ctx)
		})
		pass(t, time.Minute)
		first.stop()
		pass(t, 10*time.Second)
		if began.IsZero() {
			t.Fatal("no successor within 10 s")
		}
		if took := began.Sub(ended); took < 0 || took > DefaultRetryPeriod*11/5 {
			t.Errorf("the successor began %v after the work of the first had ended", took)
		}
		first.end(t)
		second.end(t)
	})
}

func TestCandidateThatNeverLedLeavesTheLeaseAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		first := start(t, client, "first", untilCancelled)
		pass(t, time.Second)
		second := start(t, client, "second", untilCancelled)
		pass(t, 10*time.Second)
		second.end(t)
		if holder := *lease(t, client).Spec.HolderIdentity; holder != "first" {
			t.Errorf("held by %q", holder)
		}
		first.end(t)
		if holder := *lease(t, client).Spec.HolderIdentity; holder != "" {
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
		again := start(t, client, "pod", untilCancelled)
		pass(t, 100*time.Millisecond)
		if !again.IsLeader() {
			t.Error("waits for its own lease")
		}
		again.end(t)
	})
}

func TestUnreachableServerEndsTheTermInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		var mu sync.Mutex
		down := false
		client.PrependReactor("*", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			mu.Lock()
			defer mu.Unlock()
			return down, nil, errors.New("no route to host")
		})
		var lost time.Time
		r := start(t, client, "only", func(ctx context.Context) error {
			<-ctx.Done()
			lost = time.Now()
			return ctx.Err()
		})
		pass(t, time.Second)
		mu.Lock()
		down = true
		mu.Unlock()
		cut := time.Now()
		pass(t, time.Minute)
		if took := lost.Sub(cut); lost.IsZero() || took > DefaultRenewDeadline+DefaultRetryPeriod {
			t.Errorf("went on for %v", took)
		}
		if r.IsLeader() {
			t.Error("still thinks that it leads")
		}
		if err := r.Err(); err == nil || !strings.Contains(err.Error(), "no route to host") {
			t.Errorf("Err() = %v", err)
		}
		mu.Lock()
		down = false
		mu.Unlock()
		pass(t, 10*time.Second)
		if !r.IsLeader() || r.termCount() != 2 || r.Err() != nil {
			t.Errorf("after recovery: leads %v, terms %d, error %v", r.IsLeader(), r.termCount(), r.Err())
		}
		r.end(t)
		if n := strings.Count(r.logged.String(), "election hindered"); n < 1 || n > 2 {
			t.Errorf("logged %d times:\n%s", n, r.logged)
		}
		if !strings.Contains(r.logged.String(), "election recovered") {
			t.Errorf("recovery isn't logged:\n%s", r.logged)
		}
	})
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
		r := start(t, client, "only", untilCancelled)
		pass(t, 5*time.Second)
		taken := lease(t, client)
		thief := "thief"
		taken.Spec.HolderIdentity = &thief
		if err := client.Tracker().Update(coordinationv1.SchemeGroupVersion.WithResource("leases"), taken, "sys"); err != nil {
			t.Fatal(err)
		}
		pass(t, DefaultRetryPeriod*6/5)
		if r.IsLeader() {
			t.Error("leads although another one holds the lease")
		}
		r.end(t)
		if holder := *lease(t, client).Spec.HolderIdentity; holder != "thief" {
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
				r := start(t, client, "only", func(context.Context) error { return c.err })
				if err := <-r.done; err == nil || err.Error() != c.want {
					t.Errorf("Run() = %v, want %q", err, c.want)
				}
				if holder := *lease(t, client).Spec.HolderIdentity; holder != "" {
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
		r := start(t, client, "only", func(context.Context) error {
			<-release
			return nil
		})
		pass(t, time.Second)
		r.stop()
		if err := <-r.done; !errors.Is(err, ErrStuck) {
			t.Errorf("Run() = %v, want ErrStuck", err)
		}
		if holder := *lease(t, client).Spec.HolderIdentity; holder != "only" {
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
		r := start(t, client, "only", untilCancelled)
		pass(t, time.Minute)
		if err := r.Err(); !apierrors.IsForbidden(err) {
			t.Errorf("Err() = %v, want that it is forbidden", err)
		}
		r.end(t)
		if n := strings.Count(r.logged.String(), "election hindered"); n != 1 {
			t.Errorf("logged %d times:\n%s", n, r.logged)
		}
	})
}

func TestNewRefusesTimesThatDoNotFit(t *testing.T) {
	_, err := New(Config{
		Client: fake.NewClientset(), Namespace: "sys", Name: "mirror", Identity: "only",
		Logger: slog.New(slog.DiscardHandler), LeaseDuration: time.Second, RenewDeadline: time.Second,
	})
	if err == nil || !strings.HasPrefix(err.Error(), "election sys/mirror: ") {
		t.Errorf("New() = %v", err)
	}
}
