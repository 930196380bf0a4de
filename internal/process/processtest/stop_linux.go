// Package processtest does to processes what happens to them on busy nodes.
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

// stopLimit is how long a process may take to stop.
const stopLimit = time.Minute

// Stop keeps a process from running, until it gets SIGCONT, and returns when none of its
// threads runs any more: the signal alone says nothing of that, and on a busy machine a
// thread goes on for milliseconds. A process that has ended and was waited for is an error,
// ESRCH. With an error it goes on.
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
			return fmt.Errorf("stop process %d: thread %s goes on for %v", pid, runs, stopLimit)
		}
	}
}

// running returns one of a process's threads that isn't stopped; empty: there is none.
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
