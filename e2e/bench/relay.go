package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/bench/measure"
	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/tools"
)

const (
	// relayImages is how many images the status of each node has.
	relayImages = 50
	// relayLimit is the memory limit of semaphore-relay in deploy/relay, and relayGoal what it may
	// take with two remotes of 5,000 nodes.
	relayLimit, relayGoal = 512 << 20, 128e6
	// deviceGoal is how long a changed node may take to the device, for 99 of 100.
	deviceGoal = 100 * time.Millisecond
)

// relayed is an agent that reads the objects of semaphore-relay, beside one that reads the same
// remotes directly.
type relayed struct {
	*bench
	crowd            *crowd // of remotes[0]
	relay            *programs.Program
	reading, relayed *scale // the agents, which have the crowd as peers
	remotes          []*testbed.Cluster
}

// newRelayed starts clusters, the first of which has the agents and semaphore-relay, in which
// binary runs, with so many remotes.
func (b *bench) newRelayed(ctx context.Context, a *arena, binary string, remotes int) (*relayed, error) {
	configs := []testbed.ClusterConfig{{Name: "aws"}}
	for i, name := range []string{"gcp", "merit"}[:remotes] {
		subnet := netip.MustParsePrefix([]string{"100.64.0.0/11", "100.96.0.0/11"}[i])
		configs = append(configs, testbed.ClusterConfig{Name: name, PodSubnets: []netip.Prefix{subnet}})
	}
	clusters, err := b.clusters(ctx, a, configs...)
	if err != nil {
		return nil, err
	}
	root, err := tools.Root(ctx)
	if err != nil {
		return nil, err
	}
	local, deploy := clusters[0], filepath.Join(root, "deploy")
	r := &relayed{bench: b, remotes: clusters[1:]}
	err = errors.Join(
		local.Apply(ctx, filepath.Join(deploy, "relay", "crd.yaml"), filepath.Join(deploy, "wireguard", "relay", "rbac.yaml")),
		programs.Grant(ctx, programs.Relay, local))
	if err != nil {
		return nil, err
	}
	for i, remote := range r.remotes {
		b.say("creating %d nodes of %s with %d images", b.nodes, remote.Name, relayImages)
		crowd, err := newCrowd(ctx, remote, b.nodes, local.Name, 1, relayImages)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			r.crowd = crowd
		}
	}
	var nodes [3]*testbed.Node
	for i := range nodes {
		if nodes[i], err = local.AddNode(ctx, testbed.NodeConfig{}); err != nil {
			return nil, err
		}
	}
	if r.relay, err = programs.Prepare(ctx, programs.Config{Name: programs.Relay, Binary: binary, Port: 8080}, nodes[2], r.remotes...); err != nil {
		return nil, err
	}
	for i, s := range []**scale{&r.relayed, &r.reading} {
		agent, err := programs.PrepareAgent(ctx, a.agent, nodes[i], r.remotes[0])
		if err != nil {
			return nil, err
		}
		agent.Env["SEMAPHORE_WG_BACKEND"] = "userspace"
		agent.Env["SEMAPHORE_LOG_FORMAT"] = "json"
		agent.Env[programs.Variable(r.remotes[0].Name, "WG_MAX_PEERS")] = strconv.Itoa(b.nodes)
		*s = &scale{bench: b, crowd: r.crowd, agent: agent, log: a.tb.LogPath(nodes[i].Name + "-agent")}
	}
	env := r.relayed.agent.Env
	env["SEMAPHORE_REMOTES_FROM"] = config.RemotesFromRelay
	for _, name := range []string{"API_URL", "CA_FILE", "TOKEN_FILE"} {
		delete(env, programs.Variable(r.remotes[0].Name, name))
	}
	return r, nil
}

// buildRelay builds semaphore-relay as in releases.
func buildRelay(ctx context.Context, a *arena) (string, error) {
	return programs.Build(ctx, programs.Relay, filepath.Dir(a.agent), "-ldflags=-s -w")
}

// start starts semaphore-relay, and waits until it has stored all nodes.
func (r *relayed) start(ctx context.Context) error {
	if err := r.relay.Start(); err != nil {
		return err
	}
	began := time.Now()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-r.relay.Process().Done():
			cancel(fmt.Errorf("semaphore-relay ended: %s", r.relay.Process().Tail(3)))
		case <-ctx.Done():
		}
	}()
	return testbed.Wait(ctx, "the relay to store all nodes", func(ctx context.Context) error {
		var st statuspage.Relay
		if err := r.relay.Status(ctx, &st); err != nil {
			return err
		}
		objects := 0
		if len(st.Unconfigured) > 0 {
			return fmt.Errorf("objects of %v remain", st.Unconfigured)
		}
		for i := range st.Clusters {
			c := &st.Clusters[i]
			if objects += c.Objects; !c.Local && c.Nodes != r.nodes || c.Incomplete != "" || c.Pending > 0 {
				return fmt.Errorf("%s: %d nodes, %d writes wait, %s", c.Name, c.Nodes, c.Pending, c.Incomplete)
			}
		}
		r.say("the relay has stored all nodes in %d objects after %v", objects, time.Since(began).Round(time.Second))
		return nil
	})
}

