package reconcile

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/errlog"
)

// maxRest is the longest rest after a pass, and restBurst how much of it may be put
// off; see Config.RestShare.
const (
	maxRest   = 10 * time.Second
	restBurst = 100 * time.Millisecond
)

// Config describes a Loop. Name, Reconcile, Trigger and Logger are required.
type Config struct {
	// Name says what is reconciled, as in "peers gcp".
	Name string
	// Reconcile makes one pass: it compares the whole state with what is
	// wanted and puts right what differs. It is never called twice at a time.
	// When nothing differs it writes and logs nothing.
	Reconcile func(ctx context.Context) error
	// Trigger asks for a pass.
	Trigger *Trigger
	// MinInterval is the least time between the starts of two passes. The
	// first event after a quiet time isn't held up by it. 0: none.
	MinInterval time.Duration
	// Burst is how many passes may start after a quiet time before MinInterval counts:
	// then as many as there were intervals since. 0: one.
	Burst int
	// RestShare is how many times as long as it took of a processor a pass is followed
	// by a rest, where that is more than MinInterval: a loop whose passes take as long as
	// somebody else likes takes no more than one part in RestShare+1 of a processor. On
	// Linux that doesn't count what the pass waited for: a device, others on a busy
	// machine. The rest may be put off until restBurst of it is due, and is maxRest at
	// most. 0: no rest.
	RestShare int
	// Resync is how long after a pass another one follows without any event,
	// in case an event was lost. 0: never.
	Resync time.Duration
	// Due, unless nil, is asked after a pass that succeeded, and says when
	// another one should start although nothing has happened: beside Resync,
	// whichever comes first. The zero time is never.
	Due func() time.Time
	// BackoffMin and BackoffMax bound the wait after a pass that failed; 0:
	// those of Backoff. An event shortens that wait, because it may be the
	// end of the trouble, but not to less than BackoffMin.
	BackoffMin, BackoffMax time.Duration
	// StuckAfter is how long a single pass may take before Stuck reports it.
	// 0: DefaultStuckAfter.
	StuckAfter time.Duration
	// Logger gets an error when it appears, when it changes and when it is
	// over; repetitions only at level debug.
	Logger *slog.Logger
	// Observe, unless nil, is told duration and outcome of each pass.
	Observe func(took time.Duration, err error)
}

// DefaultStuckAfter is how long a pass may take where Config doesn't say.
const DefaultStuckAfter = 2 * time.Minute

// Loop calls Reconcile whenever its trigger fired, its period went by, or the
// wait after a failure is over.
type Loop struct {
	cfg      Config
	backoff  Backoff
	outcomes *errlog.Log // of passes
	spaced   time.Time   // when all intervals of passes are over
	rested   time.Time   // when all rests after passes are over
	// processor measures what a function takes of a processor.
	processor func(func()) time.Duration

	mu      sync.Mutex
	started time.Time // of the pass that is running; zero between passes
	passed  bool      // one has succeeded
}

// NewLoop returns a loop that Run starts.
func NewLoop(cfg Config) *Loop {
	if cfg.StuckAfter <= 0 {
		cfg.StuckAfter = DefaultStuckAfter
	}
	l := &Loop{cfg: cfg, processor: processorTime, backoff: Backoff{Min: cfg.BackoffMin, Max: cfg.BackoffMax}, outcomes: &errlog.Log{
		Logger: cfg.Logger, Level: slog.LevelError, Failing: "reconciliation failing", Over: "reconciliation recovered",
	}}
	l.cfg.BackoffMin, l.cfg.BackoffMax = l.backoff.bounds()
	return l
}

// String returns the loop's name.
func (l *Loop) String() string { return l.cfg.Name }

// Run makes the first pass at once and goes on until ctx ends, which is not an
// error: Run returns nil. It must not be called twice.
func (l *Loop) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		// What fired until here is covered by the pass that starts now.
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

// Stuck returns an error while a pass has been running for longer than
// StuckAfter: the loop doesn't turn any more.
func (l *Loop) Stuck() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.started.IsZero() {
		return nil
	}
	if took := time.Since(l.started); took > l.cfg.StuckAfter {
		return fmt.Errorf("%s: pass has been running for %v", l.cfg.Name, took.Round(time.Second))
	}
	return nil
}

// Err returns the error of the last pass that ended; nil when it succeeded,
// and before the first one.
func (l *Loop) Err() error { return l.outcomes.Err() }

// Passed tells whether a pass has succeeded since start. Before that nothing is
// known of what the loop sees to.
func (l *Loop) Passed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.passed
}

func (l *Loop) pass(ctx context.Context, started time.Time) error {
	l.mu.Lock()
	l.started = started
	l.mu.Unlock()

	err := l.cfg.Reconcile(ctx)
	l.outcomes.Note(ctx, err, "loop", l.cfg.Name)

	l.mu.Lock()
	l.started = time.Time{}
	l.passed = l.passed || err == nil
	l.mu.Unlock()

	if ctx.Err() != nil {
		// Whatever it returned comes from the end of the process.
		return err
	}
	if l.cfg.Observe != nil {
		l.cfg.Observe(time.Since(started), err)
	}
	return err
}

// wait returns when the next pass is due, after one that took so much of a processor, or
// ctx has ended.
func (l *Loop) wait(ctx context.Context, started time.Time, took time.Duration, err error) {
	var (
		ended   = time.Now()
		unasked <-chan time.Time // when a pass starts without an event
	)
	l.spaced = latest(l.spaced, started).Add(l.cfg.MinInterval)
	// When one that an event asks for may start.
	onEvent := l.spaced.Add(-time.Duration(max(l.cfg.Burst-1, 0)) * l.cfg.MinInterval)
	l.rested = latest(l.rested.Add(ended.Sub(started)), ended).Add(min(time.Duration(l.cfg.RestShare)*took, maxRest))
	onEvent = latest(onEvent, l.rested.Add(-restBurst))
	switch {
	case err != nil:
		onEvent = latest(onEvent, ended.Add(l.cfg.BackoffMin))
		unasked = time.After(time.Until(latest(onEvent, ended.Add(l.backoff.Next()))))
	default:
		l.backoff.Reset()
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

// due returns when a pass is due without an event, after one that ended at the
// given time; the zero time is never.
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
