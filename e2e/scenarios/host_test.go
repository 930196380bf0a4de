package scenarios_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
)

// TestEngineThatTheAgentStarts runs the agent without an engine's container: the agent starts
// an engine, which survives any exit of the agent; the next agent reuses it, and starts
// another one only if it has ended; -cleanup ends it.
func TestEngineThatTheAgentStarts(t *testing.T) {
	t.Parallel()
	p := startPair(t, 1)
	agent, from, to := p.Agents[0], p.Pods[0], p.Pods[1]
	ready := func() {
		t.Helper()
		eventually(t, time.Minute, "the agent to be ready", agent.Ready)
	}
	ready()
	first := engineOf(t, agent)
	device := deviceOf(t, agent)
	conn := dialEcho(t, from, to)
	must(t, conn.exchange("before"))

	for i := range 5 {
		agent.Kill()
		must(t, conn.exchange(fmt.Sprintf("without an agent, %d", i)))
		must(t, agent.Start())
		ready()
		must(t, conn.exchange(fmt.Sprintf("with the next agent, %d", i)))
	}
	if got := engineOf(t, agent); !slices.Equal(got, first) {
		t.Errorf("the engine is %v, and was %v before the agent was killed", got, first)
	}

	// With and without a running agent.
	must(t, syscall.Kill(first[0], syscall.SIGKILL))
	second := nextEngine(t, agent, first)
	must(t, conn.exchange("with another engine"))
	agent.Kill()
	must(t, syscall.Kill(second[0], syscall.SIGKILL))
	must(t, agent.Start())
	ready()
	third := nextEngine(t, agent, second)
	must(t, conn.exchange("with a third engine"))
	if got := deviceOf(t, agent); got != device {
		t.Errorf("the device is %s, and was %s", got, device)
	}

	must(t, agent.Stop(within(t, time.Minute)))
	must(t, conn.exchange("after the agent has ended"))
	if got := engineOf(t, agent); !slices.Equal(got, third) {
		t.Errorf("the engine is %v, and was %v before the agent ended", got, third)
	}
	must(t, agent.Cleanup(within(t, time.Minute)))
	must(t, programs.Clean(t.Context(), agent.Node))
	eventually(t, time.Minute, "the engine to be gone", func(context.Context) error {
		pids, err := agent.Node.Space().PIDs(programs.Engine)
		if err == nil && len(pids) > 0 {
			err = fmt.Errorf("%v run", pids)
		}
		return err
	})
}

// engineOf returns the process ids of the engine on an agent's node: of the process that
// holds the devices, and of the one that serves them.
func engineOf(t *testing.T, a *programs.Agent) []int {
	t.Helper()
	pids, err := oneEngine(a)
	must(t, err)
	return pids
}

func oneEngine(a *programs.Agent) ([]int, error) {
	pids, err := a.Node.Space().PIDs(programs.Engine)
	if err != nil {
		return nil, err
	}
	var holding, serving []int
	for _, pid := range pids {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil {
			return nil, err
		}
		if slices.Contains(strings.Split(string(line), "\x00"), "server") {
			serving = append(serving, pid)
		} else {
			holding = append(holding, pid)
		}
	}
	if len(holding) != 1 || len(serving) != 1 {
		return nil, fmt.Errorf("%v hold devices, %v serve them; want one each", holding, serving)
	}
	return append(holding, serving...), nil
}

// nextEngine waits until there is another engine than the one before.
func nextEngine(t *testing.T, a *programs.Agent, before []int) (pids []int) {
	t.Helper()
	eventually(t, time.Minute, "another engine", func(context.Context) (err error) {
		pids, err = oneEngine(a)
		if err == nil && (slices.Contains(before, pids[0]) || slices.Contains(before, pids[1])) {
			err = errors.New("it is the one before")
		}
		return err
	})
	return pids
}

// deviceOf names the link of an agent's device, and its key.
func deviceOf(t *testing.T, a *programs.Agent) string {
	t.Helper()
	status, err := a.Status(within(t, time.Minute))
	must(t, err)
	return status.Link("gcp")
}
