package reconcile

import (
	"math/rand/v2"
	"time"
)

// Backoff computes the waits between attempts that keep failing: they double
// from Min to Max and are spread at random, so that a thousand nodes that lost
// the same API server don't come back to it in step. Its zero value waits from
// DefaultFirstWait to DefaultLongestWait. It isn't safe for concurrent use.
type Backoff struct {
	// Min and Max bound every wait.
	Min, Max time.Duration

	failures int
}

// Waits of a Backoff that leaves its bounds zero.
const (
	DefaultFirstWait   = 500 * time.Millisecond
	DefaultLongestWait = time.Minute
)

// Next returns how long to wait after one more failure: at random between the
// current step and half as much again, and never outside of Min and Max.
func (b *Backoff) Next() time.Duration {
	least, most := b.bounds()
	step := least
	for range b.failures {
		if step >= most {
			break
		}
		step *= 2
	}
	b.failures++
	// The spread goes up from the step, hence a step may take two thirds of
	// what is allowed: waits at the limit must be spread as well.
	step = max(least, min(step, most-most/3))
	return min(most, step+rand.N(step/2+1))
}

// Reset makes the next failure the first one again.
func (b *Backoff) Reset() { b.failures = 0 }

func (b *Backoff) bounds() (least, most time.Duration) {
	least, most = b.Min, b.Max
	if least <= 0 {
		least = DefaultFirstWait
	}
	if most <= 0 {
		most = DefaultLongestWait
	}
	return least, max(least, most)
}
