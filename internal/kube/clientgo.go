package kube

import (
	"context"
	"time"

	"k8s.io/utils/clock"
)

// interruptibleClock is the real clock, except that waits end when a context ends or the
// server responds again: client-go's reflector backs off for up to a minute without
// watching its context.
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
	fired, back := make(chan time.Time, 1), c.server.recovery()
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
