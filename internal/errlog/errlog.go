// Package errlog logs errors that last: when they appear, when they change and
// when they are over, however often they are met in between.
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

// Log logs the outcomes of something that is done again and again. It is safe for
// concurrent use; lines come in the order of the outcomes.
//
//	before  now  is logged
//	-       -    nothing
//	-       a    Failing, err=a, at Level
//	a       a    Failing, err=a, at level debug
//	a       b    Failing, err=b, at Level; at level debug within Quiet of the last line
//	a       -    Over, at level info
type Log struct {
	// Logger is required.
	Logger *slog.Logger
	// Level is that of an error that is new; slog.LevelInfo unless it is set.
	Level slog.Level
	// Failing is the message of an error, and Over that of its end; empty: the end
	// isn't logged.
	Failing, Over string
	// Kind, unless nil, returns what makes an error another one. Without it that is
	// its text.
	Kind func(error) string
	// Quiet is the least time between two lines about errors with one key that
	// change; 0: none.
	Quiet time.Duration

	mu      sync.Mutex
	lasting map[string]lasting // by key
}

// lasting is an error that isn't over.
type lasting struct {
	err  error
	kind string    // of the one that was logged last
	at   time.Time // when it was
}

// Note logs an outcome, nil for success, together with attributes as [slog.Logger.Log]
// takes them. It returns true when it logged anything but a repetition: an error
// appeared, changed, or is over.
//
// An error that is met after ctx has ended isn't noted: most likely it is that end.
func (l *Log) Note(ctx context.Context, err error, attrs ...any) (changed bool) {
	return l.NoteOf(ctx, "", err, attrs...)
}

// NoteOf is Note for one of many that fail and recover each by itself. The key tells
// them apart and isn't logged. What succeeded last takes no memory.
func (l *Log) NoteOf(ctx context.Context, key string, err error, attrs ...any) (changed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before, failed := l.lasting[key]
	if err == nil {
		delete(l.lasting, key)
		if failed && l.Over != "" {
			l.Logger.InfoContext(ctx, l.Over, attrs...) //nolint:sloglint // The message is the caller's.
		}
		return failed
	}
	if ctx.Err() != nil {
		return false
	}
	now, level := lasting{err: err, kind: l.kind(err), at: time.Now()}, l.Level
	changed = !failed || now.kind != before.kind && now.at.Sub(before.at) >= l.Quiet
	if !changed {
		now.kind, now.at, level = before.kind, before.at, slog.LevelDebug
	}
	if l.lasting == nil {
		l.lasting = map[string]lasting{}
	}
	l.lasting[key] = now
	l.Logger.Log(ctx, level, l.Failing, append(attrs[:len(attrs):len(attrs)], "err", err)...) //nolint:sloglint // As above.
	return changed
}

// Err returns the errors that aren't over, as they were noted last, joined in the order
// of their keys; nil when there are none.
func (l *Log) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []error
	for _, key := range slices.Sorted(maps.Keys(l.lasting)) {
		all = append(all, l.lasting[key].err)
	}
	if len(all) == 1 {
		return all[0]
	}
	return errors.Join(all...)
}

func (l *Log) kind(err error) string {
	if l.Kind != nil {
		return l.Kind(err)
	}
	return err.Error()
}
