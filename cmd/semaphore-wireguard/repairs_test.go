package main

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/reconcile"
)

func TestRepairsAreCountedWhileTheDesiredStateStays(t *testing.T) {
	var r repairs
	now := time.Unix(1e9, 0)
	pass := func(want string, changed bool, err error) bool {
		now = now.Add(time.Second)
		return r.note(now, want, changed, err) != nil
	}
	for range 20 {
		if pass("a", false, nil) || pass("b", true, nil) || pass("a", true, nil) || pass("a", true, errors.New("x")) || pass("a", true, nil) {
			t.Fatal("changes of the desired state, and passes after a failure, count as repairs")
		}
		now = now.Add(time.Minute)
	}
	for i := range 10 {
		if fault := pass("a", true, nil); fault != (i >= mostRepairs) {
			t.Fatalf("repair %d: fault: %v", i+1, fault)
		}
	}
	if !pass("a", false, nil) {
		t.Error("the fault is over at once")
	}
	now = now.Add(repairsWindow)
	if pass("a", false, nil) || len(r.at) > 0 {
		t.Error("the fault stays")
	}
}

// TestRepairsHaveABoundedRate has a program that undoes each repair at once.
func TestRepairsHaveABoundedRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r repairs
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