// relayMemory compares the memory of an agent that reads the objects of semaphore-relay with that of
// one that reads the nodes of the remote, and measures that of semaphore-relay with two remotes, in a
// group with its container's limit.
func (b *bench) relayMemory(ctx context.Context, a *arena) (err error) {
	binary, err := buildRelay(ctx, a)
	if err != nil {
		return err
	}
	group, err := testbed.NewMemoryGroup(fmt.Sprintf("semaphore-relay-%d", os.Getpid()), relayLimit)
	if err != nil {
		return fmt.Errorf("no control group on this machine: %w", err)
	}
	defer func() {
		// After the end of the testbed's processes.
		r := testbed.Wait(context.WithoutCancel(ctx), "the end of the control group", func(context.Context) error { return group.Remove() })
		err = errors.Join(err, r)
	}()
	limited := filepath.Join(filepath.Dir(a.agent), "limited")
	if err := os.Mkdir(limited, 0o755); err != nil {
		return err
	}
	if binary, err = group.Wrap(limited, binary); err != nil {
		return err
	}
	r, err := b.newRelayed(ctx, a, binary, 2)
	if err != nil {
		return err
	}
	defer func() {
		if p := r.relay.Process(); p != nil {
			p.Kill()
		}
	}()
	if err := r.start(ctx); err != nil {
		return err
	}
	if err := r.ownMemory(ctx, group); err != nil {
		return err
	}
	// The agents have one remote.
	r.relay.Env["SEMAPHORE_REMOTES"] = r.remotes[0].Name
	if err := r.restart(ctx); err != nil {
		return err
	}
	return r.agentMemory(ctx)
}

func (r *relayed) restart(ctx context.Context) error {
	if err := r.relay.Stop(ctx); err != nil {
		return err
	}
	return r.start(ctx)
}

// ownMemory measures the memory of semaphore-relay after its first writes, and after a restart.
func (r *relayed) ownMemory(ctx context.Context, group *testbed.MemoryGroup) error {
	for _, what := range []string{"all nodes written", "a restart"} {
		if what == "a restart" {
			if err := r.restart(ctx); err != nil {
				return err
			}
		}
		if _, err := r.crowd.live(ctx, atRest); err != nil {
			return err
		}
		now, peak, err := measure.Resident(r.relay.Process().PID())
		if err != nil {
			return err
		}
		verdict := "met"
		if peak > relayGoal {
			verdict = "MISSED"
		}
		r.table.note("semaphore-relay, %d remotes of %d nodes, a minute after %s: %s, peak %s; at most %s %s",
			len(r.remotes), r.nodes, what, megabytes(now), megabytes(peak), megabytes(relayGoal), verdict)
		r.table.alone = append(r.table.alone, measure.Alone("memory of semaphore-relay after "+what, "MB", now/1e6),
			measure.Alone("memory of semaphore-relay until a minute after "+what+", peak", "MB", peak/1e6))
	}
	peak, kills, err := group.Peak()
	if err == nil && kills > 0 {
		err = fmt.Errorf("the kernel has killed semaphore-relay %d times", kills)
	}
	r.table.note("its control group, with the kernel's memory for it: peak %s of %s", megabytes(float64(peak)), megabytes(relayLimit))
	return err
}

// agentMemory compares the agents, without their engines.
func (r *relayed) agentMemory(ctx context.Context) error {
	var mean, rest, peak []pair
	for i := range r.pairs {
		var seen [2]course
		for j, s := range []*scale{r.relayed, r.reading} {
			_, _, err := s.startAgent(ctx, "info")
			if err == nil {
				seen[j], err = memories(ctx, []int{s.agent.Process().PID()})
			}
			if err := errors.Join(err, s.stopAgent(ctx)); err != nil {
				return err
			}
		}
		of := func(value func(course) float64) pair { return pair{value(seen[0]), value(seen[1])} }
		mean = append(mean, of(func(c course) float64 { return c.mean }))
		rest = append(rest, of(func(c course) float64 { return c.rest.share }))
		peak = append(peak, of(func(c course) float64 { return c.rest.peak }))
		r.say("memory of agents, pair %d of %d: mean %s and %s, at rest %s and %s, peak %s and %s", i+1, r.pairs,
			megabytes(mean[i].ours), megabytes(mean[i].beside), megabytes(rest[i].ours), megabytes(rest[i].beside),
			megabytes(peak[i].ours), megabytes(peak[i].beside))
	}
	less, beside := goal{atMost: 1}, "direct"
	r.table.add(row{what: fmt.Sprintf("agent by relay, %d remote nodes, mean of %v", r.nodes, atRest), beside: beside, pairs: mean, unit: size, goal: less})
	r.table.add(row{what: fmt.Sprintf("memory, after %v", settling+atRest), beside: beside, pairs: rest, unit: size, goal: less})
	r.table.add(row{what: "memory, peak", beside: beside, pairs: peak, unit: size, goal: less})
	return nil
}

