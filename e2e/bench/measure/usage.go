package measure

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// Group is processes that are counted together.
type Group struct {
	Name string
	PIDs []int
}

// Usage is what processors had done at one moment: all, and for groups of processes.
type Usage struct {
	groups []Group
	at     time.Time
	used   []time.Duration // by group
	busy   float64         // all, in seconds
}

// NewUsage looks at processes and the machine.
func NewUsage(groups ...Group) (*Usage, error) {
	u := &Usage{groups: groups, at: time.Now(), used: make([]time.Duration, len(groups))}
	for i, g := range groups {
		for _, pid := range g.PIDs {
			used, err := CPU(pid)
			if err != nil {
				return nil, err
			}
			u.used[i] += used
		}
	}
	var err error
	u.busy, err = busySeconds()
	return u, err
}

// Since says what share of one processor each group used since, and what the whole
// machine did.
func (u *Usage) Since() (string, error) {
	now, err := NewUsage(u.groups...)
	if err != nil {
		return "", err
	}
	passed := now.at.Sub(u.at).Seconds()
	text := "CPU: "
	for i, g := range u.groups {
		text += fmt.Sprintf("%s %.0f %%, ", g.Name, 100*(now.used[i]-u.used[i]).Seconds()/passed)
	}
	return fmt.Sprintf("%sthe machine %.0f %% of %d", text, 100*(now.busy-u.busy)/passed, 100*runtime.NumCPU()), nil
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
