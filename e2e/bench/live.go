package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/bench/measure"
	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed/sandbox"
	"github.com/kube-semaphore/kube-semaphore/peers"
)

const (
	// liveProbes is how many probes a second a node is sent by as many others as it
	// has peers: each of those sends as many in all as this one does.
	liveProbes = 260
	// liveWindow is for how long processor time is taken: as long as a session lasts
	// until WireGuard renews it, so that each peer shakes hands once.
	liveWindow = 2 * time.Minute
	// liveGoal is how much of a core an agent and its engine may take for probes.
	liveGoal = 0.05
)

// live measures what it takes to know that all peers of a large mesh are there: an agent
// and its engine with peers that answer, and the same with IPv6 switched off on the device,
// so that there are sessions and keepalives, and no probes.
func (b *bench) live(ctx context.Context, a *arena) error {
	clusters, err := b.clusters(ctx, a, testbed.ClusterConfig{Name: "aws"}, testbed.ClusterConfig{
		Name: "gcp", PodSubnets: []netip.Prefix{netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("fd00:64::/48")},
	})
	if err != nil {
		return err
	}
	local, remote := clusters[0], clusters[1]
	node, err := local.AddNode(ctx, testbed.NodeConfig{})
	if err != nil {
		return err
	}
	there, err := remote.AddNode(ctx, testbed.NodeConfig{})
	if err != nil {
		return err
	}
	b.say("creating %d nodes that answer", b.nodes)
	if err := remote.AddObjects(ctx, b.nodes, func(i int, object *corev1.Node) {
		key := farKey(i)
		object.Annotations = map[string]string{
			peers.PublicKeyAnnotation(local.Name): key.PublicKey().String(),
			peers.EndpointAnnotation(local.Name):  netip.AddrPortFrom(there.Addresses()[0], uint16(farPort+i)).String(),
		}
	}); err != nil {
		return err
	}
	// As most distributions have it: probes are echo requests.
	if err := sysctl(node, "ipv4/ping_group_range", "0 2147483647"); err != nil {
		return err
	}
	agent, err := programs.PrepareAgent(ctx, a.agent, node, remote)
	if err != nil {
		return err
	}
	agent.Env["SEMAPHORE_WG_BACKEND"] = "userspace"
	agent.Env[programs.Variable(remote.Name, "WG_MAX_PEERS")] = strconv.Itoa(b.nodes + 1)
	if err := agent.Start(); err != nil {
		return err
	}
	var device, key string
	if err := testbed.Wait(ctx, "the agent's device", func(ctx context.Context) error {
		s, err := agent.Status(ctx)
		if err != nil {
			return err
		}
		d := s.Remote(remote.Name).Device
		if device, key = d.Name, d.PublicKey; d.Index == 0 || key == "" {
			return errors.New("no device yet")
		}
		return nil
	}); err != nil {
		return err
	}
	far, err := there.Start(sandbox.Command{Name: farMode, Path: b.self, Args: []string{farMode, strconv.Itoa(b.nodes), key, strconv.Itoa(liveProbes)}})
	if err != nil {
		return err
	}
	defer far.Kill()
	b.say("waiting for %d paths to be up", b.nodes)
	if err := b.waitAnswers(ctx, agent, remote.Name); err != nil {
		return fmt.Errorf("%w; the far side: %s", err, far.Tail(3))
	}
	if err := measure.Pause(ctx, settling*6); err != nil {
		return err
	}
	with, err := b.liveCPU(ctx, agent)
	if err != nil {
		return err
	}
	if err := b.waitAnswers(ctx, agent, remote.Name); err != nil {
		return fmt.Errorf("at the end: %w", err)
	}
	if err := errors.Join(far.Signal(syscall.SIGUSR1), sysctl(node, "ipv6/conf/"+device+"/disable_ipv6", "1")); err != nil {
		return err
	}
	if err := measure.Pause(ctx, settling*6); err != nil {
		return err
	}
	without, err := b.liveCPU(ctx, agent)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("CPU, %d live peers", b.nodes)
	for i, part := range []string{", agent", ", engine"} {
		b.table.add(row{what: what + part, beside: "without probes", pairs: []pair{{with[i], without[i]}}, unit: processorTime})
	}
	probes := with[0] + with[1] - without[0] - without[1]
	b.say("%s: %s with probes, of which %s for them (wanted: %s)", what, share(with[0]+with[1]), share(probes), share(liveGoal))
	return nil
}

func sysctl(node *testbed.Node, name, value string) error {
	return node.Space().Do(func() error {
		return os.WriteFile("/proc/sys/net/"+name, []byte(value), 0)
	})
}

// waitAnswers waits until all peers have answered probes.
func (b *bench) waitAnswers(ctx context.Context, agent *programs.Agent, remote string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Minute, errors.New("not within 10 minutes"))
	defer cancel()
	for {
		s, err := agent.Status(ctx)
		if err != nil {
			return err
		}
		up := 0
		all := s.Remote(remote).Peers
		for i := range all {
			if p := all[i].Path; p != nil && p.State == "up" && p.Sign == "answer" {
				up++
			}
		}
		if up == b.nodes {
			return nil
		}
		if err := measure.Pause(ctx, 2*time.Second); err != nil {
			return fmt.Errorf("%d of %d peers answer: %w", up, b.nodes, err)
		}
	}
}

// liveCPU returns how much of a core the agent and its engine take.
func (b *bench) liveCPU(ctx context.Context, agent *programs.Agent) (shares [2]float64, err error) {
	used := func() (of [2]time.Duration, err error) {
		pids, err := agent.PIDs()
		if err != nil {
			return of, err
		}
		var engineErr error
		of[0], err = cpuOf(pids[0])
		of[1], engineErr = cpuOf(pids[1:]...)
		return of, errors.Join(err, engineErr)
	}
	began := time.Now()
	before, err := used()
	if err != nil {
		return shares, err
	}
	if err := measure.Pause(ctx, liveWindow); err != nil {
		return shares, err
	}
	after, err := used()
	for i := range shares {
		shares[i] = (after[i] - before[i]).Seconds() / time.Since(began).Seconds()
	}
	return shares, err
}
