package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/bench/measure"
	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// changesPerSecond is how many nodes of a crowd change.
const changesPerSecond = 20

// settling is how long after its start memory and processor time of a process
// are looked at.
const settling = 5 * time.Second

// atRest is how long after that its memory is measured again: no node of a crowd answers,
// and with thousands of handshakes that are tried garbage is what takes most of it. Neither
// program has any yet after settling, and both are about to begin their handshakes again: what
// they take then says most of when they began. So it is looked at each second in between.
const atRest = time.Minute

// scale compares an agent and wireguard-go with the same crowd as peers.
type scale struct {
	*bench
	crowd *crowd
	agent *programs.Agent
	plain *plain
	log   string // path of the agent's
}

// manyNodes measures against a large remote cluster.
func (b *bench) manyNodes(ctx context.Context, a *arena) error {
	clusters, err := b.clusters(ctx, a, testbed.ClusterConfig{Name: "aws"}, testbed.ClusterConfig{
		Name:       "gcp",
		PodSubnets: []netip.Prefix{netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("fd00:64::/48")},
	})
	if err != nil {
		return err
	}
	local, remote := clusters[0], clusters[1]
	b.say("creating %d nodes", b.nodes)
	s := &scale{bench: b}
	if s.crowd, err = newCrowd(ctx, remote, b.nodes, local.Name, 1, 0); err != nil {
		return err
	}
	var nodes [2]*testbed.Node
	for i := range nodes {
		if nodes[i], err = local.AddNode(ctx, testbed.NodeConfig{}); err != nil {
			return err
		}
	}
	if s.agent, err = programs.PrepareAgent(ctx, a.agent, nodes[0], remote); err != nil {
		return err
	}
	s.agent.Env["SEMAPHORE_WG_BACKEND"] = "userspace"
	s.agent.Env["SEMAPHORE_LOG_FORMAT"] = "json"
	s.agent.Env[programs.Variable(remote.Name, "WG_MAX_PEERS")] = strconv.Itoa(b.nodes)
	s.log = a.tb.LogPath(nodes[0].Name + "-agent")
	if s.plain, err = newPlain(nodes[1], a.plain); err != nil {
		return err
	}
	s.plain.routes = remote.PodSubnets
	return errors.Join(s.startup(ctx), s.latency(ctx))
}

// startAgent starts the agent and returns how long it took until all of the
// crowd were peers, and what it logs from then on.
func (s *scale) startAgent(ctx context.Context, level string) (time.Duration, *journal, error) {
	s.agent.Env["SEMAPHORE_LOG_LEVEL"] = level
	log, err := newJournal(s.log)
	if err != nil {
		return 0, nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("not within a minute"))
	defer cancel()
	start := time.Now()
	if err := s.agent.Start(); err != nil {
		return 0, nil, err
	}
	at, err := log.waitAdded(ctx, len(s.crowd.members))
	return at.Sub(start), log, err
}

func (s *scale) startPlain(ctx context.Context) (time.Duration, error) {
	s.plain.peers = s.crowd.peers()
	start := time.Now()
	err := s.plain.start(ctx)
	return time.Since(start), err
}

// stopAgent leaves nothing that would help the next start.
func (s *scale) stopAgent(ctx context.Context) error {
	return errors.Join(s.agent.Stop(ctx), s.agent.Cleanup(ctx))
}

