package process

import (
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// TestScheduleAsBatch runs a process of its own: the policy of threads can't be reset.
func TestScheduleAsBatch(t *testing.T) {
	const variable = "TEST_SCHEDULE_AS_BATCH"
	if os.Getenv(variable) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestScheduleAsBatch$", "-test.v")
		cmd.Env = append(os.Environ(), variable+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	before, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := ScheduleAsBatch(); err != nil {
		t.Fatal(err)
	}
	// Threads that are started later, too.
	var (
		all  sync.WaitGroup
		hold = make(chan struct{})
	)
	for range 8 {
		ready := make(chan struct{})
		all.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			close(ready)
			<-hold
		})
		<-ready
	}
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		id, err := strconv.Atoi(thread.Name())
		if err != nil {
			t.Fatal(err)
		}
		got, err := unix.SchedGetAttr(id, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got.Policy != unix.SCHED_BATCH || got.Nice != before.Nice {
			t.Errorf("of %d threads one has policy %d and nice %d, want %d and %d", len(threads), got.Policy, got.Nice, unix.SCHED_BATCH, before.Nice)
		}
	}
	close(hold)
	all.Wait()
	if err := ScheduleAsBatch(); err != nil {
		t.Errorf("once more: %v", err)
	}
}
