package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/bench/measure"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// pingInterval is that of the series in which gaps are looked for. A gap is the
// time between two replies, so an undisturbed series has one of this length.
const pingInterval = 10 * time.Millisecond

// restart compares how long traffic stops when a tunnel's process is replaced.
func (b *bench) restart(ctx context.Context, ours, beside *side) error {
	for _, how := range []struct {
		name string
		end  func(*side) func(context.Context) error
	}{
		{"kill -9", func(s *side) func(context.Context) error { return s.kill }},
		{"SIGTERM", func(s *side) func(context.Context) error { return s.stop }},
	} {
		var gaps, lost []pair
		for i := range b.pairs {
			x, err := replace(ctx, ours, how.end(ours))
			if err != nil {
				return fmt.Errorf("%s: %w", ours.name, err)
			}
			y, err := replace(ctx, beside, how.end(beside))
			if err != nil {
				return fmt.Errorf("%s: %w", beside.name, err)
			}
			gaps = append(gaps, pair{x.LongestGap.Seconds(), y.LongestGap.Seconds()})
			lost = append(lost, pair{float64(x.Sent - x.Received), float64(y.Sent - y.Received)})
			b.say("%s, pair %d of %d: gap %v and %v, lost %d and %d", how.name, i+1, b.pairs,
				x.LongestGap.Round(time.Millisecond), y.LongestGap.Round(time.Millisecond), x.Sent-x.Received, y.Sent-y.Received)
		}
		b.table.add(row{what: "gap, " + how.name + " and start", beside: beside.name + ", set up again", pairs: gaps, unit: duration})
		b.table.add(row{what: "packets lost of 100/s", beside: beside.name + ", set up again", pairs: lost, unit: number})
	}
	return nil
}

// replace ends and starts the process at one end of a tunnel, under pings.
func replace(ctx context.Context, s *side, end func(context.Context) error) (testbed.PingResult, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("not within a minute"))
	defer cancel()
	pinging, stop := context.WithCancel(ctx)
	defer stop()
	type outcome struct {
		testbed.PingResult
		err error
	}
	done := make(chan outcome, 1)
	go func() {
		result, err := s.from.PingSeries(pinging, s.to.Addresses[0], pingInterval)
		done <- outcome{result, err}
	}()
	err := errors.Join(
		measure.Pause(ctx, time.Second/2),
		end(ctx),
		s.start(ctx),
		s.waitConnected(ctx),
		// Long enough for the series to notice that it goes on.
		measure.Pause(ctx, time.Second/2),
	)
	stop()
	result := <-done
	return result.PingResult, errors.Join(err, result.err)
}
