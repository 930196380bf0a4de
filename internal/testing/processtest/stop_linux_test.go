package processtest

import (
	"bufio"
	"errors"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// TestStop stops a process that is busy, again and again.
func TestStop(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "while :; do echo; done")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan struct{}, 1)
	go func() {
		defer close(lines)
		for scanner := bufio.NewScanner(out); scanner.Scan(); {
			select {
			case lines <- struct{}{}:
			default:
			}
		}
	}()
	pid := cmd.Process.Pid
	for range 20 {
		for range 100 {
			<-lines
		}
		if err := Stop(pid); err != nil {
			t.Fatal(err)
		}
		if thread, err := running(pid); thread != "" || err != nil {
			t.Fatalf("thread %q runs, error %v", thread, err)
		}
		if err := unix.Kill(pid, unix.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for open := true; open; {
		_, open = <-lines
	}
	_ = cmd.Wait()
	if err := Stop(pid); !errors.Is(err, unix.ESRCH) {
		t.Errorf("a process that has ended: error %v, want ESRCH", err)
	}
}
