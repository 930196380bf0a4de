// Package synctest is testing/synctest, run so that the race detector survives it.
//
// Goroutines of a bubble that read timers which are due run them with the bubble's own race
// context, which two threads may not use at the same time: the detector then ends the
// program, with "CHECK failed" or a crash in its SlotLock (https://go.dev/issue/78156). So
// under the detector a bubble has one processor. What happens before what, and thus which
// races are found, doesn't depend on their number.
package synctest

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
)

var (
	mu      sync.Mutex
	bubbles int // running
	before  int // processors, before the first of them
)

// Test runs f in a bubble, as [synctest.Test] does.
func Test(t *testing.T, f func(*testing.T)) {
	t.Helper()
	if race {
		enter()
		defer leave()
	}
	synctest.Test(t, f)
}

// Wait is [synctest.Wait].
func Wait() { synctest.Wait() }

func enter() {
	mu.Lock()
	defer mu.Unlock()
	if bubbles == 0 {
		before = runtime.GOMAXPROCS(1)
	}
	bubbles++
}

func leave() {
	mu.Lock()
	defer mu.Unlock()
	bubbles--
	if bubbles == 0 {
		runtime.GOMAXPROCS(before)
	}
}
