package scenarios_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

// TestMetadataOfNodes joins two clusters whose agents publish the prefixes of their pods and so
// read each other's nodes as metadata only. Then a node with the original tool joins, which
// publishes none: the nodes are read whole, and a client notices nothing.
func TestMetadataOfNodes(t *testing.T) {
	t.Parallel()
	nstest.Root(t)
	tb := testbed.Start(t, testbed.Config{})
	t.Cleanup(func() { soundLogs(t, tb) })
	ctx := within(t, 5*time.Minute)
	// The original knows one pod subnet for each cluster.
	clusters, err := tb.StartClusters(ctx,
		testbed.ClusterConfig{Name: "aws", PodSubnets: []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16")}},
		testbed.ClusterConfig{Name: "gcp", PodSubnets: []netip.Prefix{netip.MustParsePrefix("10.4.0.0/16")}})
	must(t, err)
	must(t, programs.Grant(ctx, programs.WireGuard, clusters...))
	wireguardGo, err := programs.BuildWireGuardGo(ctx, t.TempDir())
	must(t, err)

	var agents []*programs.Agent
	var pods []*testbed.Pod
	for i, c := range clusters {
		node, err := c.AddNode(ctx, testbed.NodeConfig{})
		must(t, err)
		pod, err := node.AddPod(ctx, testbed.PodConfig{})
		must(t, err)
		must(t, pod.Serve(ctx, programs.PodPort, nil))
		pods = append(pods, pod)
		agent, err := programs.StartAgent(ctx, program(t, programs.WireGuard), node, clusters[1-i])
		must(t, err)
		agents = append(agents, agent)
	}
	must(t, programs.WaitReach(ctx, pods[0], pods[1]))
	waitPrefixes(t, agents[0].Node, "10.2.1.0/24")
	waitPrefixes(t, agents[1].Node, "10.4.1.0/24")
	reads := func(a *programs.Agent, remote string, whole bool, peers int) {
		t.Helper()
		eventually(t, time.Minute, a.Node.Name+" to know its peers", func(ctx context.Context) error {
			status, err := a.Status(ctx)
			if err != nil {
				return err
			}
			if r := status.Remote(remote); r.API.Whole != whole || len(r.Peers) != peers || r.API.Error != "" {
				return fmt.Errorf("it reads whole nodes: %v, has %d peers: %s", r.API.Whole, len(r.Peers), r.API.Error)
			}
			return nil
		})
	}
	reads(agents[0], "gcp", false, 1)
	reads(agents[1], "aws", false, 1)

	asking := ask(t, pods[0], pods[1].URL(programs.PodPort))
	began := time.Now()
	node, err := clusters[1].AddNode(ctx, testbed.NodeConfig{})
	must(t, err)
	pod, err := node.AddPod(ctx, testbed.PodConfig{})
	must(t, err)
	must(t, pod.Serve(ctx, programs.PodPort, nil))
	old := newOriginal(t, node, clusters[0])
	old.binary, old.roots = wireguardGo, tb.PublicCAFile()
	old.start(t)
	old.peerWith(t, &original{node: agents[0].Node})
	reads(agents[0], "gcp", true, 2)
	reads(agents[1], "aws", false, 1)
	must(t, programs.WaitReach(within(t, repair), pods[0], pod))
	must(t, programs.WaitReach(within(t, repair), pod, pods[0]))

	// A restart reads both kinds from the beginning, and an earlier state from disk.
	must(t, agents[0].Stop(within(t, repair)))
	must(t, agents[0].Start())
	reads(agents[0], "gcp", true, 2)
	must(t, programs.WaitReach(within(t, repair), pods[0], pod))
	// Nor does it lose a peer that its remote publishes in another form.
	must(t, node.Patch(t.Context(), `{"metadata":{"annotations":{"wireguard.semaphore.uw.io/podCIDRs":"10.4.2.0/24"}}}`))
	must(t, node.Patch(t.Context(), `{"metadata":{"annotations":{"wireguard.semaphore.uw.io/podCIDRs":null}}}`))
	reads(agents[0], "gcp", true, 2)
	asking.Stop()
	failed, last := asking.Failed(began)
	if failed > 0 {
		t.Errorf("%d of %d requests failed, the last one after %v", failed, len(asking.Since(began)), last.Sub(began))
	}
	t.Logf("%d requests, %d failed", len(asking.Since(began)), failed)
}
