package reconcile

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/synctest"
)

// bench runs one loop inside a synctest bubble, where time only passes while
// all goroutines are blocked, and records the start of each pass.
type bench struct {
	trigger *Trigger
	loop    *Loop
	logged  *bytes.Buffer
	stop    func()

	mu     sync.Mutex
	begin  time.Time
	passes []time.Duration
	fail   error
	takes  time.Duration
	busy   time.Duration // how much of that it takes of a processor at most
}

func start(t *testing.T, cfg Config) *bench {
	t.Helper()
	b := &bench{trigger: NewTrigger(), logged: new(bytes.Buffer), begin: time.Now(), busy: time.Hour}
	cfg.Name = "test loop"
	cfg.Trigger = b.trigger
	cfg.Logger = slog.New(slog.NewTextHandler(b.logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
	cfg.Reconcile = b.pass
	b.loop = NewLoop(cfg)
	b.loop.processor = func(f func()) time.Duration {
		before := time.Now()
		f()
		return min(time.Since(before), b.busy)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- b.loop.Run(ctx) }()
	b.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v, want nil when its context ends", err)
		}
	})
	t.Cleanup(b.stop)
	synctest.Wait()
	return b
}

func (b *bench) pass(ctx context.Context) error {
	b.mu.Lock()
	b.passes = append(b.passes, time.Since(b.begin))
	fail, takes := b.fail, b.takes
	b.mu.Unlock()
	if takes > 0 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(takes):
		}
	}
	return fail
}

func (b *bench) set(fail error, takes time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fail, b.takes = fail, takes
}

// at moves the clock to the given time after the start.
func (b *bench) at(when time.Duration) {
	time.Sleep(when - time.Since(b.begin))
	synctest.Wait()
}

func (b *bench) wantPasses(t *testing.T, want ...time.Duration) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if diff := cmp.Diff(want, b.passes); diff != "" {
		t.Errorf("passes started at (-want +got):\n%s", diff)
	}
}

func TestFirstPassNeedsNoEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Config{})
		b.at(time.Hour)
		b.wantPasses(t, 0)
	})
}

func TestEventAfterQuietRunsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Config{MinInterval: time.Second})
		b.at(10 * time.Second)
		b.trigger.Fire()
		b.at(20 * time.Second)
		b.wantPasses(t, 0, 10*time.Second)
	})
}

func TestEventsInOneIntervalMakeOnePass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Config{MinInterval: time.Second})
		for i := range 30 {
			b.at(time.Duration(i) * 100 * time.Millisecond)
			b.trigger.Fire()
			b.trigger.Fire()
		}
		b.at(time.Minute)
		b.wantPasses(t, 0, time.Second, 2*time.Second, 3*time.Second)
	})
}

func TestBurstAfterQuietRunsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Config{MinInterval: time.Second, Burst: 3})
		want := []time.Duration{0}
		for i := range 50 {
			b.at(10*time.Second + time.Duration(i)*100*time.Millisecond)
			b.trigger.Fire()
		}
		for _, at := range []int{100, 101, 102, 110, 120, 130, 140, 150} {
			want = append(want, time.Duration(at)*100*time.Millisecond)
		}
		// What comes no faster than that never waits.
		for i := range 20 {
			at := time.Minute + time.Duration(i)*2*time.Second
			b.at(at)
			b.trigger.Fire()
			b.at(at + 10*time.Millisecond)
			b.trigger.Fire()
			want = append(want, at, at+10*time.Millisecond)
		}
		b.at(time.Hour)
		b.wantPasses(t, want...)
	})
}

func TestEventDuringAPassMakesAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Config{})
		b.set(nil, time.Second)
		b.at(10 * time.Second)
		b.trigger.Fire()
		b.at(10*time.Second + 500*time.Millisecond)
		b.trigger.Fire()
		b.at(time.Minute)
		b.wantPasses(t, 0, 10*time.Second, 11*time.Second)
	})
}