// startup measures how long it takes to have all peers, and in how much memory.
func (s *scale) startup(ctx context.Context) error {
	var took, whole, soon, mean, rest, engine, peak []pair
	for i := range s.pairs {
		listing, err := s.crowd.list(ctx)
		if err != nil {
			return err
		}
		ours, _, err := s.startAgent(ctx, "info")
		if err != nil {
			return err
		}
		pids, err := s.agent.PIDs()
		if err != nil {
			return err
		}
		oursMemory, err := memories(ctx, pids)
		if err := errors.Join(err, s.stopAgent(ctx)); err != nil {
			return err
		}
		beside, err := s.startPlain(ctx)
		if err != nil {
			return err
		}
		besideMemory, err := memories(ctx, []int{s.plain.process.PID()})
		if err := errors.Join(err, s.plain.stop(ctx)); err != nil {
			return err
		}
		took = append(took, pair{ours.Seconds(), beside.Seconds()})
		whole = append(whole, pair{ours.Seconds(), (beside + listing).Seconds()})
		soon = append(soon, pair{oursMemory.soon.share, besideMemory.soon.share})
		mean = append(mean, pair{oursMemory.mean, besideMemory.mean})
		rest = append(rest, pair{oursMemory.rest.share, besideMemory.rest.share})
		engine = append(engine, pair{oursMemory.rest.share - oursMemory.rest.first, besideMemory.rest.share})
		peak = append(peak, pair{oursMemory.rest.peak, besideMemory.rest.peak})
		s.say("start, pair %d of %d: %v and %v, the list %v; memory %s and %s, on the average %s and %s, at rest %s and %s, peak %s and %s", i+1, s.pairs,
			ours.Round(time.Millisecond), beside.Round(time.Millisecond), listing.Round(time.Millisecond),
			megabytes(oursMemory.soon.share), megabytes(besideMemory.soon.share), megabytes(oursMemory.mean), megabytes(besideMemory.mean),
			megabytes(oursMemory.rest.share), megabytes(besideMemory.rest.share),
			megabytes(oursMemory.rest.peak), megabytes(besideMemory.rest.peak))
	}
	what := fmt.Sprintf("start to %d peers", len(s.crowd.members))
	s.table.add(row{what: what, beside: "wireguard-go, one request", pairs: took, unit: duration})
	s.table.add(row{what: what, beside: "the same and a bare list", pairs: whole, unit: duration})
	s.table.add(row{what: fmt.Sprintf("memory with them, after %v", settling), beside: "wireguard-go", pairs: soon, unit: size})
	s.table.add(row{what: fmt.Sprintf("memory, mean of %v from then", atRest), beside: "wireguard-go", pairs: mean, unit: size, goal: goal{atMost: 1.2}})
	s.table.add(row{what: fmt.Sprintf("memory, after %v", settling+atRest), beside: "wireguard-go", pairs: rest, unit: size, goal: goal{atMost: 1.2}})
	s.table.add(row{what: "of that the engine", beside: "wireguard-go", pairs: engine, unit: size, goal: goal{atMost: 1.2}})
	s.table.add(row{what: "memory, peak", beside: "wireguard-go", pairs: peak, unit: size, goal: goal{atMost: 1.2}})
	return nil
}

// memory is what some processes take, in bytes: shared pages are counted once in share,
// and in that of the first one.
type memory struct{ share, first, peak float64 }

// memoryAfter returns what processes take after a while.
func memoryAfter(ctx context.Context, wait time.Duration, pids []int) (m memory, err error) {
	if err := measure.Pause(ctx, wait); err != nil {
		return m, err
	}
	var errs [3]error
	m.share, errs[0] = measure.Proportional(pids...)
	m.first, errs[1] = measure.Proportional(pids[0])
	_, m.peak, errs[2] = measure.Resident(pids...)
	return m, errors.Join(errs[:]...)
}

// course is what processes take that have just started: soon, on the average of their first
// minute, and at rest.
type course struct {
	soon, rest memory
	mean       float64 // of share
}

// memories follows what processes take that have just started.
func memories(ctx context.Context, pids []int) (c course, err error) {
	if c.soon, err = memoryAfter(ctx, settling, pids); err != nil {
		return c, err
	}
	const looks = int(atRest / time.Second)
	for range looks {
		if c.rest, err = memoryAfter(ctx, time.Second, pids); err != nil {
			return c, err
		}
		c.mean += c.rest.share / float64(looks)
	}
	return c, nil
}

// scatterTime is the time in which WireGuard tries again to reach a peer that
// doesn't answer (Rekey-Timeout, section 6.1 of the WireGuard paper).
const scatterTime = 5 * time.Second

// scatter gives all nodes new keys, one after the other. No node answers in a
// crowd, and handshakes with thousands of peers that were added at the same
// time are repeated at the same times: the processor would be busy with nothing
// else for most of a second, then idle. Peers that were added one by one make
// an even load.
func (s *scale) scatter(ctx context.Context, log *journal) error {
	s.say("all nodes change their keys")
	if _, err := log.read(); err != nil {
		return err
	}
	start := time.Now()
	interval := scatterTime / time.Duration(len(s.crowd.members))
	err := testbed.InParallel(ctx, len(s.crowd.members), func(ctx context.Context, i int) error {
		if err := measure.Pause(ctx, time.Until(start.Add(time.Duration(i)*interval))); err != nil {
			return err
		}
		return s.crowd.rotate(ctx, i)
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("not within a minute"))
	defer cancel()
	if _, err := log.waitAdded(ctx, len(s.crowd.members)); err != nil {
		return err
	}
	return measure.Pause(ctx, settling)
}
