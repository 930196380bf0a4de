package reconcile

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/kube-semaphore/kube-semaphore/internal/errlog"
)

const (
	// maxRest is the longest rest after a pass, and restBurst how much rest may be deferred;
	// see Config.RestShare.
	maxRest   = 10 * time.Second
	restBurst = 100 * time.Millisecond
	// stuckAfter is the duration of a pass after which Stuck returns an error.
	stuckAfter = 2 * time.Minute
)

// Config describes a Loop. Name, Reconcile, Trigger and Logger are required.
type Config struct {
	// Name names the loop in logs, such as "peers gcp".
	Name string
	// Reconcile makes one pass: it compares the whole observed state with the desired one
	// and applies the differences. Calls don't overlap. Without differences it writes and
	// logs nothing.
	Reconcile func(ctx context.Context) error
	// Trigger requests a pass.
	Trigger *Trigger
	// MinInterval is the minimum time between the starts of two passes. It doesn't delay
	// the first event after a quiet time. 0: none.
	MinInterval time.Duration
	// Burst is the number of passes that may start without MinInterval after a quiet time;
	// each interval since allows another one. 0: one.
	Burst int
	// RestShare is the rest after a pass as a multiple of its processor time, if that is
	// longer than MinInterval: a loop whose passes depend on remote input uses at most
	// 1/(RestShare+1) of a processor. On Linux the time that a pass waits doesn't count.
	// The rest is deferred until restBurst is due, and is maxRest at most. 0: no rest. (A
	// rate.Limiter of golang.org/x/time takes no cost beyond its burst, and a pass may take any.)
	RestShare int
	// Resync is the time after a pass until the next one without an event, in case an
	// event was lost. 0: never.
	Resync time.Duration
	// Due, if set, is called after a successful pass, and returns when the next one starts
	// without an event, unless Resync is earlier. The zero time is never.
	Due func() time.Time
	// BackoffMin is the least wait after a failed pass; 0: that of Backoff. An event shortens
	// the wait to it, because it may have fixed the cause.
	BackoffMin time.Duration
	// BackoffMax is the longest wait after a failed pass; 0: that of Backoff.
	BackoffMax time.Duration
	// Logger gets an error when it appears, changes and ends; repetitions at level debug.
	Logger *slog.Logger
}

// Loop calls Reconcile on triggers, periodically, and after back-off.
type Loop struct {
	cfg      Config
	backoff  wait.Backoff
	outcomes *errlog.Log // of passes
	spaced   time.Time   // end of the intervals of all passes
	rested   time.Time   // end of the rests of all passes
	// processor measures the processor time of a function.
	processor func(func()) time.Duration

	mu      sync.Mutex
	started time.Time // of the pass that is running; zero between passes
}

// NewLoop returns a loop.
func NewLoop(cfg Config) *Loop {
	l := &Loop{cfg: cfg, processor: processorTime, backoff: Backoff(cfg.BackoffMin, cfg.BackoffMax), outcomes: &errlog.Log{
		Logger: cfg.Logger, Level: slog.LevelError, Failing: "reconciliation failing", Over: "reconciliation recovered",
	}}
	l.cfg.BackoffMin = l.backoff.Duration
	return l
}

// String returns the loop's name.
func (l *Loop) String() string { return l.cfg.Name }

// Run makes the first pass at once and runs until ctx ends, then returns nil. It must not be
// called twice.
func (l *Loop) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		// The pass that starts now covers all events so far.
		l.cfg.Trigger.drain()
		started := time.Now()
		var took time.Duration
		var err error
		if l.cfg.RestShare > 0 {
			took = l.processor(func() { err = l.pass(ctx, started) })
		} else {
			err = l.pass(ctx, started)
		}
		if ctx.Err() != nil {
			break
		}
		l.wait(ctx, started, took, err)
	}
	return nil
}

// Stuck returns an error while a pass has been running for longer than stuckAfter.
func (l *Loop) Stuck() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.started.IsZero() {
		return nil
	}
	if took := time.Since(l.started); took > stuckAfter {
		return fmt.Errorf("%s: pass has been running for %v", l.cfg.Name, took.Round(time.Second))
	}
	return nil
}

func (l *Loop) pass(ctx context.Context, started time.Time) error {
	l.mu.Lock()
	l.started = started
	l.mu.Unlock()

	err := l.cfg.Reconcile(ctx)
	l.outcomes.Note(ctx, err, "loop", l.cfg.Name)

	l.mu.Lock()
	l.started = time.Time{}
	l.mu.Unlock()
	return err
}

// wait returns when the next pass is due, after one with that processor time, or ctx has
// ended.
func (l *Loop) wait(ctx context.Context, started time.Time, took time.Duration, err error) {
	var (
		ended   = time.Now()
		unasked <-chan time.Time // when a pass starts without an event
	)
	l.spaced = latest(l.spaced, started).Add(l.cfg.MinInterval)
	// The earliest start of a pass that an event triggers.
	onEvent := l.spaced.Add(-time.Duration(max(l.cfg.Burst-1, 0)) * l.cfg.MinInterval)
	l.rested = latest(l.rested.Add(ended.Sub(started)), ended).Add(min(time.Duration(l.cfg.RestShare)*took, maxRest))
	onEvent = latest(onEvent, l.rested.Add(-restBurst))
	switch {
	case err != nil:
		onEvent = latest(onEvent, ended.Add(l.cfg.BackoffMin))
		unasked = time.After(time.Until(latest(onEvent, ended.Add(l.backoff.Step()))))
	default:
		l.backoff = Backoff(l.cfg.BackoffMin, l.cfg.BackoffMax)
		if at := l.due(ended); !at.IsZero() {
			unasked = time.After(time.Until(latest(onEvent, at)))
		}
	}
	select {
	case <-ctx.Done():
	case <-unasked:
	case <-l.cfg.Trigger.C():
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(onEvent)):
		}
	}
}

// due returns when the next pass is due without an event, after one that ended at that
// time; the zero time is never.
func (l *Loop) due(ended time.Time) time.Time {
	var at time.Time
	if l.cfg.Due != nil {
		at = l.cfg.Due()
	}
	if l.cfg.Resync > 0 {
		if resync := ended.Add(l.cfg.Resync); at.IsZero() || resync.Before(at) {
			at = resync
		}
	}
	return at
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