// TestLongPassIsFollowedByARest checks that endless events leave most of a
// processor idle.
func TestLongPassIsFollowedByARest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Config{RestShare: 4, MinInterval: 20 * time.Millisecond})
		b.set(nil, time.Second)
		for i := range 120 {
			b.at(time.Minute + time.Duration(i)*100*time.Millisecond)
			b.trigger.Fire()
		}
		b.at(time.Hour)
		rest := 5*time.Second - restBurst
		b.wantPasses(t, 0, time.Minute, time.Minute+rest, time.Minute+5*time.Second+rest, time.Minute+10*time.Second+rest)
	})
}

// TestPassThatWaitedNeedsNoRest makes long passes with little processor time.
func TestPassThatWaitedNeedsNoRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Config{RestShare: 4, MinInterval: 20 * time.Millisecond})
		b.busy = time.Millisecond
		b.set(nil, time.Second)
		for i := range 30 {
			b.at(time.Minute + time.Duration(i)*100*time.Millisecond)
			b.trigger.Fire()
		}
		b.at(time.Hour)
		b.wantPasses(t, 0, time.Minute, time.Minute+time.Second, time.Minute+2*time.Second, time.Minute+3*time.Second)
	})
}

// TestProcessorTime checks that waiting has no processor time, and work does.
func TestProcessorTime(t *testing.T) {
	if took := processorTime(func() { time.Sleep(200 * time.Millisecond) }); took >= 200*time.Millisecond {
		t.Errorf("to wait took %v", took)
	}
	if took := processorTime(func() { bytes.Count(bytes.Repeat([]byte("ab"), 1<<22), []byte("ba")) }); took <= 0 {
		t.Errorf("to work took %v", took)
	}
}

// TestShortPassHoldsUpNoEvent makes one pass of many as long as on a busy machine.
func TestShortPassHoldsUpNoEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Config{RestShare: 4, MinInterval: 5 * time.Millisecond})
		want := []time.Duration{0}
		for i := range 20 {
			b.set(nil, time.Millisecond)
			if i == 10 {
				b.set(nil, 20*time.Millisecond)
			}
			at := time.Minute + time.Duration(i)*25*time.Millisecond
			b.at(at)
			b.trigger.Fire()
			want = append(want, at)
		}
		b.at(time.Hour)
		b.wantPasses(t, want...)
	})
}

func TestResyncCountsFromTheLastPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Config{Resync: 10 * time.Second})
		b.at(4 * time.Second)
		b.trigger.Fire()
		b.at(25 * time.Second)
		b.wantPasses(t, 0, 4*time.Second, 14*time.Second, 24*time.Second)
	})
}

func TestPassesThatAreDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		dues := []time.Duration{time.Second, 5 * time.Second, 0, 90 * time.Second}
		b := start(t, Config{Resync: 30 * time.Second, Due: func() (at time.Time) {
			if len(dues) > 0 && dues[0] > 0 {
				at = begin.Add(dues[0])
			}
			dues = dues[min(1, len(dues)):]
			return at
		}})
		b.at(70 * time.Second)
		b.wantPasses(t, 0, time.Second, 5*time.Second, 35*time.Second, 65*time.Second)
	})
}

func TestFailingPassesBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Config{BackoffMin: time.Second})
		b.set(errors.New("broken"), 0)
		b.at(time.Second)
		b.trigger.Fire()
		b.at(10 * time.Minute)

		b.mu.Lock()
		defer b.mu.Unlock()
		least := time.Second
		for i := 2; i < len(b.passes); i++ {
			gap := b.passes[i] - b.passes[i-1]
			if gap < least || gap > time.Minute {
				t.Errorf("wait %d is %v, want between %v and a minute", i-1, gap, least)
			}
			least = min(2*least, 40*time.Second)
		}
		if n := len(b.passes); n < 12 || n > 24 {
			t.Errorf("%d passes in ten minutes, want a dozen or two", n)
		}
	})
}

