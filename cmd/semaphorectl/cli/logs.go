package cli

import (
	"context"
	"log"
	"log/slog"
	"sync/atomic"

	"k8s.io/klog/v2"

	"github.com/kube-semaphore/kube-semaphore/internal/printable"
)

// mostLogged is how many lines of libraries are printed: the errors that they return come
// besides.
const mostLogged = 20

// AdoptLogs prints what libraries log by themselves as warnings of this session, in so many
// lines, printable and of bounded length: client-go's errors, and what net/http says
// through package log. All else that client-go logs, requests and answers above all, is
// discarded at any verbosity. Both have one logger for the process, so that only main
// should call this.
func (s *Session) AdoptLogs() {
	to := &logs{session: s}
	klog.SetSlogLogger(slog.New(to))
	log.SetFlags(0)
	log.SetOutput(to)
}

// logs takes what libraries log.
type logs struct {
	session *Session
	lines   atomic.Int64
}

// Enabled implements slog.Handler.
func (l *logs) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelError }

// Handle implements slog.Handler. Of the attributes it prints the error alone.
func (l *logs) Handle(_ context.Context, record slog.Record) error {
	if record.Level < slog.LevelError {
		return nil
	}
	text := record.Message
	record.Attrs(func(a slog.Attr) bool {
		if a.Key == "err" {
			text += ": " + a.Value.String()
		}
		return true
	})
	l.print(text)
	return nil
}

// WithAttrs implements slog.Handler.
func (l *logs) WithAttrs([]slog.Attr) slog.Handler { return l }

// WithGroup implements slog.Handler.
func (l *logs) WithGroup(string) slog.Handler { return l }

// Write implements io.Writer for package log, which writes each entry by itself.
func (l *logs) Write(entry []byte) (int, error) {
	l.print(string(entry))
	return len(entry), nil
}

func (l *logs) print(text string) {
	switch n := l.lines.Add(1); {
	case n < mostLogged:
		l.session.Warn("%s", printable.Text(text, printable.Short))
	case n == mostLogged:
		l.session.Warn("more that libraries log is left out")
	}
}
