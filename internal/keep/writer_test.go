package keep

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/logtest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/synctest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench runs a writer inside a synctest bubble, where time only passes while
// all goroutines are blocked, and records the calls of Apply.
type bench struct {
	*Writer[string]

	log   logtest.Buffer
	began time.Time
	stop  func()
	ended chan struct{}

	mu       sync.Mutex
	calls    []call
	busy     map[string]bool                     // by key
	apply    func(context.Context, string) error // nil: succeeds at once
	outcomes []Outcome[string]
}

// call is one call of Apply, and the time since the start.
type call struct {
	key string
	at  time.Duration
}

// start runs a writer; the tenant is the part of the key before the slash.
func start(t *testing.T, cfg WriterConfig[string]) *bench {
	t.Helper()
	b := &bench{began: time.Now(), busy: map[string]bool{}, ended: make(chan struct{})}
	cfg.Name, cfg.Apply = "things", b.call
	cfg.Tenant = func(key string) string { tenant, _, _ := strings.Cut(key, "/"); return tenant }
	cfg.Logger = slog.New(slog.NewTextHandler(&b.log, &slog.HandlerOptions{Level: slog.LevelInfo}))
	cfg.Observe = func(o Outcome[string]) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.outcomes = append(b.outcomes, o)
	}
	b.Writer = NewWriter(cfg)
	ctx, cancel := context.WithCancel(t.Context())
	b.stop = cancel
	go func() {
		defer close(b.ended)
		if err := b.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	}()
	t.Cleanup(func() { cancel(); <-b.ended })
	return b
}

func (b *bench) call(ctx context.Context, key string) error {
	b.mu.Lock()
	if b.busy[key] {
		b.calls = append(b.calls, call{key: key + " twice at a time"})
	}
	b.busy[key] = true
	b.calls = append(b.calls, call{key, time.Since(b.began)})
	apply := b.apply
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.busy[key] = false
	}()
	if apply == nil {
		return nil
	}
	return apply(ctx, key)
}

// called returns the calls since it was last asked, as key@time, by time; those of one
// moment by key, where there are several workers.
func (b *bench) called() []string {
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	slices.SortStableFunc(b.calls, func(x, y call) int {
		if order := cmp.Compare(x.at, y.at); order != 0 || b.cfg.Workers == 1 {
			return order
		}
		return cmp.Compare(x.key, y.key)
	})
	calls := make([]string, 0, len(b.calls))
	for _, c := range b.calls {
		calls = append(calls, fmt.Sprintf("%s@%v", c.key, c.at))
	}
	b.calls = nil
	return calls
}

func (b *bench) set(apply func(context.Context, string) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.apply = apply
}

func wantCalls(t *testing.T, b *bench, want ...string) {
	t.Helper()
	if diff := gocmp.Diff(want, b.called()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// pass sleeps, and waits until all goroutines are blocked.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// slowly returns an Apply with a duration, or until its context ends.
func slowly(d time.Duration) func(context.Context, string) error {
	return func(ctx context.Context, _ string) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(d):
			return nil
		}
	}
}

func TestWriterCallsAtOnceAndInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, WriterConfig[string]{Workers: 1})
		b.Add("x/b", "x/a", "x/b")
		wantCalls(t, b, "x/b@0s", "x/a@0s")
		if len(b.jobs) > 0 {
			t.Errorf("%d keys in order are remembered", len(b.jobs))
		}
	})
}

func TestKeyAddedDuringItsApplyIsAppliedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, WriterConfig[string]{})
		b.set(slowly(time.Second))
		b.Add("x/a")
		synctest.Wait()
		b.Add("x/a")
		b.Add("x/a")
		pass(10 * time.Second)
		wantCalls(t, b, "x/a@0s", "x/a@1s")
	})
}

func TestWriterSpacesCallsOfOneKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, WriterConfig[string]{Spacing: func(key string) time.Duration { return time.Duration(len(key)) * time.Second }})
		b.Add("x/a", "x/large")
		synctest.Wait()
		b.Add("x/a", "x/large")
		pass(time.Minute)
		wantCalls(t, b, "x/a@0s", "x/large@0s", "x/a@3s", "x/large@7s")
		b.Add("x/large")
		wantCalls(t, b, "x/large@1m0s")
	})
}

func TestWriterCallsLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, WriterConfig[string]{})
		b.AddAfter(time.Minute, "x/a")
		b.AddAfter(time.Second, "x/a", "x/b")
		b.AddAfter(time.Hour, "x/a")
		pass(2 * time.Hour)
		wantCalls(t, b, "x/a@1s", "x/b@1s")
	})
}

