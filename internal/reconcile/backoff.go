package reconcile

import (
	"math/rand/v2"
	"time"
)

// Backoff computes the waits between failing attempts: they double from Min to Max, with
// random jitter, so that a thousand nodes that lost the same API server don't reconnect at
// once. Its zero value waits from DefaultFirstWait to DefaultLongestWait. It isn't safe for
// concurrent use.
type Backoff struct {
	// Min and Max bound every wait.
	Min, Max time.Duration

	failures int
}

// Defaults of a Backoff.
const (
	DefaultFirstWait   = 500 * time.Millisecond
	DefaultLongestWait = time.Minute
)

// Next returns the wait after another failure: a random time between the current step and
// 1.5 times the step, within Min and Max.
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
	// The last step is two thirds of Max, so that waits at the limit have jitter as well.
	step = max(least, min(step, most-most/3))
	return min(most, step+rand.N(step/2+1))
}

// Reset starts again from Min.
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
