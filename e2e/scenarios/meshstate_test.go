package scenarios_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
)

// hasRoutes returns nil if a node has so many routes of the agent.
func hasRoutes(ctx context.Context, node *testbed.Node, want int) error {
	v4, err := node.Run(ctx, "ip", "-4", "route", "show", "table", "all", "proto", "115")
	if err != nil {
		return err
	}
	v6, err := node.Run(ctx, "ip", "-6", "route", "show", "table", "all", "proto", "115")
	if err != nil {
		return err
	}
	if got := strings.Count(v4+v6, "\n"); got != want {
		return fmt.Errorf("%d routes:\n%s%s", got, v4, v6)
	}
	return nil
}

// hasAnnotations returns nil if a node has the agent's annotations that are in want.
func hasAnnotations(ctx context.Context, node *testbed.Node, want map[string]string) error {
	object, err := node.Object(ctx)
	if err != nil {
		return err
	}
	for k, v := range want {
		if strings.Contains(k, "wireguard.semaphore.uw.io/") && object.Annotations[k] != v {
			return fmt.Errorf("%s is %q, want %q", k, object.Annotations[k], v)
		}
	}
	return nil
}

// waitPeers waits until the agent's peers in a remote are those of the nodes.
func waitPeers(t *testing.T, a *programs.Agent, remote string, nodes ...string) {
	t.Helper()
	eventually(t, repair, "peers "+strings.Join(nodes, ", "), func(ctx context.Context) error {
		status, err := a.Status(ctx)
		if err != nil {
			return err
		}
		var got []string
		for _, peer := range status.Remote(remote).Peers {
			got = append(got, peer.Node)
		}
		slices.Sort(got)
		if !slices.Equal(got, nodes) {
			text, _ := json.Marshal(status)
			return fmt.Errorf("peers of %s: %v; status: %s", a.Node.Name, got, text)
		}
		return nil
	})
}

// keepsSession watches an agent's report of a peer until the function that it returns is
// called, which fails if the peer was removed and added again: its counters are reset then. It
// starts after first contact, in which that is allowed.
func keepsSession(t *testing.T, a *programs.Agent, remote, node string) (stop func()) {
	t.Helper()
	of := func(ctx context.Context) (statuspage.Peer, error) {
		report, err := a.Status(ctx)
		if err != nil {
			return statuspage.Peer{}, err
		}
		peers := report.Remote(remote).Peers
		at := slices.IndexFunc(peers, func(p statuspage.Peer) bool { return p.Node == node })
		if at < 0 {
			return statuspage.Peer{}, fmt.Errorf("%s is no peer of %s", node, a.Node.Name)
		}
		return peers[at], nil
	}
	var last statuspage.Peer
	eventually(t, time.Minute, "a session with "+node, func(ctx context.Context) (err error) {
		if last, err = of(ctx); err == nil && (last.LastHandshake == nil || time.Since(*last.LastHandshake) < 15*time.Second) {
			err = fmt.Errorf("its last handshake was at %v", last.LastHandshake)
		}
		return err
	})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			p, err := of(ctx)
			switch {
			case err != nil && ctx.Err() == nil:
				t.Error(err)
				return
			case err == nil && p.RxBytes < last.RxBytes:
				t.Errorf("the session with %s was ended: %+v, before %+v", node, p, last)
			}
			if err == nil {
				last = p
			}
		}
	})
	stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// hasEndpoint returns nil if a node's peer has the endpoint on the device.
func hasEndpoint(ctx context.Context, a *programs.Agent, remote, node, want string) error {
	status, err := a.Status(ctx)
	if err != nil {
		return err
	}
	for _, peer := range status.Remote(remote).Peers {
		if peer.Node == node && peer.Endpoint == want {
			return nil
		}
	}
	return fmt.Errorf("%s has %+v", a.Node.Name, status.Remote(remote).Peers)
}