func TestWriterBacksOffAndEventsDoNotBypassIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, WriterConfig[string]{RetryMin: time.Second, RetryMax: time.Minute})
		b.set(func(context.Context, string) error { return errors.New("no") })
		b.Add("x/a")
		last, failures := time.Duration(0), 0
		for range 6000 {
			b.Add("x/a")
			pass(100 * time.Millisecond)
		}
		for i, call := range b.called() {
			at, err := time.ParseDuration(strings.TrimPrefix(call, "x/a@"))
			if err != nil {
				t.Fatal(err)
			}
			wait := at - last
			if least := min(time.Second<<max(i-1, 0), 40*time.Second); i > 0 && (wait < least || wait > time.Minute) {
				t.Errorf("call %d came after %v, want at least %v", i, wait, least)
			}
			last, failures = at, i
		}
		if failures < 10 {
			t.Errorf("%d calls in ten minutes", failures)
		}
		b.set(nil)
		pass(time.Minute)
		if failing := b.Failing(); len(failing) > 0 {
			t.Errorf("still failing: %v", failing)
		}
		b.called()
		b.Add("x/a")
		if got := b.called(); len(got) != 1 {
			t.Errorf("calls after success: %v", got)
		}
	})
}

// TestAddNowEndsTheBackOffOnce adds a key during its back-off, and while it fails.
func TestAddNowEndsTheBackOffOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, WriterConfig[string]{RetryMin: 10 * time.Second, RetryMax: time.Minute, Spacing: func(string) time.Duration { return 2 * time.Second }})
		b.set(func(ctx context.Context, key string) error {
			return errors.Join(errors.New("no"), slowly(time.Second)(ctx, key))
		})
		b.Add("x/a")
		pass(1500 * time.Millisecond)
		b.Add("x/a")
		b.AddNow("x/a")
		pass(4 * time.Second)
		wantCalls(t, b, "x/a@0s", "x/a@2s")
		b.AddNow("x/a")
		pass(500 * time.Millisecond)
		b.AddNow("x/a")
		pass(10 * time.Second)
		wantCalls(t, b, "x/a@5.5s", "x/a@7.5s")
		pass(2 * time.Minute)
		wantCalls(t, b, "x/a@1m8.5s", "x/a@2m9.5s")
	})
}

func TestWriterAppliesTheLatestState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, WriterConfig[string]{RetryMin: time.Second})
		var wanted, written atomic.Value
		wanted.Store("1")
		failed := false
		b.set(func(context.Context, string) error {
			if !failed {
				failed = true
				return errors.New("no")
			}
			written.Store(wanted.Load())
			return nil
		})
		b.Add("x/a")
		synctest.Wait()
		wanted.Store("2") // without another Add
		pass(time.Minute)
		if calls := b.called(); written.Load() != "2" || len(calls) != 2 {
			t.Errorf("wrote %v with the calls %v", written.Load(), calls)
		}
	})
}

func TestTenantsDoNotWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, WriterConfig[string]{Workers: 2})
		b.set(func(ctx context.Context, key string) error {
			if strings.HasPrefix(key, "flood/") {
				return slowly(time.Hour)(ctx, key)
			}
			return nil
		})
		for i := range 1000 {
			b.Add(fmt.Sprint("flood/", i))
		}
		wantCalls(t, b, "flood/0@0s", "flood/1@0s")
		b.Add("x/a", "y/b")
		wantCalls(t, b, "x/a@0s", "y/b@0s")
		if diff := gocmp.Diff(map[string]int{"flood": 1000}, b.Backlog()); diff != "" {
			t.Errorf("backlog (-want +got):\n%s", diff)
		}
	})
}

func TestRetriesOfATenantAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, WriterConfig[string]{RetryMin: time.Millisecond, RetryMax: time.Millisecond, RetryRate: 10})
		b.set(func(context.Context, string) error { return errors.New("no") })
		for i := range 1000 {
			b.Add(fmt.Sprint("x/", i))
		}
		synctest.Wait()
		b.called()
		pass(10 * time.Second)
		if n := len(b.called()); n < 90 || n > 120 {
			t.Errorf("%d retries in 10 s, want about 100", n)
		}
	})
}

func TestErrOutdatedIsNoFailureUnlessRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, WriterConfig[string]{RetryMin: time.Millisecond, RetryMax: time.Millisecond})
		left := maxStaleRetries
		b.set(func(context.Context, string) error {
			if left--; left >= 0 {
				return fmt.Errorf("patch: %w", ErrOutdated)
			}
			return nil
		})
		b.Add("x/a")
		pass(time.Minute)
		if calls := b.called(); len(calls) != maxStaleRetries+1 || b.log.String() != "" {
			t.Errorf("%d calls, log:\n%s", len(calls), b.log.String())
		}
		left = maxStaleRetries + 1
		b.Add("x/a")
		pass(time.Minute)
		if !strings.Contains(b.log.String(), "level=ERROR") {
			t.Errorf("nothing is said of one that stays outdated:\n%s", b.log.String())
		}
	})
}

func TestWorkOfATermThatEndedIsNotStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, WriterConfig[string]{Timeout: time.Hour, StuckAfter: time.Minute})
		release := make(chan struct{})
		b.set(func(context.Context, string) error { <-release; return errors.New("no") })
		b.Add("x/a")
		pass(2 * time.Minute)
		if diff := gocmp.Diff([]time.Duration{2 * time.Minute}, b.Running(time.Now())); diff != "" {
			t.Errorf("running for (-want +got):\n%s", diff)
		}
		if err := b.Stuck(time.Now()); err == nil || err.Error() != "things: writing for more than 1m0s: x/a" {
			t.Errorf("Stuck = %v", err)
		}
		b.stop()
		synctest.Wait()
		if err := b.Stuck(time.Now()); err != nil {
			t.Errorf("after the term: %v", err)
		}
		close(release)
		<-b.ended
		if failing := b.Failing(); len(failing) > 0 || len(b.outcomes) > 0 || b.log.String() != "" {
			t.Errorf("what ended with the term counts: %v, %v, %s", failing, b.outcomes, b.log.String())
		}
	})
}

func TestWriterBoundsOneApply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, WriterConfig[string]{Timeout: 5 * time.Second})
		b.set(slowly(time.Hour))
		b.Add("x/a")
		pass(5 * time.Second)
		synctest.Wait()
		if err := b.Failing()["x/a"]; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("failing with %v", err)
		}
	})
}

func TestWriterReportsOutcomes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, WriterConfig[string]{RetryMin: 2 * time.Second, RetryMax: 2 * time.Second, Workers: 1})
		fails := errors.New("no")
		failed := false
		b.set(func(ctx context.Context, key string) error {
			_ = slowly(time.Second)(ctx, key)
			if key == "x/b" && !failed {
				failed = true
				return fails
			}
			return nil
		})
		now := time.Now()
		b.Add("x/a", "x/b")
		pass(time.Minute)
		wantCalls(t, b, "x/a@0s", "x/b@1s", "x/b@4s")
		want := []Outcome[string]{
			{Key: "x/a", Tenant: "x", Since: now, Took: time.Second},
			{Key: "x/b", Tenant: "x", Since: now, Waited: time.Second, Took: time.Second, Err: fails},
			{Key: "x/b", Tenant: "x", Since: now, Took: time.Second},
		}
		if diff := gocmp.Diff(want, b.outcomes, gocmp.Comparer(errors.Is)); diff != "" {
			t.Errorf("outcomes (-want +got):\n%s", diff)
		}
	})
}

// TestObserveIsCalledBeforeTheNextApply adds a key repeatedly, with a slow Observe.
func TestObserveIsCalledBeforeTheNextApply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var order []string
		var w *Writer[string]
		w = NewWriter(WriterConfig[string]{
			Name: "things", Logger: slog.New(slog.DiscardHandler),
			Apply:   func(context.Context, string) error { order = append(order, "call"); w.Add("a"); return nil },
			Observe: func(Outcome[string]) { time.Sleep(time.Second); order = append(order, "observed") },
			Spacing: func(string) time.Duration { order = append(order, "asked"); return time.Millisecond },
		})
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		w.Add("a")
		if err := w.Run(ctx); err != nil {
			t.Fatal(err)
		}
		if diff := gocmp.Diff([]string{"call", "observed", "asked", "call", "observed", "asked"}, order); diff != "" {
			t.Errorf("order (-want +got):\n%s", diff)
		}
	})
}

// TestSinceIsWhenItWasDueFirst adds a key with a wait, and then without.
func TestSinceIsWhenItWasDueFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, WriterConfig[string]{})
		b.AddAfter(time.Hour, "x/a")
		pass(time.Minute)
		now := time.Now()
		b.Add("x/a")
		synctest.Wait()
		if got := b.outcomes[0].Since; !got.Equal(now) {
			t.Errorf("asked for at once, and since %v later", got.Sub(now))
		}
	})
}

