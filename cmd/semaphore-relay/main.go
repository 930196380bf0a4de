// Command semaphore-relay reads the nodes of all clusters once, and stores what agents need
// of them in the API of its own cluster.
package main

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/process"
	"github.com/kube-semaphore/kube-semaphore/internal/run"
)

// grace bounds the shutdown of tasks after a signal.
const grace = 10 * time.Second

func main() {
	program := run.Program[config.Relay]{
		Name: "semaphore-relay", Load: config.LoadRelay, Run: serve, Status: statusCommand().Main, Probe: statusCommand().Probe,
	}
	os.Exit(program.Main(os.Args[1:]))
}

func serve(cfg config.Relay, log *slog.Logger) error {
	p, err := newProgram(cfg, log)
	if err != nil {
		return err
	}
	log.Info("starting", "version", process.Build(), "cluster", cfg.ClusterName, "remotes", len(cfg.Remotes))
	defer process.Ballast()()
	return run.Run(context.Background(), log, grace, p.tasks()...)
}
