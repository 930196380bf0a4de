package run

import (
	"context"
	"log/slog"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

// AdoptClientLogs redirects the global logger of the Kubernetes client library to log. Only
// main should call it, before it starts anything.
func AdoptClientLogs(log *slog.Logger) { klog.SetSlogLogger(log.With("source", "client-go")) }

// ClientLog returns a logger for the Kubernetes client library that logs everything from
// level debug upwards at level debug: callers log the errors of requests themselves. Below
// debug the library would log bodies of requests and responses.
func ClientLog(log *slog.Logger) logr.Logger { return logr.FromSlogHandler(demoted{log.Handler()}) }

// demoted changes the level of all records to debug.
type demoted struct{ slog.Handler }

// Enabled implements slog.Handler.
func (d demoted) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelDebug && d.Handler.Enabled(ctx, slog.LevelDebug)
}

// Handle implements slog.Handler. logr calls it for errors without a call of Enabled.
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
