package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// side is a tunnel between a node of aws and one of gcp, with a pod at each end.
type side struct {
	name     string
	from, to *testbed.Pod
	family   int               // of the addresses of both: which of them
	agents   []*programs.Agent // nil: it has none
	// cpu returns the processor time that the tunnel's processes have used, at both
	// ends; nil: there are none.
	cpu func() (time.Duration, error)
}

// used returns what cpu does, and nothing for a side without processes.
func (s *side) used() (time.Duration, error) {
	if s.cpu == nil {
		return 0, nil
	}
	return s.cpu()
}

// pairOfNodes compares two tunnels of the same layout, on nodes of their own.
func (b *bench) pairOfNodes(ctx context.Context, a *arena) error {
	clusters, err := b.clusters(ctx, a, testbed.ClusterConfig{Name: "aws"}, testbed.ClusterConfig{Name: "gcp"})
	if err != nil {
		return err
	}
	var pods [2][2]*testbed.Pod // by side and cluster
	for i := range pods {
		for j, c := range clusters {
			node, err := c.AddNode(ctx, testbed.NodeConfig{})
			if err != nil {
				return err
			}
			if pods[i][j], err = node.AddPod(ctx, testbed.PodConfig{}); err != nil {
				return err
			}
		}
	}
	ours, err := b.startAgents(ctx, a.agent, "agents", pods[0])
	if err != nil {
		return err
	}
	beside, err := b.startBeside(ctx, a, pods[1])
	if err != nil {
		return err
	}
	for _, s := range []*side{ours, beside} {
		if err := s.waitConnected(ctx); err != nil {
			return err
		}
	}
	if b.wants("throughput") {
		if err := b.throughput(ctx, ours, beside); err != nil {
			return fmt.Errorf("throughput: %w", err)
		}
	}
	if b.wants("filter") {
		if err := b.exitFilter(ctx, ours); err != nil {
			return fmt.Errorf("exit filter: %w", err)
		}
	}
	return nil
}

// startBeside starts what the agents are compared with.
func (b *bench) startBeside(ctx context.Context, a *arena, pods [2]*testbed.Pod) (*side, error) {
	if b.against == "" {
		return startPlain(ctx, a.plain, pods)
	}
	path, err := filepath.Abs(b.against)
	if err != nil {
		return nil, err
	}
	return b.startAgents(ctx, path, filepath.Base(path), pods)
}

func (b *bench) startAgents(ctx context.Context, binary, name string, pods [2]*testbed.Pod) (*side, error) {
	b.say("starting %s", name)
	var agents [2]*programs.Agent
	for i, pod := range pods {
		agent, err := programs.PrepareAgent(ctx, binary, pod.Node, pods[1-i].Node.Cluster)
		if err != nil {
			return nil, err
		}
		agent.Env["SEMAPHORE_WG_BACKEND"] = "userspace"
		// As wireguard-go's, and whatever the underlay carries.
		agent.Env[programs.Variable(pods[1-i].Node.Cluster.Name, "WG_MTU")] = "1420"
		if err := agent.Start(); err != nil {
			return nil, err
		}
		agents[i] = agent
	}
	return &side{
		name: name,
		from: pods[0], to: pods[1], agents: agents[:],
		cpu: func() (time.Duration, error) { return cpuOfAgents(agents[:]...) },
	}, nil
}

func startPlain(ctx context.Context, binary string, pods [2]*testbed.Pod) (*side, error) {
	var devices [2]*plain
	for i, pod := range pods {
		device, err := newPlain(pod.Node, binary)
		if err != nil {
			return nil, err
		}
		devices[i] = device
	}
	for i, d := range devices {
		other := devices[1-i]
		d.peers = []plainPeer{other.peer()}
		d.routes = other.node.Cluster.PodSubnets
		if err := d.start(ctx); err != nil {
			return nil, err
		}
	}
	return &side{
		name: "wireguard-go",
		from: pods[0], to: pods[1],
		cpu: func() (time.Duration, error) { return cpuOf(devices[0].process.PID(), devices[1].process.PID()) },
	}, nil
}

func (s *side) waitConnected(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("not within a minute"))
	defer cancel()
	return testbed.Wait(ctx, s.name+" to connect two pods", func(ctx context.Context) error {
		attempt, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		return s.from.Ping(attempt, s.to.VirtualAddresses()[0])
	})
}
