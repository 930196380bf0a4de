package scenarios_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// hasRoutes tells whether a node has so many routes of the agent's.
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

// hasAnnotations tells whether a node has the annotations of the agent's that
// are in want.
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

// settled returns what an agent says of a peer when its first contact is over, in
// which handshakes may be begun anew.
func settled(t *testing.T, a *programs.Agent, remote, node string) (peer programs.PeerStatus) {
	t.Helper()
	eventually(t, time.Minute, "a session with "+node, func(ctx context.Context) error {
		status, err := a.Status(ctx)
		if err != nil {
			return err
		}
		peers := status.Remote(remote).Peers
		at := slices.IndexFunc(peers, func(p programs.PeerStatus) bool { return p.Node == node })
		if at < 0 {
			return errors.New("it is no peer")
		}
		if peer = peers[at]; peer.LastHandshake.IsZero() || time.Since(peer.LastHandshake) < 15*time.Second {
			return fmt.Errorf("its last handshake was at %v", peer.LastHandshake)
		}
		return nil
	})
	return peer
}

// hasEndpoint tells whether a node's peer has the endpoint on the device.
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
