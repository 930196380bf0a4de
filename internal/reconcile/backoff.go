package reconcile

import (
	"cmp"
	"math"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Backoff returns the waits between failing attempts, each a Step: they double from least to most, with random
// jitter, so that a thousand nodes that lost the same API server don't reconnect at once. 0: half a second, and
// a minute.
func Backoff(least, most time.Duration) wait.Backoff {
	least = cmp.Or(least, time.Second/2)
	most = max(least, cmp.Or(most, time.Minute))
	// The last step is two thirds of the longest wait, so that waits at the limit have jitter as well.
	return wait.Backoff{Duration: least, Factor: 2, Jitter: .5, Steps: math.MaxInt32, Cap: max(least, most-most/3)}
}
