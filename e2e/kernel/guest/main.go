//go:build linux

// Command guest is process 1 of the emulated machine. It mounts what programs
// expect, loads the kernel modules of its plan, runs the plan's programs one
// after another, reports to the runner on the second serial port, and
// powers the machine off.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/e2e/kernel/wire"
)

// report is the serial port that belongs to the messages; the kernel's console
// is the first one.
const report = "/dev/ttyS1"

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "guest runs as process 1 of an emulated machine; see e2e/kernel")
		os.Exit(2)
	}
	if err := live(); err != nil {
		// Without the port the kernel's console is all there is.
		fmt.Fprintln(os.Stderr, "guest:", err)
	}
	unix.Sync()
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		// Process 1 that ends is a kernel panic, which ends the machine too.
		fmt.Fprintln(os.Stderr, "guest: power off:", err)
	}
}

// live is the machine's life between start and power-off.
func live() error {
	if err := mount(); err != nil {
		return err
	}
	port, err := openPort(report)
	if err != nil {
		return err
	}
	s := &sender{w: port}
	if err := work(s); err != nil {
		return errors.Join(err, s.send(wire.Message{Kind: wire.KindFault, Text: err.Error()}))
	}
	return s.send(wire.Message{Kind: wire.KindDone})
}

func work(s *sender) error {
	plan, err := readPlan()
	if err != nil {
		return err
	}
	for _, module := range plan.Modules {
		if err := load(module); err != nil {
			return err
		}
	}
	if err := loopbackUp(); err != nil {
		return err
	}
	if err := raiseLimits(); err != nil {
		return err
	}
	text, err := describe()
	if err != nil {
		return err
	}
	if err := s.send(wire.Message{Kind: wire.KindUp, Text: text}); err != nil {
		return err
	}
	stop := s.heartbeat(plan.Heartbeat)
	defer stop()
	for _, program := range plan.Programs {
		if err := run(s, program); err != nil {
			return err
		}
	}
	return nil
}

func readPlan() (wire.Plan, error) {
	data, err := os.ReadFile(wire.PlanPath)
	if err != nil {
		return wire.Plan{}, fmt.Errorf("read plan: %w", err)
	}
	var plan wire.Plan
	if err := json.Unmarshal(data, &plan); err != nil {
		return wire.Plan{}, fmt.Errorf("read plan: %w", err)
	}
	return plan, nil
}

// describe names the kernel and its WireGuard.
func describe() (string, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "", fmt.Errorf("name the kernel: %w", err)
	}
	version, err := os.ReadFile("/sys/module/wireguard/version")
	if err != nil {
		return "", fmt.Errorf("wireguard isn't loaded: %w", err)
	}
	return fmt.Sprintf("%s %s, %s, wireguard %s, clock %s",
		unix.ByteSliceToString(name.Sysname[:]), unix.ByteSliceToString(name.Release[:]),
		unix.ByteSliceToString(name.Version[:]), strings.TrimSpace(string(version)),
		time.Now().UTC().Format(time.RFC3339)), nil
}

// sender writes messages, from several goroutines.
type sender struct {
	mu sync.Mutex
	w  io.Writer
}

func (s *sender) send(m wire.Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return wire.Write(s.w, m)
}

// heartbeat sends KindAlive until stop is called. stop waits for its end.
func (s *sender) heartbeat(every time.Duration) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-quit:
				return
			case <-ticker.C:
				// The runner notices a port that fails by its silence.
				_ = s.send(wire.Message{Kind: wire.KindAlive})
			}
		}
	}()
	return func() {
		close(quit)
		<-done
	}
}
