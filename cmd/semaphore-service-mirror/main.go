// Command semaphore-service-mirror mirrors services of other clusters into this one. It
// runs as a Deployment of two replicas, one of which writes.
package main

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/process"
	"github.com/kube-semaphore/kube-semaphore/internal/run"
)

// grace bounds the shutdown of tasks after a signal.
const grace = 10 * time.Second

func main() {
	program := run.Program[config.Mirror]{
		Name: "semaphore-service-mirror", Load: load, Run: serve, Status: statusCommand().Main, Probe: statusCommand().Probe,
	}
	os.Exit(program.Main(os.Args[1:]))
}

// load loads the settings, with warnings about service prefixes and ignored remotes.
func load(args []string) (cfg config.Mirror, warnings []string, err error) {
	cfg, warnings, err = config.LoadMirror(args)
	warnings = slices.Concat(warnings, prefixWarnings(cfg.Remotes), ignoredWarnings(&cfg))
	return cfg, warnings, err
}

func serve(cfg config.Mirror, log *slog.Logger) error {
	p, err := newProgram(cfg, log)
	if err != nil {
		return err
	}
	log.Info("starting", "version", process.Build(), "cluster", cfg.ClusterName, "namespace", cfg.MirrorNamespace)
	defer process.Ballast()()
	return run.Run(context.Background(), log, grace, p.tasks()...)
}
