// Package polltest waits in tests for what is about to happen.
package polltest

import (
	"testing"
	"time"
)

// Until asks whether a condition holds, on the goroutine of the caller, and returns when it
// does: each 5 ms at first, and less often the longer it takes, 50 ms at most. It fails the
// test when that takes longer than the limit.
func Until(t testing.TB, limit time.Duration, what string, holds func() bool) {
	t.Helper()
	began := time.Now()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	for !holds() {
		select {
		case <-deadline.C:
			t.Fatalf("not within %v: %s", limit, what)
		case <-time.After(min(max(5*time.Millisecond, time.Since(began)/32), 50*time.Millisecond)):
		}
	}
}
