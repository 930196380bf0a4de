package reconcile

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// processorTime calls f and returns how long it had a processor. What other goroutines
// do for f doesn't count.
func processorTime(f func()) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := threadTime()
	f()
	return threadTime() - before
}

// threadTime is how long the thread had a processor since it began.
func threadTime() time.Duration {
	var ts unix.Timespec
	// With a clock that there is and room for the answer it doesn't fail.
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts)
	return time.Duration(ts.Nano())
}
