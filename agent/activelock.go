package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/process"
	"github.com/kube-semaphore/kube-semaphore/internal/run"
	"github.com/kube-semaphore/kube-semaphore/peers"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

const (
	// turnGrace bounds the shutdown of the agent's loops, within that of the process.
	turnGrace = grace - 2*time.Second
	// cleanupTimeout is how long -cleanup waits for a running agent to end.
	cleanupTimeout = 2 * grace
)

// turnFile is the file that the active agent of this node holds a lock on.
func turnFile(keyPath string) string { return filepath.Join(keyPath, "acting.lock") }

// describe identifies this agent in the status of standby agents.
func describe(cfg *config.Wireguard) string {
	name := fmt.Sprintf("process %d", os.Getpid())
	if cfg.Pod.Name != "" {
		name = "pod " + cfg.Pod.Name
	}
	return fmt.Sprintf("%s, version %s", name, process.Build())
}

// failingServers returns the errors of servers that should be listening.
func (a *agent) failingServers() map[string]string {
	if a.lock.StandsBy() {
		return run.Servers{Socket: a.servers.Socket}.Failing()
	}
	return a.servers.Failing()
}

// health is the liveness check: it fails when a loop is stuck.
func (a *agent) health() error {
	var errs []error
	for _, t := range a.table {
		errs = append(errs, t.loop.Stuck())
	}
	return errors.Join(errs...)
}

// ready is the readiness check. The active agent is ready when this node takes part in
// the mesh with every reachable remote, a standby agent when it could take over: a
// rollout ends the active agent, and goes on to the next node, once the new one is ready.
//
//	                                                           active  standby
//	no remote is refused                                       x       x
//	its nodes are synced, or its API server has failed         x       x
//	policy rules and device of each remote exist               x
//	addresses are translated, with a map of pod subnets        x
//	host and engine allow this process to have devices                 x
//	this node's object was read from the local API server              x
//
// An unreachable remote is shown in the status and doesn't block a rollout; the local API
// server is always reachable during one. An agent of a release without standby runs
// beside this one until it ends: a device that it serves counts as to be taken over.
func (a *agent) ready() error {
	standby, preflight := a.lock.StandsBy(), sync.OnceValue(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), statusTimeout)
		defer cancel()
		return tunnel.Preflight(ctx, a.cfg.Backend, enginePath(a.cfg.Engine))
	})
	var errs []error
	if !standby && !a.translates() && a.mapRefusal() == nil {
		errs = append(errs, errors.New("addresses of pods are not translated by SEMAPHORE_POD_SUBNETS_MAP"))
	}
	if standby {
		errs = append(errs, preflight())
		if !a.self.Synced() {
			errs = append(errs, errors.New("this node's object not read from the API server yet"))
		}
	}
	for _, r := range a.remotes {
		known := r.nodes.Synced() || r.unreachable()
		refused := r.refused()
		switch {
		case refused != nil:
			errs = append(errs, fmt.Errorf("remote %s is refused: %w", r.cfg.Name, refused))
		case standby:
			if !known {
				errs = append(errs, fmt.Errorf("remote %s: not synced since start", r.cfg.Name))
			}
		case !r.fenced.Load():
			errs = append(errs, fmt.Errorf("remote %s: policy rules that keep packets to its pods from leaving in plaintext not installed yet", r.cfg.Name))
		case !r.present():
			if !r.servedElsewhere() || preflight() != nil {
				errs = append(errs, fmt.Errorf("remote %s: no device %s", r.cfg.Name, r.device.Name()))
			}
		case r.controller.State().Origin == peers.OriginNone && !r.unreachable():
			errs = append(errs, fmt.Errorf("remote %s: not synced since start, and no peers on disk", r.cfg.Name))
		}
	}
	return errors.Join(errs...)
}

// servedElsewhere reports whether another process serves the device, with our key.
func (r *remote) servedElsewhere() bool {
	ctx, cancel := context.WithTimeout(context.Background(), statusTimeout)
	defer cancel()
	status, err := r.device.Status(ctx)
	return err == nil && status.Backend == tunnel.Userspace && !status.PublicKey.IsZero() && status.PublicKey == r.device.PublicKey()
}
