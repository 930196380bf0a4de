package reconcile

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// processorTime calls f and returns its processor time, without that of other goroutines.
func processorTime(f func()) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := threadTime()
	f()
	return threadTime() - before
}

// threadTime returns the processor time of the thread.
func threadTime() time.Duration {
	var ts unix.Timespec
	// It never fails for this clock.
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts)
	return time.Duration(ts.Nano())
}