// TestKeyThatWaitsForItsTurn: it is pending, isn't retried, and counts from when it was added first.
func TestKeyThatWaitsForItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, WriterConfig[string]{Spacing: func(string) time.Duration { return time.Second }})
		b.set(func(context.Context, string) error { return fmt.Errorf("gcp/a: %w", ErrWaits) })
		b.Add("gcp/a")
		pass(time.Hour)
		wantCalls(t, b, "gcp/a@0s")
		if n, failing := b.Backlog()["gcp"], b.Failing(); n != 1 || len(failing) > 0 {
			t.Errorf("%d keys are pending, failing %v", n, failing)
		}
		b.set(nil)
		b.Add("gcp/a")
		pass(time.Minute)
		wantCalls(t, b, "gcp/a@1h0m0s")
		b.mu.Lock()
		last := b.outcomes[len(b.outcomes)-1]
		b.mu.Unlock()
		if !last.Since.Equal(b.began) || last.Err != nil {
			t.Errorf("outcome %+v", last)
		}
		if n := len(b.Backlog()); n > 0 || b.log.String() != "" {
			t.Errorf("%d tenants with pending keys, log %s", n, b.log.String())
		}
	})
}

func TestFailuresAreLoggedWhenTheyAppearAndEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, WriterConfig[string]{RetryMin: time.Second, RetryMax: 10 * time.Second, RetryRate: 1000})
		failure := errors.New("connection refused")
		b.set(func(context.Context, string) error {
			b.mu.Lock()
			defer b.mu.Unlock()
			return failure
		})
		change := func(err error) {
			b.mu.Lock()
			failure = err
			b.mu.Unlock()
			pass(2 * time.Minute)
		}
		for i := range 100 {
			b.Add(fmt.Sprint("x/", i), fmt.Sprint("y/", i))
		}
		pass(2 * time.Minute)
		change(apierrors.NewInternalError(errors.New("etcd")))
		change(nil)
		b.stop()
		<-b.ended
		got := map[string]int{}
		for line := range strings.Lines(b.log.String()) {
			_, line, _ = strings.Cut(line, "level=")
			line, _, _ = strings.Cut(line, " key=")
			got[strings.TrimSpace(line)]++
		}
		want := map[string]int{}
		for _, tenant := range []string{"x", "y"} {
			for _, reason := range []string{"request", "InternalError"} {
				want[`ERROR msg="write failed" writes=things cluster=`+tenant+" reason="+reason] = 1
				want[`INFO msg="writes recovered" writes=things cluster=`+tenant+" reason="+reason] = 1
			}
		}
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("logged (-want +got):\n%s", diff)
		}
	})
}

// TestWriterConverges changes keys at random, with slow and failing writes: in the end all
// have their last desired state, and calls for one key never overlapped.
func TestWriterConverges(t *testing.T) {
	for seed := range uint64(50) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 2))
			b := start(t, WriterConfig[string]{
				Workers: 2, RetryMin: time.Millisecond, RetryMax: time.Second,
				Spacing: func(string) time.Duration { return 20 * time.Millisecond },
			})
			var mu sync.Mutex
			want, have := map[string]int{}, map[string]int{}
			b.set(func(ctx context.Context, key string) error {
				mu.Lock()
				wanted, fails, takes := want[key], random.IntN(3) == 0, time.Duration(random.IntN(50))*time.Millisecond
				mu.Unlock()
				_ = slowly(takes)(ctx, key)
				if fails {
					return errors.New("no")
				}
				mu.Lock()
				defer mu.Unlock()
				have[key] = wanted
				return nil
			})
			for i := range 500 {
				mu.Lock()
				key := fmt.Sprintf("%d/%d", random.IntN(3), random.IntN(5))
				want[key] = i
				pause := time.Duration(random.IntN(10)) * time.Millisecond
				mu.Unlock()
				b.Add(key)
				pass(pause)
			}
			pass(time.Minute)
			synctest.Wait()
			if diff := gocmp.Diff(want, have); diff != "" {
				t.Errorf("seed %d (-want +have):\n%s", seed, diff)
			}
			for _, call := range b.called() {
				if strings.Contains(call, "twice") {
					t.Errorf("seed %d: %s", seed, call)
				}
			}
			if left := b.Backlog(); len(left) > 0 || len(b.jobs) > 0 {
				t.Errorf("seed %d: backlog %v, %d keys remembered", seed, left, len(b.jobs))
			}
		})
	}
}
