// Package scenarios_test runs the product's scenarios on real clusters: control
// planes, nodes and pods of the testbed, agents as built for release but with
// the race detector, real packets.
package scenarios_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

// built are the programs under test, each built once per run of the tests.
type built struct {
	dir string

	mu    sync.Mutex
	paths map[string]string
}

var builds = &built{paths: map[string]string{}}

func TestMain(m *testing.M) {
	code := m.Run()
	if builds.dir != "" {
		if err := os.RemoveAll(builds.dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

// program builds a program of cmd/ with the race detector and returns its path.
func program(t *testing.T, name string) string {
	t.Helper()
	builds.mu.Lock()
	defer builds.mu.Unlock()
	if path, ok := builds.paths[name]; ok {
		return path
	}
	if builds.dir == "" {
		dir, err := os.MkdirTemp("", "kube-semaphore-e2e-")
		if err != nil {
			t.Fatal(err)
		}
		builds.dir = dir
	}
	path, err := programs.Build(t.Context(), name, builds.dir, "-race")
	if err != nil {
		t.Fatal(err)
	}
	builds.paths[name] = path
	return path
}

// within bounds a part of a test, with ten times what an idle machine needs.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), d, errors.New("not within "+d.String()))
	t.Cleanup(cancel)
	return ctx
}

// startPair starts aws and gcp with so many nodes each and waits until all pods
// reach each other.
func startPair(t *testing.T, nodes int) *programs.Pair {
	t.Helper()
	nstest.Root(t)
	tb := testbed.Start(t, testbed.Config{})
	t.Cleanup(func() { soundLogs(t, tb) })
	ctx := within(t, 5*time.Minute)
	p, err := programs.StartPair(ctx, tb, program(t, programs.WireGuard), nodes, nil)
	must(t, err)
	must(t, p.WaitConnected(within(t, time.Minute)))
	return p
}

// soundLogs fails when a program under test has reported a data race, which
// alone doesn't end it, or has panicked.
func soundLogs(t *testing.T, tb *testbed.Testbed) {
	t.Helper()
	// Engines that an agent has started write to the agent's log; those of a stand-in are named as
	// their commands.
	var logs []string
	for _, name := range []string{"*-agent", "*-engine", "*-semaphore-*"} {
		found, err := filepath.Glob(tb.LogPath(name))
		must(t, err)
		logs = append(logs, found...)
	}
	if len(logs) == 0 {
		t.Error("there are no logs of agents")
	}
	for _, path := range logs {
		log, err := os.ReadFile(path)
		must(t, err)
		for _, bad := range []string{"WARNING: DATA RACE", "panic: ", "fatal error: "} {
			if at := bytes.Index(log, []byte(bad)); at >= 0 {
				t.Errorf("%s:\n%s", filepath.Base(path), log[at:min(len(log), at+4000)])
			}
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits until the condition holds.
func eventually(t *testing.T, limit time.Duration, what string, condition func(context.Context) error) {
	t.Helper()
	must(t, testbed.Wait(within(t, limit), what, condition))
}
