package agent

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/kube-semaphore/internal/reconcile"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/synctest"
)

func TestRepairsAreCountedWhileTheDesiredStateStays(t *testing.T) {
	r := testRepairs()
	now := time.Unix(1e9, 0)
	pass := func(want string, changed bool, err error) bool {
		now = now.Add(time.Second)
		return r.note(now, want, changed, err) != nil
	}
	for range 20 {
		if pass("a", false, nil) || pass("b", true, nil) || pass("a", true, nil) || pass("a", true, errors.New("x")) || pass("a", true, nil) {
			t.Fatal("changes of the desired state, and passes after a failure, count as repairs")
		}
		now = now.Add(repairsWindow)
	}
	for i := range 10 {
		if fault := pass("a", true, nil); fault != (i >= mostRepairs) {
			t.Fatalf("repair %d: fault: %v", i+1, fault)
		}
	}
	if !pass("a", false, nil) {
		t.Error("the fault is over at once")
	}
	now = now.Add(repairsQuiet)
	if pass("a", false, nil) {
		t.Error("the fault stays")
	}
	if !pass("a", true, nil) {
		t.Error("the next repair, soon after, counts alone")
	}
	now = now.Add(repairsWindow)
	if pass("a", true, nil) || len(r.at) != 1 {
		t.Error("repairs count for ever")
	}
}

// What the kernel doesn't report is compared every slowPass.
func TestSlowRepairsAreCounted(t *testing.T) {
	r := testRepairs()
	now := time.Unix(1e9, 0)
	_ = r.note(now, "a", true, nil)
	for i := range 20 {
		now = now.Add(slowPass)
		if fault := r.note(now, "a", true, nil); (fault != nil) != (i >= mostRepairs) {
			t.Fatalf("repair %d, one in %v: %v", i+1, slowPass, fault)
		}
	}
}

func testRepairs() repairs { return repairs{total: prometheus.NewCounter(prometheus.CounterOpts{})} }

// TestRepairsHaveABoundedRate has a program that undoes each repair at once.
func TestRepairsHaveABoundedRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := testRepairs()
		trigger, made := reconcile.NewTrigger(), 0
		loop := reconcile.NewLoop(reconcile.Config{
			Name: "routes", Trigger: trigger, MinInterval: burstSpacing, Resync: slowPass, Logger: slog.New(slog.DiscardHandler),
			Reconcile: func(context.Context) error {
				made++
				trigger.Fire()
				return r.note(time.Now(), "routes", true, nil)
			},
		})
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if err := loop.Run(ctx); err != nil {
			t.Fatal(err)
		}
		if made < 20 || made > 50 || loop.Err() == nil {
			t.Errorf("%d repairs in 20 s, error %v; want two a second at most", made, loop.Err())
		}
	})
}