// relayChanges measures changed nodes until they are on the devices of an agent that reads the
// objects of semaphore-relay, and of one that reads the nodes of the remote, at the same time.
func (b *bench) relayChanges(ctx context.Context, a *arena) (err error) {
	binary, err := buildRelay(ctx, a)
	if err != nil {
		return err
	}
	r, err := b.newRelayed(ctx, a, binary, 1)
	if err != nil {
		return err
	}
	if err := r.start(ctx); err != nil {
		return err
	}
	both := []*scale{r.relayed, r.reading}
	var logs [2]*journal
	started := 0
	defer func() {
		for _, s := range both[:started] {
			err = errors.Join(err, s.stopAgent(ctx))
		}
	}()
	for i, s := range both {
		if _, logs[i], err = s.startAgent(ctx, "debug"); err != nil {
			return err
		}
		started++
	}
	if err := r.relayed.scatter(ctx, logs[0]); err != nil {
		return err
	}
	watched, err := r.crowd.watch(ctx)
	if err != nil {
		return err
	}
	defer watched.stop()
	if err := measure.Pause(ctx, settling); err != nil {
		return err
	}
	// Each node changes its key once. What is written about the new one is the change: agents also
	// write about peers that don't answer, as none does here, to restart their handshakes.
	long := min(40*time.Second, time.Duration(r.nodes)*time.Second/changesPerSecond-time.Second)
	r.say("%d nodes change per second, for %v", changesPerSecond, long)
	var (
		mu  sync.Mutex
		all []changed
	)
	if _, err := pace(ctx, time.Second/changesPerSecond, long, func(i int) error {
		c := changed{member: i, sent: time.Now()}
		if err := r.crowd.rotate(ctx, i); err != nil {
			return err
		}
		c.answered = time.Now()
		mu.Lock()
		defer mu.Unlock()
		all = append(all, c)
		return nil
	}); err != nil {
		return err
	}
	if err := measure.Pause(ctx, settling); err != nil {
		return err
	}
	var took [2][]float64
	for i, log := range logs {
		entries, err := log.read()
		if err != nil {
			return err
		}
		applied := map[string]time.Time{} // first, by key
		for _, w := range writes(entries) {
			if _, known := applied[w.peer]; !known {
				applied[w.peer] = w.at
			}
		}
		for _, c := range all {
			at, written := applied[shortKey(r.crowd.members[c.member].peer.key)]
			if !written {
				return fmt.Errorf("a change never reached the device of %s", both[i].agent.Node.Name)
			}
			took[i] = append(took[i], at.Sub(c.sent).Seconds())
		}
	}
	r.reportChanges(all, took[0], took[1], watched)
	return nil
}

// quantiles returns the quantiles of a series.
func quantiles(series []float64) func(q float64) float64 {
	sorted := slices.Sorted(slices.Values(series))
	return func(q float64) float64 { return measure.Quantile(sorted, q) }
}

// reportChanges compares times, by stretches of the run.
func (r *relayed) reportChanges(all []changed, relayed, reading []float64, watched *bareWatch) {
	var middle, worst []pair
	each := max(1, (len(all)+r.pairs-1)/r.pairs)
	for from := 0; from < len(all); from += each {
		to := min(from+each, len(all))
		byRelay, direct := quantiles(relayed[from:to]), quantiles(reading[from:to])
		middle = append(middle, pair{byRelay(0.5), direct(0.5)})
		worst = append(worst, pair{byRelay(0.99), direct(0.99)})
	}
	r.table.add(row{what: "API write sent to device by relay, p50", beside: "direct", pairs: middle, unit: duration})
	r.table.add(row{what: "API write sent to device by relay, p99", beside: "direct", pairs: worst, unit: duration})
	for _, of := range []struct {
		name string
		took []float64
	}{{"by relay", relayed}, {"direct", reading}, {"a bare watch of nodes", latencies(all, func(c changed) time.Duration {
		return watched.seen(r.crowd.members[c.member].name).Sub(c.sent)
	})}} {
		q := quantiles(of.took)
		verdict := ""
		if of.name == "by relay" {
			if verdict = fmt.Sprintf("; p99 <= %s met", seconds(deviceGoal.Seconds())); q(0.99) > deviceGoal.Seconds() {
				verdict = fmt.Sprintf("; p99 <= %s MISSED", seconds(deviceGoal.Seconds()))
			}
		}
		r.table.note("%d changed nodes of %d, %d a second, %s: p50 %s, p99 %s, at most %s%s", len(all), r.nodes, changesPerSecond, of.name,
			seconds(q(0.5)), seconds(q(0.99)), seconds(q(1)), verdict)
		r.table.alone = append(r.table.alone, measure.Alone("changed node to device, "+of.name+", p50", "s", q(0.5)),
			measure.Alone("changed node to device, "+of.name+", p99", "s", q(0.99)))
	}
}
