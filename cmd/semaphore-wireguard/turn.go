package main

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
	// turnGrace is how long an agent's loops may take to end: less than the process may.
	turnGrace = grace - 2*time.Second
	// turnPatience is how long -cleanup waits for an agent that ends.
	turnPatience = 2 * grace
)

// turnFile is the file whose lock the agent of this node has that acts.
func turnFile(keyPath string) string { return filepath.Join(keyPath, "acting.lock") }

// describe says which agent this is, for the status of others.
func describe(cfg *config.Wireguard) string {
	who := fmt.Sprintf("process %d", os.Getpid())
	if cfg.Pod.Name != "" {
		who = "pod " + cfg.Pod.Name
	}
	return fmt.Sprintf("%s, version %s", who, process.Build())
}

// standbyReport is what an agent reports that doesn't act.
type standbyReport struct {
	Holder string `json:"holder,omitempty"` // the agent that acts, in its own words
}

// failingServers returns which servers don't serve that should.
func (a *agent) failingServers() map[string]string {
	if a.turn.StandsBy() {
		return run.Servers{Socket: a.servers.Socket}.Failing()
	}
	return a.servers.Failing()
}

// health says whether the process is worth keeping: whether its loops turn.
func (a *agent) health() error {
	var errs []error
	for _, l := range a.loops {
		errs = append(errs, l.Stuck())
	}
	return errors.Join(errs...)
}

// ready says whether this node takes part in the mesh with every remote that can be
// asked, or, while another agent acts, whether this one could take its place: in a
// rollout that one ends, and the next node follows, when this one is ready.
//
//	                                                          acts  stands by
//	no remote is refused                                       x        x
//	each one's nodes are known, or its API server has failed   x        x
//	the rules and the device of each are there                 x
//	this host, and an engine, let this process have devices             x
//	the local API server has told this node's object                    x
//
// A remote that can't be asked is told in the status, and doesn't hold up a rollout. The
// local API server is away from no rollout. An agent of a release without turns acts
// beside this one until it ends: a device that it serves counts as one that is to be
// taken over.
func (a *agent) ready() error {
	standby, able := a.turn.StandsBy(), sync.OnceValue(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), statusTimeout)
		defer cancel()
		return tunnel.Able(ctx, a.cfg.Backend, enginePath(a.cfg.Engine))
	})
	var errs []error
	if standby {
		errs = append(errs, able())
		if !a.self.Synced() {
			errs = append(errs, errors.New("the API server hasn't told of this node yet"))
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
			errs = append(errs, fmt.Errorf("remote %s: packets to its pods aren't kept from leaving in plaintext yet", r.cfg.Name))
		case !r.present():
			if !r.succeeds() || able() != nil {
				errs = append(errs, fmt.Errorf("remote %s: no device %s", r.cfg.Name, r.device.Name()))
			}
		case r.controller.State().Source == peers.SourceNone && !r.unreachable():
			errs = append(errs, fmt.Errorf("remote %s: not synced since start, and no peers on disk", r.cfg.Name))
		}
	}
	return errors.Join(errs...)
}

// succeeds reports whether another process serves the device, with our key.
func (r *remote) succeeds() bool {
	ctx, cancel := context.WithTimeout(context.Background(), statusTimeout)
	defer cancel()
	status, err := r.device.Status(ctx)
	return err == nil && status.Backend == tunnel.Userspace && !status.PublicKey.IsZero() && status.PublicKey == r.device.PublicKey()
}
