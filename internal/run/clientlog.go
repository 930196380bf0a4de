package run

import (
	"context"
	"log/slog"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

// AdoptClientLogs sends what the Kubernetes client library logs on its own
// account to log, too. That library has one logger for the process, so that
// only main should call this, before it starts anything.
func AdoptClientLogs(log *slog.Logger) { klog.SetSlogLogger(log.With("source", "client-go")) }

// ClientLog returns what Kubernetes' client library logs to about single requests:
// whoever makes them logs what matters of it once, at a level of its own. It passes to
// log, at level debug, whatever the library logs at debug or above. Below that it would
// log the bodies of requests and responses.
func ClientLog(log *slog.Logger) logr.Logger { return logr.FromSlogHandler(demoted{log.Handler()}) }

// demoted makes every record one of level debug.
type demoted struct{ slog.Handler }

// Enabled implements slog.Handler.
func (d demoted) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelDebug && d.Handler.Enabled(ctx, slog.LevelDebug)
}

// Handle implements slog.Handler. It is called for errors without a call of
// Enabled: logr's are logged at any level.
func (d demoted) Handle(ctx context.Context, record slog.Record) error {
	if !d.Enabled(ctx, record.Level) {
		return nil
	}
	record.Level = slog.LevelDebug
	return d.Handler.Handle(ctx, record)
}

// WithAttrs implements slog.Handler.
func (d demoted) WithAttrs(attrs []slog.Attr) slog.Handler {
	return demoted{d.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (d demoted) WithGroup(name string) slog.Handler { return demoted{d.Handler.WithGroup(name)} }
