package agent

import (
	"context"
	"net/netip"
	"time"

	"github.com/kube-semaphore/kube-semaphore/peers"
	"github.com/kube-semaphore/kube-semaphore/peers/paths"
	"github.com/kube-semaphore/kube-semaphore/routes"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

const (
	// unrepliedWindow is how long after a path went down unreplied connections over it are
	// deleted: the longest time until kube-proxy has stopped choosing endpoints there.
	unrepliedWindow  = 15 * time.Second
	unrepliedSpacing = time.Second
	// unrepliedRest is the minimum pause after a pass, as a multiple of its duration, for
	// nodes with very many connections.
	unrepliedRest = 20
)

// unreplied are connections that wait for a response from where a path is down.
type unreplied struct {
	agent  *agent
	due    time.Time
	unable bool // the failure was logged
}

// next returns when delete is due; zero: when the state of a path changes.
func (u *unreplied) next() time.Time { return u.due }

// delete deletes the conntrack entries of unreplied connections to pods of
// nodes whose path has just gone down, so that retries reach the remaining endpoints as
// soon as kube-proxy knows them; see [routes.DeleteUnreplied]. It is best effort: a
// failure is logged once and is no fault of the agent.
func (u *unreplied) delete(ctx context.Context) error {
	a := u.agent
	u.due = time.Time{}
	now := time.Now()
	var lost []netip.Prefix
	for _, r := range a.admitted() {
		lost = append(lost, justLost(now, r.controller.Paths(), r.controller.State().Peers)...)
	}
	if len(lost) == 0 {
		return nil
	}
	u.due = now.Add(unrepliedSpacing)
	n, err := routes.DeleteUnreplied(lost)
	if err != nil && !u.unable {
		u.unable = true
		a.log.WarnContext(ctx, "deleting unreplied connections to unreachable nodes failed: they end with their timeouts", "err", err)
	}
	if n > 0 {
		a.log.DebugContext(ctx, "deleted unreplied connections to unreachable nodes", "connections", n)
	}
	return nil
}

// justLost returns the allowed IPs of peers whose path went down less than unrepliedWindow
// ago.
func justLost(now time.Time, known []paths.Path, all []peers.Peer) (lost []netip.Prefix) {
	down := map[tunnel.Key]bool{}
	for i := range known {
		if p := &known[i]; p.State == paths.Down && now.Sub(p.Since) < unrepliedWindow {
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
