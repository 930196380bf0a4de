package cluster

import (
	"context"
	"log/slog"
	"time"

	"k8s.io/utils/clock"
)

// demoted logs at level debug whatever client-go logs at debug or above. Below
// that it would log the bodies of requests and responses.
type demoted struct{ slog.Handler }

// Enabled implements slog.Handler.
func (d demoted) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelDebug && d.Handler.Enabled(ctx, slog.LevelDebug)
}

// Handle implements slog.Handler.
func (d demoted) Handle(ctx context.Context, record slog.Record) error {
	record.Level = slog.LevelDebug
	return d.Handler.Handle(ctx, record)
}

// WithAttrs implements slog.Handler.
func (d demoted) WithAttrs(attrs []slog.Attr) slog.Handler {
	return demoted{d.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (d demoted) WithGroup(name string) slog.Handler { return demoted{d.Handler.WithGroup(name)} }

// interruptibleClock is the real one, but for waits that end with a context, and
// when a server is back: client-go's reflector backs off for up to a minute in a
// place where it doesn't notice that it should stop.
type interruptibleClock struct {
	clock.RealClock
	ended  <-chan struct{}
	server *Server
}

func interruptible(ctx context.Context, server *Server) clock.Clock {
	return interruptibleClock{ended: ctx.Done(), server: server}
}

// After implements clock.Clock.
func (c interruptibleClock) After(d time.Duration) <-chan time.Time {
	fired, back := make(chan time.Time, 1), c.server.returns()
	go func() {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case now := <-timer.C:
			fired <- now
		case <-c.ended:
			fired <- time.Now()
		case <-back:
			fired <- time.Now()
		}
	}()
	return fired
}
