// Package errlog deduplicates log messages about recurring errors: it logs an error when
// it appears, changes and ends, and not each time it occurs.
package errlog

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"
)

// Log logs the outcomes of a repeated operation. It is safe for concurrent use and keeps
// the order of the outcomes.
//
//	before  now  is logged
//	-       -    nothing
//	-       a    Failing, err=a, at Level
//	a       a    Failing, err=a, at level debug
//	a       b    Failing, err=b, at Level
//	a       -    Over, at level info
//
// Within Quiet of the last line at Level, an error that appears or changes is logged at
// level debug, and at Level if it persists longer. The end of an error is only logged if
// the error was logged at Level.
type Log struct {
	// Logger is required.
	Logger *slog.Logger
	// Level is the level of an error that appears or changes; default slog.LevelInfo.
	Level slog.Level
	// Failing is the message of an error, Over that of its end. With an empty Over the
	// end isn't logged.
	Failing, Over string
	// Kind, if set, returns the identity of an error: errors of one kind are repetitions.
	// The default is the error's text.
	Kind func(error) string
	// Quiet is the minimum interval between two lines at Level about one key.
	Quiet time.Duration

	mu      sync.Mutex
	lasting map[string]lasting // by key
}

// lasting is an error that persists, or was logged less than Quiet ago.
type lasting struct {
	err    error     // nil: it is over
	since  time.Time // when err, or an error before it, appeared
	logged bool      // at Level since it appeared
	kind   string    // of the last error logged at Level
	at     time.Time // when that was logged
}

// Note logs an outcome, nil for success, with attributes as for [slog.Logger.Log]. It
// returns true when the error appeared, changed or ended, and false for a repetition.
//
// Errors are ignored once ctx has ended, which most likely caused them.
func (l *Log) Note(ctx context.Context, err error, attrs ...any) (changed bool) {
	return l.NoteOf(ctx, "", err, attrs...)
}

// NoteOf is Note for one of several operations that fail independently, identified by
// key, which isn't logged. A key whose last outcome was success takes no memory for
// longer than Quiet.
func (l *Log) NoteOf(ctx context.Context, key string, err error, attrs ...any) (changed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before, now := l.lasting[key], time.Now()
	if err == nil {
		if before.err == nil {
			return false
		}
		l.lasting[key] = lasting{kind: before.kind, at: before.at}
		maps.DeleteFunc(l.lasting, func(_ string, e lasting) bool { return e.err == nil && now.Sub(e.at) >= l.Quiet })
		if before.logged && l.Over != "" {
			l.Logger.InfoContext(ctx, l.Over, attrs...) //nolint:sloglint // The message is the caller's.
		}
		return true
	}
	if ctx.Err() != nil {
		return false
	}
	after, level := lasting{err: err, since: now, logged: true, kind: l.kind(err), at: now}, l.Level
	if before.err != nil {
		after.since = before.since
	}
	changed = (!before.logged || after.kind != before.kind) && now.Sub(before.at) >= l.Quiet
	if !changed {
		after.logged, after.kind, after.at, level = before.logged, before.kind, before.at, slog.LevelDebug
	}
	if l.lasting == nil {
		l.lasting = map[string]lasting{}
	}
	l.lasting[key] = after
	l.Logger.Log(ctx, level, l.Failing, append(attrs[:len(attrs):len(attrs)], "err", err)...) //nolint:sloglint // As above.
	return changed
}

// Err returns the last errors of all keys that fail, joined in the order of the keys.
func (l *Log) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []error
	for _, key := range slices.Sorted(maps.Keys(l.lasting)) {
		if err := l.lasting[key].err; err != nil {
			all = append(all, err)
		}
	}
	if len(all) == 1 {
		return all[0]
	}
	return errors.Join(all...)
}

// Since returns when the first error appeared of those that Err returns; zero without one.
func (l *Log) Since() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	var first time.Time
	for _, e := range l.lasting {
		if e.err != nil && (first.IsZero() || e.since.Before(first)) {
			first = e.since
		}
	}
	return first
}

func (l *Log) kind(err error) string {
	if l.Kind != nil {
		return l.Kind(err)
	}
	return err.Error()
}
