//go:build linux

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/e2e/kernel/wire"
)

// run runs one program to its end and sends what it writes. A program that
// fails is no error, unless it is required; one that can't be started exits
// with 127, as in a shell.
func run(s *sender, p wire.Program) error {
	if err := s.send(wire.Message{Kind: wire.KindStart, Program: p.Name}); err != nil {
		return err
	}
	started := time.Now()
	code, err := execute(s, p)
	if err != nil {
		text := fmt.Appendf(nil, "run %s: %v\n", p.Path, err)
		if err := s.send(wire.Message{Kind: wire.KindOutput, Program: p.Name, Output: text}); err != nil {
			return err
		}
		code = 127
	}
	if err := s.send(wire.Message{Kind: wire.KindExit, Program: p.Name, Code: code, Took: time.Since(started)}); err != nil {
		return err
	}
	if p.Required && code != 0 {
		return fmt.Errorf("%s failed, and the rest relies on it", p.Name)
	}
	return nil
}

func execute(s *sender, p wire.Program) (code int, err error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	output, input, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer output.Close()
	// Not exec.Cmd: its Wait and the reaping below would take each other's
	// children.
	process, err := os.StartProcess(p.Path, append([]string{p.Path}, p.Args...), &os.ProcAttr{
		Dir: p.Dir, Env: p.Env, Files: []*os.File{null, input, input},
	})
	_ = input.Close()
	if err != nil {
		return 0, err
	}
	defer func() { _ = process.Release() }()
	forwarded := make(chan error, 1)
	go func() { forwarded <- forward(s, p.Name, output) }()
	if p.Timeout > 0 {
		timer := time.AfterFunc(p.Timeout, func() { _ = process.Kill() })
		defer timer.Stop()
	}
	status, err := reap(process.Pid)
	if err != nil {
		return 0, err
	}
	left, err := killAll()
	if err != nil {
		return 0, err
	}
	// The other end of the pipe is closed, so this ends.
	if err := <-forwarded; err != nil {
		return 0, err
	}
	if left > 0 {
		text := fmt.Appendf(nil, "killed %d processes that outlived %s\n", left, p.Path)
		err = s.send(wire.Message{Kind: wire.KindOutput, Program: p.Name, Output: text})
	}
	return exitCode(status), err
}

// reap waits for the process pid. Process 1 inherits every process whose
// parent has died; it collects them on the way, so that a test that looks for
// the end of its grandchildren finds it.
func reap(pid int) (unix.WaitStatus, error) {
	for {
		var status unix.WaitStatus
		got, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, fmt.Errorf("wait: %w", err)
		case got == pid:
			return status, nil
		}
	}
}

// killAll ends whatever a program has left running, which would disturb the
// next one, and returns how many processes that were.
func killAll() (left int, err error) {
	if err := unix.Kill(-1, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		return 0, fmt.Errorf("kill remaining processes: %w", err)
	}
	for {
		var status unix.WaitStatus
		_, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ECHILD):
			return left, nil
		case err != nil:
			return left, fmt.Errorf("wait: %w", err)
		case status.Signaled() && status.Signal() == unix.SIGKILL:
			left++
		}
	}
}

func exitCode(status unix.WaitStatus) int {
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

// forward sends what arrives until the end of output.
func forward(s *sender, program string, output *os.File) error {
	buffer := make([]byte, 16<<10)
	for {
		n, err := output.Read(buffer)
		if n > 0 {
			if err := s.send(wire.Message{Kind: wire.KindOutput, Program: program, Output: buffer[:n]}); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read output: %w", err)
		}
	}
}