func TestEventShortensTheBackoffToItsMinimum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Config{BackoffMin: time.Second})
		b.set(errors.New("broken"), 0)
		for i := range 100 {
			b.at(time.Duration(i+1) * 100 * time.Millisecond)
			b.trigger.Fire()
		}
		b.stop()
		b.mu.Lock()
		defer b.mu.Unlock()
		if n := len(b.passes); n < 9 || n > 11 {
			t.Errorf("%d passes in ten seconds of constant events, want one a second", n)
		}
	})
}

func TestSuccessResetsTheBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Config{BackoffMin: time.Second})
		b.set(errors.New("broken"), 0)
		b.trigger.Fire()
		b.at(5 * time.Minute)
		b.set(nil, 0)
		b.trigger.Fire()
		b.at(6 * time.Minute)
		b.set(errors.New("broken again"), 0)
		b.at(10 * time.Minute)
		b.trigger.Fire()
		b.at(10*time.Minute + 2*time.Second)
		b.stop()
		b.mu.Lock()
		defer b.mu.Unlock()
		last := b.passes[len(b.passes)-1]
		if last < 10*time.Minute+time.Second {
			t.Errorf("last pass at %v: no short wait after the first failure", last)
		}
	})
}

func TestErrorsAreLoggedWhenTheyChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Config{BackoffMin: time.Second})
		b.set(errors.New("first"), 0)
		b.trigger.Fire()
		b.at(time.Minute)
		b.set(errors.New("second"), 0)
		b.trigger.Fire()
		b.at(2 * time.Minute)
		b.set(nil, 0)
		b.trigger.Fire()
		b.at(3 * time.Minute)
		b.stop()

		count := map[string]int{}
		for line := range strings.Lines(b.logged.String()) {
			if !strings.Contains(line, "level=DEBUG") {
				_, message, _ := strings.Cut(strings.TrimSpace(line), "level=")
				count[message]++
			}
		}
		want := map[string]int{
			`ERROR msg="reconciliation failing" loop="test loop" err=first`:  1,
			`ERROR msg="reconciliation failing" loop="test loop" err=second`: 1,
			`INFO msg="reconciliation recovered" loop="test loop"`:           1,
		}
		if diff := cmp.Diff(want, count); diff != "" {
			t.Errorf("logged above debug (-want +got):\n%s", diff)
		}
	})
}

func TestPassesWithoutErrorsAreSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Config{Resync: time.Second})
		b.at(time.Minute)
		b.stop()
		if b.logged.Len() > 0 {
			t.Errorf("logged:\n%s", b.logged)
		}
	})
}

func TestStuckNamesALongPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Config{})
		b.set(nil, 5*time.Minute)
		b.at(time.Hour)
		if err := b.loop.Stuck(); err != nil {
			t.Errorf("Stuck() = %v between passes", err)
		}
		b.trigger.Fire()
		b.at(time.Hour + 119*time.Second)
		if err := b.loop.Stuck(); err != nil {
			t.Errorf("Stuck() = %v before stuckAfter", err)
		}
		b.at(time.Hour + 3*time.Minute)
		want := "test loop: pass has been running for 3m0s"
		if err := b.loop.Stuck(); err == nil || err.Error() != want {
			t.Errorf("Stuck() = %v, want %q", err, want)
		}
		b.at(time.Hour + 6*time.Minute)
		if err := b.loop.Stuck(); err != nil {
			t.Errorf("Stuck() = %v after the pass ended", err)
		}
	})
}

func TestEndDuringAPassIsNoError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Config{})
		b.set(nil, time.Hour)
		b.trigger.Fire()
		b.at(time.Minute)
		b.stop()
		if b.logged.Len() > 0 {
			t.Errorf("logged:\n%s", b.logged)
		}
	})
}
