// Package polltest polls conditions in tests.
package polltest

import (
	"testing"
	"time"
)

// Until polls a condition on the goroutine of the caller until it holds, at intervals that
// grow from 5 to 50 ms. It fails the test after the limit.
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
