// Package enginetest runs engines in tests: a test program acts as the engine when it is
// started under the engine's name.
package enginetest

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/kube-semaphore/kube-semaphore/tunnel/engine"
	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/control"
)

const name = "semaphore-engine"

// Main runs the engine and exits, if the process was started as an engine. It must be
// called first.
func Main() {
	if filepath.Base(os.Args[0]) == name {
		os.Exit(engine.Main(os.Args))
	}
}

// Program creates a link to the test program in a directory, under the engine's name, and
// returns its path.
func Program(dir string) (path string, err error) {
	path = filepath.Join(dir, name)
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	return path, os.Symlink(self, path)
}

// Command returns the command of an engine in a process of its own, in a role if one is given.
func Command(role ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = append(append([]string{name}, role...), "-log-format=text")
	return cmd
}

// Start runs an engine's supervisor in this process and its namespaces, until stop is called
// or the process ends.
func Start(log *slog.Logger) (stop func() error, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- engine.Run(ctx, engine.Config{Server: []string{name, "server", "-log-format=text"}, Logger: log})
	}()
	stop = func() error {
		cancel()
		return <-ended
	}
	for range 2000 {
		client, err := control.Dial(ctx)
		if err == nil {
			client.Close()
			return stop, nil
		}
		select {
		case err := <-ended:
			cancel()
			return nil, err
		case <-time.After(5 * time.Millisecond):
		}
	}
	return nil, fmt.Errorf("the engine doesn't answer: %w", stop())
}
