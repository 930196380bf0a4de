package manager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/logtest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/synctest"
)

// replica is a program with one task and the leader's work; time is that of a synctest bubble.
type replica struct {
	*Election
	logged logtest.Buffer
	away   atomic.Pointer[func(context.Context) error] // what requests end with; nil: the server answers
	tasks  atomic.Int32                                // running ones
	stop   context.CancelFunc
	done   chan error
}

func startReplica(t *testing.T, client *fake.Clientset, name string, work func(context.Context) error) *replica {
	t.Helper()
	r := &replica{done: make(chan error, 1)}
	log := slog.New(slog.NewTextHandler(&r.logged, nil))
	r.Election = newElectionOf(nil, log)
	if client != nil {
		r.Election = newElectionOf(unreachable{&resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: "sys", Name: "mirror"}, Client: client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: name},
		}, r}, log)
	}
	m := &Manager{cfg: Config{Logger: log}, Access: &rest.Config{Host: "https://127.0.0.1:1"}, Election: r.Election, runnables: []manager.Runnable{
		everywhere{task(func(ctx context.Context) error {
			r.tasks.Add(1)
			defer r.tasks.Add(-1)
			return untilCancelled(ctx)
		})},
		manager.RunnableFunc(func(ctx context.Context) error { return ended(ctx, "leader's work", r.lead(ctx, work)) }),
	}}
	ctx, cancel := context.WithCancel(t.Context())
	r.stop = cancel
	go func() { r.done <- m.start(ctx) }()
	t.Cleanup(cancel)
	return r
}

type task func(context.Context) error

func (f task) Run(ctx context.Context) error { return f(ctx) }
func (f task) String() string                { return "feed" }

func (r *replica) end(t *testing.T) {
	t.Helper()
	r.stop()
	if err := <-r.done; err != nil {
		t.Errorf("start() = %v, want nil when its context ends", err)
	}
}

func untilCancelled(ctx context.Context) error {
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

// unreachable is a lease whose server may be.
type unreachable struct {
	resourcelock.Interface
	r *replica
}

// Get implements resourcelock.Interface.
func (u unreachable) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	if ask := u.r.away.Load(); ask != nil {
		return nil, nil, bounded(ctx, *ask)
	}
	return u.Interface.Get(ctx)
}

// Update implements resourcelock.Interface.
func (u unreachable) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if ask := u.r.away.Load(); ask != nil {
		return bounded(ctx, *ask)
	}
	return u.Interface.Update(ctx, record)
}

// bounded is what the client of a Lease does.
func bounded(ctx context.Context, request func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return request(ctx)
}

func refuses(context.Context) error { return errors.New("no route to host") }

// goesAway makes all further requests fail or hang.
func (r *replica) goesAway(ask func(context.Context) error) { r.away.Store(&ask) }

func TestOneOfTwoLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		first := startReplica(t, client, "first", untilCancelled)
		pass(t, time.Second)
		second := startReplica(t, client, "second", untilCancelled)
		pass(t, time.Minute)
		if !first.Leads() || second.Leads() || first.tasks.Load() != 1 || second.tasks.Load() != 1 {
			t.Errorf("first leads: %v, second leads: %v", first.Leads(), second.Leads())
		}
		if first.Leader() != "first" || second.Leader() != "first" {
			t.Errorf("leader is %q to the first, %q to the second", first.Leader(), second.Leader())
		}
		second.end(t)
		if holder := *leaseOf(t, client).Spec.HolderIdentity; holder != "first" {
			t.Errorf("held by %q after the end of a candidate", holder)
		}
		first.end(t)
		if holder := *leaseOf(t, client).Spec.HolderIdentity; holder != "" {
			t.Errorf("held by %q after everybody ended", holder)
		}
	})
}

func TestShutdownHandsOverAfterTheWorkHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		var finished, began time.Time
		first := startReplica(t, client, "first", func(ctx context.Context) error {
			<-ctx.Done()
			<-time.After(4 * time.Second) // the last writes
			finished = time.Now()
			return nil
		})
		pass(t, time.Second)
		second := startReplica(t, client, "second", func(ctx context.Context) error {
			began = time.Now()
			return untilCancelled(ctx)
		})
		pass(t, time.Minute)
		first.stop()
		pass(t, 10*time.Second)
		if began.IsZero() {
			t.Fatal("no successor within 10 s")
		}
		if took := began.Sub(finished); took < 0 || took > 5*time.Second {
			t.Errorf("the successor began %v after the work of the first had ended", took)
		}
		first.end(t)
		second.end(t)
	})
}

func TestRestartWithTheSameIdentityLeadsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		now := metav1.NewMicroTime(time.Now())
		killed := &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: "sys", Name: "mirror"},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: new("pod"), LeaseDurationSeconds: new(int32(15)), AcquireTime: &now, RenewTime: &now},
		}
		if err := client.Tracker().Add(killed); err != nil {
			t.Fatal(err)
		}
		again := startReplica(t, client, "pod", untilCancelled)
		pass(t, 100*time.Millisecond)
		if !again.Leads() {
			t.Error("waits for its own lease")
		}
		again.end(t)
	})
}

