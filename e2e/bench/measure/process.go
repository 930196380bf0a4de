// Package measure is shared by the benchmarks: it reads the CPU time and memory of
// processes from the kernel, and summarizes series of measurements.
package measure

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// clockTick is the unit of processor times in /proc: USER_HZ, which is 100 on
// every architecture that Go has (time(7)).
const clockTick = 10 * time.Millisecond

// CPU returns the processor time that a process has used, user and system, all
// threads.
func CPU(pid int) (time.Duration, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	return parseStat(string(content))
}

// parseStat reads utime and stime, fields 14 and 15 of /proc/<pid>/stat
// (proc_pid_stat(5)). The second field is a name in parentheses and may hold
// both of them and spaces.
func parseStat(content string) (time.Duration, error) {
	end := strings.LastIndexByte(content, ')')
	fields := strings.Fields(content[end+1:])
	if end < 0 || len(fields) < 13 {
		return 0, errors.New("not the content of /proc/<pid>/stat")
	}
	user, userErr := strconv.ParseInt(fields[11], 10, 64)
	system, systemErr := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * clockTick, errors.Join(userErr, systemErr)
}

// Resident returns the resident sets of processes in bytes, added up, now and each at
// its greatest. What they share counts for each.
func Resident(pids ...int) (now, peak float64, err error) {
	for _, pid := range pids {
		content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			return 0, 0, err
		}
		oneNow, nowErr := parseStatus(string(content), "VmRSS")
		onePeak, peakErr := parseStatus(string(content), "VmHWM")
		if err := errors.Join(nowErr, peakErr); err != nil {
			return 0, 0, err
		}
		now, peak = now+oneNow, peak+onePeak
	}
	return now, peak, nil
}

// Proportional returns the proportional set of processes in bytes, added up: what they
// share counts once (PSS, see the kernel's documentation, filesystems/proc.rst).
func Proportional(pids ...int) (sum float64, err error) {
	for _, pid := range pids {
		content, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			return 0, err
		}
		one, err := parseStatus(string(content), "Pss")
		if err != nil {
			return 0, err
		}
		sum += one
	}
	return sum, nil
}

// parseStatus reads a size of /proc/<pid>/status or smaps_rollup, such as
// "VmRSS:  1024 kB", and returns bytes.
func parseStatus(content, name string) (float64, error) {
	for line := range strings.Lines(content) {
		value, found := strings.CutPrefix(line, name+":")
		if !found {
			continue
		}
		kilobytes, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		return float64(kilobytes) * 1024, err
	}
	return 0, fmt.Errorf("no %s in what /proc says of a process", name)
}
