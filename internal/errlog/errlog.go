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
//	a       b    Failing, err=b, at Level
//	a       -    Over, at level info
//
// With Quiet, an error that appears or changes within that time of the last line at
// Level is logged at level debug, and at Level when it still lasts afterwards. Its end is
// only logged if it was.
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
	// Quiet is the least time between two lines at Level about one key; 0: none.
	Quiet time.Duration

	mu      sync.Mutex
	lasting map[string]lasting // by key
}

// lasting is an error that isn't over, or was logged less than Quiet ago.
type lasting struct {
	err  error     // nil: it is over
	told bool      // it was logged at Level since it appeared
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
// them apart and isn't logged. What succeeded last takes no memory for longer than
// Quiet.
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
		if before.told && l.Over != "" {
			l.Logger.InfoContext(ctx, l.Over, attrs...) //nolint:sloglint // The message is the caller's.
		}
		return true
	}
	if ctx.Err() != nil {
		return false
	}
	after, level := lasting{err: err, told: true, kind: l.kind(err), at: now}, l.Level
	changed = (!before.told || after.kind != before.kind) && now.Sub(before.at) >= l.Quiet
	if !changed {
		after.told, after.kind, after.at, level = before.told, before.kind, before.at, slog.LevelDebug
	}
	if l.lasting == nil {
		l.lasting = map[string]lasting{}
	}
	l.lasting[key] = after
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
		if err := l.lasting[key].err; err != nil {
			all = append(all, err)
		}
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
