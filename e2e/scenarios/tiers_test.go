package scenarios_test

import (
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/tools"
)

// TestTiers has a global service with a pod in each of three clusters, and asks from gcp, whose
// remotes aws and merit are of the tiers 1 and 2: where a tier has no ready endpoint left, the next
// one gets all requests, and none beyond.
func TestTiers(t *testing.T) {
	t.Parallel()
	nstest.Root(t)
	tb := testbed.Start(t, testbed.Config{}, tools.KubeProxy)
	t.Cleanup(func() { soundLogs(t, tb) })
	ctx := within(t, 5*time.Minute)
	p, err := programs.StartPair(ctx, tb, program(t, programs.WireGuard), 1, nil)
	must(t, err)
	merit, err := tb.StartCluster(ctx, testbed.ClusterConfig{Name: "merit"})
	must(t, err)
	must(t, programs.Grant(ctx, programs.WireGuard, merit))
	far, err := merit.AddNode(ctx, testbed.NodeConfig{})
	must(t, err)
	third, err := far.AddPod(ctx, testbed.PodConfig{})
	must(t, err)
	must(t, third.Serve(ctx, programs.PodPort, nil))
	_, err = programs.StartAgent(ctx, p.Binary, far, p.GCP)
	must(t, err)
	// The agent of gcp gets a second remote.
	node := p.GCP.Nodes()[0]
	must(t, p.Agents[1].Stop(ctx))
	p.Agents[1], err = programs.PrepareAgent(ctx, p.Binary, node, p.AWS, merit)
	must(t, err)
	must(t, p.Agents[1].Start())
	_, err = node.StartKubeProxy(ctx)
	must(t, err)
	first, client := p.Pods[0], p.Pods[1]
	local, err := node.AddPod(ctx, testbed.PodConfig{})
	must(t, err)
	must(t, local.Serve(ctx, programs.PodPort, nil))
	must(t, programs.WaitReach(within(t, repair), client, first))
	must(t, programs.WaitReach(within(t, repair), client, third))

	must(t, programs.Grant(ctx, programs.ServiceMirror, p.AWS, p.GCP, merit))
	mirror, err := programs.Prepare(ctx, programs.Config{
		Name: programs.ServiceMirror, Replica: "service-mirror", Binary: program(t, programs.ServiceMirror), Port: 8080,
	}, node, p.AWS, merit)
	must(t, err)
	mirror.Env[programs.Variable("merit", "TIER")] = "2"
	must(t, mirror.Start())
	near := service("web", "global-service=true", "global-service-routing-strategy=local-first")
	putService(t, p.AWS, "shop", near, first)
	putService(t, merit, "shop", near, third)
	putService(t, p.GCP, "shop", near, local)
	f := &failover{Pair: p, mirror: mirror}
	asks := ask(t, client, f.url(t, "gl-shop-73736d-web"))

	for _, step := range []struct {
		what string
		do   func()
		by   *testbed.Pod
	}{
		{"all are ready", func() {}, local},
		{"the local pod has gone", func() { setPods(t, p.GCP, "shop", near) }, first},
		{"the nodes of aws are unplugged", func() { f.each(t, tb.Drop, node) }, third},
		{"the nodes of aws are plugged in", func() { f.each(t, tb.Restore, node) }, first},
		{"aws is drained", func() { f.drain(t, `"true"`) }, third},
		{"aws returns", func() { f.drain(t, "null") }, first},
		{"the local pod is back", func() { setPods(t, p.GCP, "shop", near, local) }, local},
	} {
		at := time.Now()
		step.do()
		failed, last := asks.settled(t, at, 3, step.by)
		t.Logf("%s: requests go to %s; %d failed, the last one after %s", step.what, step.by.Name, failed, seconds(at, last))
	}
}
