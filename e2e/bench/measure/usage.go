package measure

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// Usage is what processors had done at one moment: all, and for one process.
type Usage struct {
	pid        int
	at         time.Time
	ours, busy float64
}

// NewUsage looks at a process and the machine.
func NewUsage(pid int) (*Usage, error) {
	ours, err := CPU(pid)
	if err != nil {
		return nil, err
	}
	busy, err := busySeconds()
	return &Usage{pid: pid, at: time.Now(), ours: ours.Seconds(), busy: busy}, err
}

// Since says what share of one processor the process used since, and what the
// whole machine did.
func (u *Usage) Since() (string, error) {
	now, err := NewUsage(u.pid)
	if err != nil {
		return "", err
	}
	passed := now.at.Sub(u.at).Seconds()
	return fmt.Sprintf("our CPU %.0f %%, the machine's %.0f %% of %d", 100*(now.ours-u.ours)/passed,
		100*(now.busy-u.busy)/passed, 100*runtime.NumCPU()), nil
}

// busySeconds returns the time that all processors were not idle: the first
// line of /proc/stat but idle and iowait (proc_stat(5)).
func busySeconds() (float64, error) {
	content, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(content), "\n")
	total := 0.0
	for i, field := range strings.Fields(line)[1:9] {
		value, err := strconv.ParseFloat(field, 64)
		if err != nil {
			return 0, err
		}
		if i != 3 && i != 4 {
			total += value
		}
	}
	return total / 100, nil
}
