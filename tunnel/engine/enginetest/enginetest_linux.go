// Package enginetest gives test programs an engine: the program itself is it when it
// is started under the engine's name.
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

// Main ends the process after having been an engine, when it was started as one. It
// has to be called first.
func Main() {
	if filepath.Base(os.Args[0]) == name {
		os.Exit(engine.Main(os.Args))
	}
}

// Program makes the test program one that starts engines, in a directory, and returns
// its path.
func Program(dir string) (path string, err error) {
	path = filepath.Join(dir, name)
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	return path, os.Symlink(self, path)
}

// Command is an engine as a process of its own, that isn't started.
func Command() *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{name, "-log-format=text"}
	return cmd
}

// Start runs an engine in this process, but for what serves, until stop is called or
// the process ends. It has the namespaces of this process.
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
