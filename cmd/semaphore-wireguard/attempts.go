package main

import (
	"context"
	"net/netip"
	"time"

	"github.com/kube-semaphore/kube-semaphore/peers"
	"github.com/kube-semaphore/kube-semaphore/routes"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

const (
	// attemptsFor is for how long after a path went down attempts to connect over it are
	// forgotten: as long as it may take until no endpoint there is chosen any more.
	attemptsFor     = 15 * time.Second
	attemptsSpacing = time.Second
	// attemptsRest is how many times as long as a pass there is none, on a node with very
	// many connections.
	attemptsRest = 20
)

// attempts belongs to forgetAttempts.
type attempts struct {
	due    time.Time
	unable bool // it was told that they can't be forgotten
}

// forgetAttempts has the kernel forget attempts to connect to pods of nodes to which
// the path has just gone down, so that they go to endpoints that are left as soon as
// kube-proxy knows which these are; see [routes.ForgetAttempts]. It is a help: that it
// can't be done is no fault of the agent's.
func (a *agent) forgetAttempts(ctx context.Context) error {
	a.attempts.due = time.Time{}
	now := time.Now()
	var lost []netip.Prefix
	for _, r := range a.admitted() {
		lost = append(lost, justLost(now, r.controller.Paths(), r.controller.State().Peers)...)
	}
	if len(lost) == 0 {
		return nil
	}
	a.attempts.due = now.Add(attemptsSpacing)
	n, err := routes.ForgetAttempts(lost)
	if err != nil && !a.attempts.unable {
		a.attempts.unable = true
		a.log.WarnContext(ctx, "attempts to connect to pods of nodes that are gone end with their time-outs", "err", err)
	}
	if n > 0 {
		a.log.DebugContext(ctx, "attempts to connect to pods of nodes that are gone were forgotten", "connections", n)
	}
	return nil
}

// justLost returns the prefixes of the nodes to which the path went down less than
// attemptsFor ago.
func justLost(now time.Time, paths []peers.Path, all []peers.Peer) (lost []netip.Prefix) {
	down := map[tunnel.Key]bool{}
	for i := range paths {
		if p := &paths[i]; p.State == peers.PathDown && now.Sub(p.Since) < attemptsFor {
			down[p.PublicKey] = true
		}
	}
	if len(down) == 0 {
		return nil
	}
	for i := range all {
		if down[all[i].PublicKey] {
			lost = append(lost, all[i].AllowedIPs...)
		}
	}
	return lost
}
