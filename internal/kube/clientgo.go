package kube

import (
	"context"
	"time"

	"k8s.io/utils/clock"
)

// endingClock is the real clock, except that waits end with a context: client-go's reflector
// waits after a streamed list that failed, up to ten seconds, without watching its own.
type endingClock struct {
	clock.RealClock
	ctx context.Context //nolint:containedctx // After has no context.
}

// After implements clock.Clock.
func (c endingClock) After(d time.Duration) <-chan time.Time {
	fired := make(chan time.Time, 1)
	ctx, cancel := context.WithTimeout(c.ctx, d)
	context.AfterFunc(ctx, func() {
		cancel()
		fired <- time.Now()
	})
	return fired
}
