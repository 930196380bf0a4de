package process

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// ScheduleAsBatch has the kernel let run on what runs when a thread of this process wakes
// up, as long as a processor does something (SCHED_BATCH, sched(7)). In a program whose
// threads hand packets to each other a hundred thousand times a second that is worth more
// than a quick start of each: fewer switches, and more packets for each of them. Threads
// that follow another policy already are left alone. It needs no privilege.
func ScheduleAsBatch() error {
	// Threads inherit the policy of the one that starts them, which may not have it yet.
	for changed := true; changed; {
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return fmt.Errorf("schedule as batch: %w", err)
		}
		changed = false
		for _, thread := range threads {
			id, err := strconv.Atoi(thread.Name())
			if err != nil {
				return fmt.Errorf("schedule as batch: %w", err)
			}
			attributes, err := unix.SchedGetAttr(id, 0)
			if err == nil && attributes.Policy == unix.SCHED_NORMAL {
				attributes.Policy = unix.SCHED_BATCH
				err, changed = unix.SchedSetAttr(id, attributes, 0), true
			}
			if err != nil && !errors.Is(err, unix.ESRCH) { // it has ended
				return fmt.Errorf("schedule as batch: %w", err)
			}
		}
	}
	return nil
}
