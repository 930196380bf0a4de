// Package processtest suspends processes in tests, which simulates a busy node that doesn't
// schedule them.
package processtest

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// stopLimit is the maximum time until a process has stopped.
const stopLimit = time.Minute

// Stop stops a process until SIGCONT, and returns when all threads have stopped: after
// SIGSTOP they may run for milliseconds on a busy machine. It returns ESRCH for a process
// that has been waited for. After an error the process continues.
func Stop(pid int) (err error) {
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		return fmt.Errorf("stop process %d: %w", pid, err)
	}
	defer func() {
		if err != nil {
			_ = unix.Kill(pid, unix.SIGCONT)
		}
	}()
	for end := time.Now().Add(stopLimit); ; time.Sleep(time.Millisecond) {
		runs, err := running(pid)
		switch {
		case err != nil:
			return fmt.Errorf("stop process %d: %w", pid, err)
		case runs == "":
			return nil
		case time.Now().After(end):
			return fmt.Errorf("stop process %d: thread %s is still running after %v", pid, runs, stopLimit)
		}
	}
}

// running returns a thread of a process that isn't stopped; empty: none.
func running(pid int) (thread string, err error) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	if err != nil {
		return "", err
	}
	if len(threads) == 0 {
		return "", unix.ESRCH
	}
	for _, path := range threads {
		stat, err := os.ReadFile(filepath.Join(path, "stat"))
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ESRCH):
			continue // The thread has ended.
		case err != nil:
			return "", err
		}
		// The state follows the name, which may have any characters (proc_pid_stat(5)).
		_, state, found := bytes.Cut(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" "))
		switch {
		case !found || len(state) == 0:
			return "", fmt.Errorf("no state in %q", stat)
		case bytes.IndexByte([]byte("TtZX"), state[0]) < 0:
			return filepath.Base(path), nil
		}
	}
	return "", nil
}
