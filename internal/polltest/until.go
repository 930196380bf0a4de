// Package polltest waits in tests for what is about to happen.
package polltest

import (
	"testing"
	"time"
)

// Until asks every few milliseconds whether a condition holds, on the goroutine of
// the caller, and returns when it does. It fails the test when that takes longer
// than the limit.
func Until(t testing.TB, limit time.Duration, what string, holds func() bool) {
	t.Helper()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-deadline.C:
			t.Fatalf("not within %v: %s", limit, what)
		case <-tick.C:
		}
	}
}
