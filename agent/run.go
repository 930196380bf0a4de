// Package agent is semaphore-wireguard: it keeps a WireGuard mesh between this node and the
// nodes of other clusters.
//
//	tasks.go      all loops: what triggers each, how often it runs, and its steps
//	host.go       the steps of the node's passes, for all remotes together
//	remote.go     the nodes of one remote and its device: peers, tunnel
//	routes.go     routes to the remotes' pods and their guards, source addresses
//	filter.go     packet filters: forged sources, and packets that would leave in plaintext
//	local.go      what is known of this cluster and this node
//	activelock.go one agent of a node is active, others stand by
//	status.go     /status, which status_command.go shows
package agent

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/process"
	"github.com/kube-semaphore/kube-semaphore/internal/run"
	"github.com/kube-semaphore/kube-semaphore/routes"
)

// grace bounds the shutdown of tasks after a signal.
const grace = 10 * time.Second

// garbage is GOGC: garbage in percent of the live heap.
const garbage = 50

// Main is the program's main function. It returns the exit code.
func Main(args []string) int {
	if len(args) > 0 && args[0] == "reach" {
		return runReach(args[1:])
	}
	program := run.Program[config.Wireguard]{
		Name: "semaphore-wireguard", Load: config.LoadWireguard, Run: serve, Status: statusCommand().Main, Probe: statusCommand().Probe,
	}
	return program.Main(args)
}

// serve runs the agent until a signal, or removes what agents have set up on this host.
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
	if err := routes.RequireFilter(context.Background()); err != nil {
		return err
	}
	// The agent handles no packets: memory matters more than the time of collections.
	process.LimitGarbage(garbage)
	defer process.GiveBack()()
	log.Info("starting", "version", process.Build(), "cluster", cfg.ClusterName, "node", cfg.NodeName)
	return run.Run(context.Background(), log, grace, a.tasks()...)
}
