package cli

import (
	"context"
	"log"
	"log/slog"
	"sync/atomic"

	"k8s.io/klog/v2"

	"github.com/kube-semaphore/kube-semaphore/internal/printable"
)

// maxLogged bounds the lines that libraries log. The errors that they return are printed
// apart from these.
const maxLogged = 20

// AdoptLogs prints what libraries log as warnings of this session, at most so many lines,
// printable and of bounded length: client-go's errors, and what net/http writes to package
// log. Everything else that client-go logs, such as requests and responses, is discarded at
// any verbosity. Both loggers are global, so only main should call this.
func (s *Session) AdoptLogs() {
	to := &logs{session: s}
	klog.SetSlogLogger(slog.New(to))
	log.SetFlags(0)
	log.SetOutput(to)
}

// logs is the destination of both loggers.
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
	case n < maxLogged:
		l.session.Warn("%s", printable.Text(text, printable.Short))
	case n == maxLogged:
		l.session.Warn("further log lines of libraries are omitted")
	}
}
