package scenarios_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/peers"
)

// testTranslation puts a node behind address translation, without an endpoint, and has
// it reach all others, and be reached, also after what one of the ways was built on has
// gone. Then it has nobody to begin with another one.
func testTranslation(t *testing.T, p *programs.Pair) {
	hidden, open := p.Agents[2], p.Agents[0]
	locate(t, hidden, `"none"`)
	defer locate(t, hidden, "null")
	eventually(t, repair, "the endpoint to be empty", func(ctx context.Context) error {
		return hasAnnotations(ctx, hidden.Node, map[string]string{peers.EndpointAnnotation("aws"): ""})
	})
	step := func(what string, do func(*testing.T)) {
		t.Run(what, func(t *testing.T) {
			do(t)
			began := time.Now()
			must(t, programs.WaitReach(within(t, repair), p.Pods[2], p.Pods[0]))
			must(t, programs.WaitReach(within(t, repair), p.Pods[0], p.Pods[2]))
			must(t, p.WaitConnected(within(t, repair)))
			t.Logf("all pods reach each other again after %v", time.Since(began))
		})
	}
	translate := func(from, to int) func(*testing.T) {
		return func(t *testing.T) {
			must(t, hidden.Node.Translate(t.Context(), 51820, fmt.Sprintf("%d-%d", from, to)))
			eventually(t, repair, "a peer at a port outside", func(ctx context.Context) error {
				return inPorts(ctx, open, hidden, from, to)
			})
		}
	}
	defer func() { must(t, hidden.Node.StopTranslating(context.WithoutCancel(t.Context()))) }()
	step("a mapping", translate(40000, 40099))
	step("another mapping", translate(41000, 41099))
	step("the open side has lost its device", func(t *testing.T) {
		must(t, open.Node.DeleteLink("wireguard.gcp"))
	})
	step("the hidden side has lost its device", func(t *testing.T) {
		must(t, hidden.Node.DeleteLink("wireguard.aws"))
	})
	for _, a := range []*programs.Agent{open, hidden} {
		step("the agent of "+a.Node.Name+" is restarted", func(t *testing.T) {
			a.Kill()
			must(t, a.Start())
			eventually(t, repair, "the agent to be ready", a.Ready)
		})
	}

	t.Run("two hidden nodes", func(t *testing.T) {
		locate(t, open, `"none"`)
		defer locate(t, open, "null")
		for _, pair := range [][2]*programs.Agent{{open, hidden}, {hidden, open}} {
			eventually(t, repair, "status to say that nobody can begin", func(ctx context.Context) error {
				return rejects(ctx, pair[0], pair[1], "no_endpoint")
			})
		}
		must(t, programs.WaitReach(within(t, repair), p.Pods[0], p.Pods[3]))
		must(t, programs.WaitReach(within(t, repair), p.Pods[2], p.Pods[1]))
	})
}

// locate sets, in JSON, what an administrator says of where a node is.
func locate(t *testing.T, a *programs.Agent, value string) {
	t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, peers.LocationAnnotation, value)
	must(t, a.Node.Patch(context.WithoutCancel(t.Context()), patch))
}

// inPorts tells whether an agent has the node of another one at one of the ports.
func inPorts(ctx context.Context, a, other *programs.Agent, from, to int) error {
	status, err := a.Status(ctx)
	if err != nil {
		return err
	}
	has := status.Remote(other.Node.Cluster.Name).Peers
	for _, peer := range has {
		var port int
		if _, err := fmt.Sscanf(peer.Endpoint, other.Node.Addresses()[0].String()+":%d", &port); err == nil && from <= port && port <= to {
			return nil
		}
	}
	return fmt.Errorf("%s has %+v", a.Node.Name, has)
}

// rejects tells whether an agent rejects the node of another one for a reason.
func rejects(ctx context.Context, a, other *programs.Agent, reason string) error {
	status, err := a.Status(ctx)
	if err != nil {
		return err
	}
	for _, r := range status.Remote(other.Node.Cluster.Name).Rejected {
		if r.Node == other.Node.Name && r.Reason == reason {
			return nil
		}
	}
	return fmt.Errorf("%s rejects %+v", a.Node.Name, status.Remote(other.Node.Cluster.Name).Rejected)
}
