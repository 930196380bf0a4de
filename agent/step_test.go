package agent

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
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
		return r.note(now, effect{want, changed}, err) != nil
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
	_ = r.note(now, effect{"a", true}, nil)
	for i := range 20 {
		now = now.Add(slowPass)
		if fault := r.note(now, effect{"a", true}, nil); (fault != nil) != (i >= mostRepairs) {
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
				return r.note(time.Now(), effect{"routes", true}, nil)
			},
		})
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if err := loop.Run(ctx); err != nil {
			t.Fatal(err)
		}
		if made < 20 || made > 50 {
			t.Errorf("%d repairs in 20 s; want two a second at most", made)
		}
	})
}

// TestStepsOfAPass runs passes of a task with a step that fails, one that isn't concerned by all
// changes, and a last one.
func TestStepsOfAPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logs bytes.Buffer
		a := &agent{metrics: newLoopMetrics(), log: slog.New(slog.NewTextHandler(&logs, nil))}
		var made []string
		fails := map[string]error{}
		newStep := func(name string, on change) *step {
			s := a.step(name, func(context.Context) error {
				made = append(made, name)
				return fails[name]
			})
			s.on = on
			return s
		}
		of := &task{name: "x", steps: []*step{newStep("first", 0), newStep("link", linkChanged), newStep("last", 0)}}
		pass := func(what string, after change, want string) {
			t.Helper()
			made = nil
			of.after.Store(uint64(after))
			err := of.pass(t.Context())
			if got := strings.Join(made, " "); got != want || (err != nil) != (len(fails) > 0) {
				t.Errorf("%s: %q, %v, want %q", what, got, err, want)
			}
		}
		pass("the first one", nodesChanged, "first link last")
		pass("what doesn't concern the link", nodesChanged, "first last")
		pass("what does", nodesChanged|linkChanged, "first link last")
		fails["first"] = errors.New("no route")
		pass("a step fails", linkChanged, "first link last")
		if err := of.steps[0].Err(); !errors.Is(err, fails["first"]) || of.steps[2].Err() != nil {
			t.Errorf("errors %v, %v", err, of.steps[2].Err())
		}
		fails = map[string]error{"link": errors.New("no engine")}
		pass("another one", linkChanged, "first link last")
		pass("it is made again", 0, "first link last")
		fails = map[string]error{}
		pass("until it doesn't", 0, "first link last")
		pass("then no more", 0, "first last")
		time.Sleep(slowPass)
		pass("but for once in a while", 0, "first link last")
		if n := strings.Count(logs.String(), "loop=first"); n != 2 {
			t.Errorf("logged %d times:\n%s", n, logs.String())
		}
	})
}