// TestProgramEndsWithoutTheLease makes requests fail or hang, or gives the lease to another
// replica: the program ends, even while the leader's work doesn't, and leaves the lease alone.
func TestProgramEndsWithoutTheLease(t *testing.T) {
	for name, lose := range map[string]func(*testing.T, *fake.Clientset, *replica){
		"a server that refuses":       func(_ *testing.T, _ *fake.Clientset, r *replica) { r.goesAway(refuses) },
		"a server that never answers": func(_ *testing.T, _ *fake.Clientset, r *replica) { r.goesAway(untilCancelled) },
		"a thief": func(t *testing.T, client *fake.Clientset, _ *replica) {
			taken := leaseOf(t, client)
			taken.Spec.HolderIdentity = new("thief")
			if err := client.Tracker().Update(coordinationv1.SchemeGroupVersion.WithResource("leases"), taken, "sys"); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewClientset()
				// The fake doesn't compare versions by itself.
				client.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
					have, err := client.Tracker().Get(coordinationv1.SchemeGroupVersion.WithResource("leases"), "sys", "mirror")
					if err == nil && *have.(*coordinationv1.Lease).Spec.HolderIdentity == "thief" && name == "a thief" {
						err = apierrors.NewConflict(schema.GroupResource{Resource: "leases"}, "mirror", nil)
					}
					return err != nil, nil, err
				})
				release := make(chan struct{})
				r := startReplica(t, client, "only", func(context.Context) error {
					<-release
					return nil
				})
				pass(t, 5*time.Second)
				before := *leaseOf(t, client).Spec.HolderIdentity
				began := time.Now()
				lose(t, client, r)
				err := <-r.done
				if took := time.Since(began); err == nil || err.Error() != "leader election lost" || took > 12*time.Second {
					t.Errorf("start() = %v after %v, want that the lease is lost", err, took)
				}
				want := before
				if name == "a thief" {
					want = "thief"
				}
				if holder := *leaseOf(t, client).Spec.HolderIdentity; holder != want {
					t.Errorf("held by %q, want %q", holder, want)
				}
				if err := r.Err(); name == "a server that refuses" && (err == nil || !strings.Contains(err.Error(), "no route to host")) {
					t.Errorf("Err() = %v", err)
				}
				if n := strings.Count(r.logged.String(), "level=WARN"); n > 2 {
					t.Errorf("%d warnings:\n%s", n, r.logged.String())
				}
				close(release)
			})
		})
	}
}

// TestWorkThatGoesOnKeepsTheLease: only the end of the process stops its writes.
func TestWorkThatGoesOnKeepsTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		release := make(chan struct{})
		r := startReplica(t, client, "only", func(context.Context) error {
			<-release
			return nil
		})
		pass(t, time.Second)
		r.stop()
		if err := <-r.done; err == nil || !strings.Contains(err.Error(), "grace period of 10s") {
			t.Errorf("start() = %v, want that the grace is over", err)
		}
		if holder := *leaseOf(t, client).Spec.HolderIdentity; holder != "only" {
			t.Errorf("the lease was given to %q while the work went on", holder)
		}
		close(release)
	})
}

// TestShutdownDoesNotWaitForAnUnreachableServer stops trying to release the lease.
func TestShutdownDoesNotWaitForAnUnreachableServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startReplica(t, fake.NewClientset(), "only", untilCancelled)
		pass(t, time.Second)
		r.goesAway(untilCancelled)
		began := time.Now()
		r.end(t)
		if took := time.Since(began); took > requestTimeout {
			t.Errorf("took %v", took)
		}
	})
}

func TestWithoutAnElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startReplica(t, nil, "", untilCancelled)
		synctest.Wait()
		if !r.Leads() || r.Elected() || r.Leader() != "" || r.Err() != nil {
			t.Errorf("leads %v, elected %v, leader %q, error %v", r.Leads(), r.Elected(), r.Leader(), r.Err())
		}
		r.end(t)
		if r.Leads() {
			t.Error("leads after its end")
		}
	})
}

func TestWorkThatFailsEndsTheProgramAndFreesTheLease(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		want string
	}{
		{"with an error", errors.New("broken"), "leader's work: broken"},
		{"without one", nil, "leader's work: ended by itself"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewClientset()
				r := startReplica(t, client, "only", func(context.Context) error { return c.err })
				if err := <-r.done; err == nil || err.Error() != c.want {
					t.Errorf("start() = %v, want %q", err, c.want)
				}
				if holder := *leaseOf(t, client).Spec.HolderIdentity; holder != "" {
					t.Errorf("held by %q", holder)
				}
			})
		})
	}
}

func TestMissingPermissionIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		client.PrependReactor("create", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "leases"}, "mirror", fmt.Errorf("no rule"))
		})
		r := startReplica(t, client, "only", untilCancelled)
		pass(t, time.Minute)
		if err := r.Err(); !apierrors.IsForbidden(err) {
			t.Errorf("Err() = %v, want that it is forbidden", err)
		}
		r.end(t)
		if n := strings.Count(r.logged.String(), "leader election failing"); n != 1 {
			t.Errorf("logged %d times:\n%s", n, r.logged.String())
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
