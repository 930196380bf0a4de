// Command semaphore-wireguard keeps a WireGuard mesh between this node and the
// nodes of other Kubernetes clusters. It runs on every node, on the host's
// network, with the capability NET_ADMIN.
package main

import (
	"context"
	"errors"
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
	if len(os.Args) > 1 && os.Args[1] == "reach" {
		os.Exit(runReach(os.Args[2:]))
	}
	program := run.Program[config.Wireguard]{
		Name: "semaphore-wireguard", Load: config.LoadWireguard, Run: serve, Status: statusCommand().Main, Probe: statusCommand().Probe,
	}
	os.Exit(program.Main(os.Args[1:]))
}

// garbage is GOGC: garbage in percent of the live heap.
const garbage = 50

func serve(cfg config.Wireguard, log *slog.Logger) (err error) {
	a, err := newAgent(cfg, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.close()) }()
	if cfg.Cleanup {
		return run.Alone(context.Background(), turnFile(cfg.KeyPath), describe(&cfg), cleanupTimeout, func() error {
			a.removeUnfinished()
			return a.cleanup(context.Background())
		})
	}
	// The agent handles no packets: memory matters more than the time of collections.
	process.LimitGarbage(garbage)
	defer process.GiveBack()()
	log.Info("starting", "version", process.Build(), "cluster", cfg.ClusterName, "node", cfg.NodeName)
	return run.Run(context.Background(), log, grace, a.tasks()...)
}
