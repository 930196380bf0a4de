package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// manyBlocks compares an agent whose remote's nodes have some blocks of addresses each,
// as with Calico's address management, with one whose remote's nodes have one podCIDR.
func (b *bench) manyBlocks(ctx context.Context, a *arena) error {
	subnets := []netip.Prefix{netip.MustParsePrefix("100.64.0.0/10")}
	clusters, err := b.clusters(ctx, a, testbed.ClusterConfig{Name: "aws"},
		testbed.ClusterConfig{Name: "merit", PodSubnets: subnets}, testbed.ClusterConfig{Name: "gcp", PodSubnets: subnets})
	if err != nil {
		return err
	}
	var both [2]*scale // with blocks, and with one prefix
	for i, count := range []int{blocks, 1} {
		remote := clusters[1+i]
		b.say("creating %d nodes with %d prefixes each", b.nodes, count)
		s := &scale{bench: b}
		if s.crowd, err = newCrowd(ctx, remote, b.nodes, clusters[0].Name, count, 0); err != nil {
			return err
		}
		node, err := clusters[0].AddNode(ctx, testbed.NodeConfig{})
		if err != nil {
			return err
		}
		if s.agent, err = programs.PrepareAgent(ctx, a.agent, node, remote); err != nil {
			return err
		}
		s.agent.Env["SEMAPHORE_WG_BACKEND"] = "userspace"
		s.agent.Env["SEMAPHORE_LOG_FORMAT"] = "json"
		s.agent.Env[programs.Variable(remote.Name, "WG_MAX_PEERS")] = strconv.Itoa(b.nodes)
		s.log = a.tb.LogPath(node.Name + "-agent")
		both[i] = s
	}
	var took, share, peak []pair
	for i := range b.pairs {
		var seen [2]started
		for j, s := range both {
			if seen[j], err = s.once(ctx); err != nil {
				return err
			}
		}
		of := func(value func(started) float64) pair { return pair{value(seen[0]), value(seen[1])} }
		took = append(took, of(func(s started) float64 { return s.took.Seconds() }))
		share = append(share, of(func(s started) float64 { return s.memory.share }))
		peak = append(peak, of(func(s started) float64 { return s.memory.peak }))
		b.say("pair %d of %d: start %v and %v, memory %s and %s, peak %s and %s", i+1, b.pairs, seen[0].took.Round(time.Millisecond),
			seen[1].took.Round(time.Millisecond), megabytes(seen[0].memory.share), megabytes(seen[1].memory.share),
			megabytes(seen[0].memory.peak), megabytes(seen[1].memory.peak))
	}
	beside := "with one prefix each"
	half := goal{atMost: 1.5}
	b.table.add(row{what: fmt.Sprintf("start to %d peers with %d blocks", b.nodes, blocks), beside: beside, pairs: took, unit: duration, goal: half})
	b.table.add(row{what: "memory with them", beside: beside, pairs: share, unit: size, goal: half})
	b.table.add(row{what: "memory, peak", beside: beside, pairs: peak, unit: size, goal: half})
	return nil
}

// started is what one start came to.
type started struct {
	took   time.Duration
	memory memory
}

// once starts the agent, measures, and leaves nothing.
func (s *scale) once(ctx context.Context) (seen started, err error) {
	if seen.took, _, err = s.startAgent(ctx, "info"); err != nil {
		return seen, err
	}
	pids, err := s.agent.PIDs()
	if err == nil {
		seen.memory, err = memoryAfter(ctx, settling, pids)
	}
	return seen, errors.Join(err, s.stopAgent(ctx))
}
