// Command semaphore-policy keeps Calico GlobalNetworkSets in the local cluster
// that hold the addresses of labelled pods in remote clusters.
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
	program := run.Program[config.Policy]{
		Name: "semaphore-policy", Load: config.LoadPolicy, Run: serve, Status: statusCommand().Main, Probe: statusCommand().Probe,
	}
	os.Exit(program.Main(os.Args[1:]))
}

func serve(cfg config.Policy, log *slog.Logger) error {
	p, err := newProgram(cfg, log)
	if err != nil {
		return err
	}
	log.Info("starting", "version", process.Build(), "cluster", cfg.ClusterName, "remotes", len(cfg.Remotes))
	defer process.Ballast()()
	return run.Run(context.Background(), log, grace, p.tasks()...)
}
