package main

import (
	"context"
	"fmt"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/bench/measure"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed/sandbox"
)

// cpuOf returns the processor time that processes have used, user and system,
// all threads.
func cpuOf(processes ...*sandbox.Process) (time.Duration, error) {
	var sum time.Duration
	for _, p := range processes {
		used, err := measure.CPU(p.PID())
		if err != nil {
			return 0, fmt.Errorf("processor time of %s: %w", p.Command().Name, err)
		}
		sum += used
	}
	return sum, nil
}

// finish waits until a process has ended and returns the last line it printed.
func finish(ctx context.Context, p *sandbox.Process) (string, error) {
	select {
	case <-p.Done():
	case <-ctx.Done():
		p.Kill()
		return "", context.Cause(ctx)
	}
	if p.Err() != nil {
		return "", fmt.Errorf("%s: %w: %s", p.Command().Name, p.Err(), p.Tail(3))
	}
	return p.Tail(1), nil
}
