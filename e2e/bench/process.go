package main

import (
	"context"
	"fmt"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/bench/measure"
	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed/sandbox"
)

// cpuOf returns the processor time that processes have used, user and system,
// all threads.
func cpuOf(pids ...int) (time.Duration, error) {
	var sum time.Duration
	for _, pid := range pids {
		used, err := measure.CPU(pid)
		if err != nil {
			return 0, fmt.Errorf("processor time: %w", err)
		}
		sum += used
	}
	return sum, nil
}

// cpuOfAgents returns the processor time that agents and their engines have used.
func cpuOfAgents(agents ...*programs.Agent) (time.Duration, error) {
	var all []int
	for _, a := range agents {
		pids, err := a.PIDs()
		if err != nil {
			return 0, err
		}
		all = append(all, pids...)
	}
	return cpuOf(all...)
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
