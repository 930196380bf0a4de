package scenarios_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/peers"
)

// testTranslation puts a node behind address translation, without an endpoint. It reaches all
// others, and is reached, also after its mapping was lost. Then neither side can initiate.
func testTranslation(t *testing.T, p *programs.Pair) {
	hidden, open := p.Agents[2], p.Agents[0]
	locate(t, hidden, `"none"`)
	defer locate(t, hidden, "null")
	eventually(t, repair, "the endpoint to be empty", func(ctx context.Context) error {
		return hasAnnotations(ctx, hidden.Node, map[string]string{peers.EndpointAnnotation("aws"): ""})
	})
	// An earlier part may have left both at each other's IPv6 addresses, by roaming, where
	// nothing is translated. New devices start from the published endpoints.
	must(t, open.Node.DeleteLink("wireguard.gcp"))
	must(t, hidden.Node.DeleteLink("wireguard.aws"))
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
			eventually(t, repair, "status to report that neither side can initiate", func(ctx context.Context) error {
				return rejects(ctx, pair[0], pair[1], "no_endpoint")
			})
		}
		must(t, programs.WaitReach(within(t, repair), p.Pods[0], p.Pods[3]))
		must(t, programs.WaitReach(within(t, repair), p.Pods[2], p.Pods[1]))
	})
}

// testForwarding makes a node reachable at a forwarded port, and at an ExternalIP like those
// of clouds, which the node itself doesn't have.
func testForwarding(t *testing.T, p *programs.Pair) {
	inside, open := p.Agents[2], p.Agents[0]
	defer locate(t, inside, "null")
	defer func() { must(t, inside.Node.StopTranslating(context.WithoutCancel(t.Context()))) }()
	own := inside.Node.Addresses()[0]
	external := netip.MustParseAddr("203.0.113.10")
	before, err := inside.Node.Object(t.Context())
	must(t, err)
	addresses := func(all []corev1.NodeAddress) {
		patch, err := json.Marshal(map[string]any{"status": map[string]any{"addresses": all}})
		must(t, err)
		must(t, inside.Node.Patch(context.WithoutCancel(t.Context()), string(patch), "status"))
	}
	defer addresses(before.Status.Addresses)
	addresses(append(slices.Clone(before.Status.Addresses), corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: external.String()}))
	for _, c := range []struct {
		name, location string
		outside        netip.AddrPort
	}{
		{"a forwarded port", netip.AddrPortFrom(own, 41820).String(), netip.AddrPortFrom(own, 41820)},
		{"an ExternalIP", "ExternalIP", netip.AddrPortFrom(external, 51820)},
		{"a forwarded port of another address", "203.0.113.10:41820", netip.AddrPortFrom(external, 41820)},
	} {
		t.Run(c.name, func(t *testing.T) {
			locate(t, inside, strconv.Quote(c.location))
			must(t, inside.Node.Forward(t.Context(), c.outside, 51820))
			began := time.Now()
			eventually(t, repair, "the endpoint outside to be published", func(ctx context.Context) error {
				return hasAnnotations(ctx, inside.Node, map[string]string{peers.EndpointAnnotation("aws"): c.outside.String()})
			})
			must(t, programs.WaitReach(within(t, repair), p.Pods[2], p.Pods[0]))
			must(t, programs.WaitReach(within(t, repair), p.Pods[0], p.Pods[2]))
			must(t, p.WaitConnected(within(t, repair)))
			t.Logf("all pods reach each other after %v", time.Since(began))
			report, err := open.Status(t.Context())
			must(t, err)
			if !slices.ContainsFunc(report.Remote("gcp").Peers, func(peer statuspage.Peer) bool { return peer.Endpoint == c.outside.String() }) {
				t.Errorf("%s has no peer at %s: %+v", open.Node.Name, c.outside, report.Remote("gcp").Peers)
			}
		})
	}
}

// locate sets an administrator's endpoint annotation of a node, in JSON.
func locate(t *testing.T, a *programs.Agent, value string) {
	t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, peers.LocationAnnotation, value)
	must(t, a.Node.Patch(context.WithoutCancel(t.Context()), patch))
}

// inPorts returns nil if an agent has the node of another one at one of the ports.
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

// rejects returns nil if an agent rejects the node of another one for a reason.
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
