package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/kube-semaphore/internal/errlog"
)

// step is a part of a task's passes. It has a state of its own in status, log and metrics: the steps
// after one that fails are made nevertheless.
type step struct {
	name string
	// on, unless 0, limits the passes that make the step to those of these changes, those after it
	// failed, and one in slowPass: it waits for others.
	on       change
	at       time.Time // it was last made
	do       func(context.Context) (effect, error)
	repairs  *repairs // nil: another program can't undo what it makes
	outcomes *errlog.Log
	passed   atomic.Bool // has succeeded
	observe  func(time.Duration, error)
}

// effect is what a step has made: the desired state, and whether it had to change something.
type effect struct {
	want    any
	changed bool
}

// step returns a step.
func (a *agent) step(name string, do func(context.Context) error) *step {
	return &step{
		name:     name,
		do:       func(ctx context.Context) (effect, error) { return effect{}, do(ctx) },
		outcomes: &errlog.Log{Logger: a.log, Level: slog.LevelError, Failing: "reconciliation failing", Over: "reconciliation recovered"},
		observe:  a.metrics.observer(name),
	}
}

// repairing returns a step that restores what other programs change.
func (a *agent) repairing(name string, do func(context.Context) (effect, error)) *step {
	s := a.step(name, nil)
	s.do, s.repairs = do, &repairs{total: a.metrics.repairs.WithLabelValues(name)}
	return s
}

// due reports whether a pass at the time now, after these changes, makes the step.
func (s *step) due(now time.Time, after change) bool {
	return s.on == 0 || s.on&after != 0 || !s.passed.Load() || s.Err() != nil || now.Sub(s.at) >= slowPass
}

// run makes the step.
func (s *step) run(ctx context.Context) error {
	started := time.Now()
	s.at = started
	made, err := s.do(ctx)
	if s.repairs != nil {
		err = errors.Join(err, s.repairs.note(started, made, err))
	}
	if ctx.Err() != nil {
		return err // most likely for that reason
	}
	s.outcomes.Note(ctx, err, "loop", s.name)
	if err == nil {
		s.passed.Store(true)
	}
	s.observe(time.Since(started), err)
	return err
}

// String returns the step's name.
func (s *step) String() string { return s.name }

// Err returns the error of the last time; nil before the first one.
func (s *step) Err() error { return s.outcomes.Err() }

// Since returns since when it fails; zero: it doesn't.
func (s *step) Since() time.Time { return s.outcomes.Since() }

const (
	// repairsWindow is the time in which repairs are counted, mostRepairs their number in it
	// that is no fault. What the kernel doesn't report is compared every 30 s, so that a
	// program that changes it all the time is found after 3 minutes.
	repairsWindow = 5 * time.Minute
	mostRepairs   = 5
	// repairsQuiet is the time without a repair after which the fault is over.
	repairsQuiet = time.Minute
)

// errUndone is wrapped by the error of note.
var errUndone = errors.New("another program removes or changes them again and again")

// repairs counts how often a step has restored what other programs had changed in the
// kernel. The first repairs are immediate. After more than mostRepairs, note returns an
// error: the task then waits for its back-off before it follows another event, and the error
// is in the status, the log and the metric of failed passes.
type repairs struct {
	total prometheus.Counter
	want  string // desired state of the last pass; empty: none, or it failed
	at    []time.Time
}

// note records a pass. Changes made with an unchanged desired state are repairs.
func (r *repairs) note(now time.Time, made effect, err error) error {
	text := fmt.Sprint(made.want)
	if made.changed && text == r.want {
		r.at = append(r.at, now)
		r.total.Inc()
	}
	if r.want = text; err != nil {
		r.want = "" // The next pass continues this one.
	}
	for len(r.at) > 0 && (now.Sub(r.at[0]) >= repairsWindow || len(r.at) > 10*mostRepairs) {
		r.at = r.at[1:]
	}
	if n := len(r.at); n > mostRepairs && now.Sub(r.at[n-1]) < repairsQuiet {
		return fmt.Errorf("%w: %d repairs or more within %v", errUndone, mostRepairs+1, repairsWindow)
	}
	return nil
}
