//go:build !linux

package reconcile

import "time"

// processorTime calls f and returns how long it took.
func processorTime(f func()) time.Duration {
	started := time.Now()
	f()
	return time.Since(started)
}
