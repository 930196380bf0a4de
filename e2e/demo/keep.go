package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// pidFile contains the id of the process that keeps a demo running.
const pidFile = "/run/kube-semaphore-demo.pid"

// curtain is the prefix of the last line of the background process, followed by 0 or 1.
const curtain = "demo ended with "

// leave starts the background process, shows its output, and returns when the demo is over.
func leave(ctx context.Context, with switches) error {
	if pid, err := running(); err != nil || pid != 0 {
		return errors.Join(err, fmt.Errorf("a demo is running already (process %d): make demo-down removes it", pid))
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		return err
	}
	defer reader.Close()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	// A session of its own, so that the terminal's end isn't its end.
	cmd := exec.Command(self, "-background", "/dev/fd/3", "-relay="+strconv.FormatBool(with.relay), "-overlap="+strconv.FormatBool(with.overlap))
	cmd.ExtraFiles = []*os.File{writer}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := errors.Join(cmd.Start(), writer.Close()); err != nil {
		return err
	}
	interrupted := context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
	defer interrupted()
	lines := bufio.NewScanner(reader)
	for lines.Scan() {
		if code, over := strings.CutPrefix(lines.Text(), curtain); over {
			if code != "0" {
				return errors.New("a step failed; make demo-down removes what was set up")
			}
			return nil
		}
		fmt.Println(lines.Text())
	}
	return errors.Join(lines.Err(), cmd.Wait(), errors.New("the demo ended early"))
}

// stay runs the demo in the background process, prints curtain, and keeps everything running
// until it is asked to end.
func stay(ctx context.Context, path string, with switches) error {
	out, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	if err := os.WriteFile(pidFile, []byte(strconv.Itoa(os.Getpid())), 0o644); err != nil {
		return err
	}
	defer os.Remove(pidFile)
	s := newShow(out, with)
	defer s.close()
	code := 0
	if err := s.run(ctx); err != nil {
		fmt.Fprintf(out, "demo: %v\n", err)
		code = 1
	}
	if ctx.Err() == nil {
		if err := s.lookAround(); err != nil {
			fmt.Fprintf(out, "demo: %v\n", err)
		}
		fmt.Fprintf(out, "%s%d\n", curtain, code)
		s.out = io.Discard
		if err := out.Close(); err != nil {
			return err
		}
		<-ctx.Done()
	}
	return nil
}

// takeDown ends the background process and waits until everything is removed.
func takeDown(ctx context.Context) error {
	pid, err := running()
	if err != nil {
		return err
	}
	if pid == 0 {
		fmt.Println("no demo is running")
		return nil
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		return fmt.Errorf("end process %d: %w", pid, err)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		left, err := running()
		if err != nil {
			return err
		}
		if left != pid {
			fmt.Println("the demo is gone")
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("process %d doesn't end: %w", pid, ctx.Err())
		case <-ticker.C:
		}
	}
}

// running returns the process that keeps a demo running, 0 for none.
func running() (pid int, err error) {
	data, err := os.ReadFile(pidFile)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	pid, err = strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || pid <= 1 {
		return 0, fmt.Errorf("%s doesn't hold a process number: remove it", pidFile)
	}
	// The number may be that of another process by now.
	args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || !strings.Contains(string(args), "-background") {
		return 0, os.Remove(pidFile)
	}
	return pid, nil
}
