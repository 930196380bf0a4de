package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed/sandbox"
)

// overlap compares a mesh of two clusters with equal pod subnets, both of which have a map to
// virtual ones, with a mesh without maps.
func (b *bench) overlap(ctx context.Context, a *arena) error {
	prefixes := func(texts ...string) (all []netip.Prefix) {
		for _, text := range texts {
			all = append(all, netip.MustParsePrefix(text))
		}
		return all
	}
	equal := prefixes("10.32.0.0/16", "fd00:10:32::/48")
	clusters, err := b.clusters(ctx, a, testbed.ClusterConfig{Name: "aws"}, testbed.ClusterConfig{Name: "gcp"},
		testbed.ClusterConfig{Name: "east", PodSubnets: equal, VirtualSubnets: prefixes("100.64.0.0/16", "fd00:64::/48")},
		testbed.ClusterConfig{Name: "west", PodSubnets: equal, VirtualSubnets: prefixes("100.65.0.0/16", "fd00:65::/48")})
	if err != nil {
		return err
	}
	var sides [2]*side
	for i, name := range []string{"no maps", "maps"} {
		var pods [2]*testbed.Pod
		for j, c := range clusters[2*i : 2*i+2] {
			node, err := c.AddNode(ctx, testbed.NodeConfig{})
			if err != nil {
				return err
			}
			if pods[j], err = node.AddPod(ctx, testbed.PodConfig{}); err != nil {
				return err
			}
		}
		if sides[i], err = b.startAgents(ctx, a.agent, name, pods); err != nil {
			return err
		}
		if err := sides[i].waitConnected(ctx); err != nil {
			return err
		}
	}
	without, with := sides[0], sides[1]
	for i, family := range []string{"IPv4", "IPv6"} {
		without.family, with.family = i, i
		for _, streams := range []int{1, 4} {
			if err := b.compare(ctx, with, without, fmt.Sprintf("%s with maps, ", family), flow{streams: streams, message: trafficBuffer}, goal{atLeast: 0.95}); err != nil {
				return err
			}
		}
		if err := b.roundTrips(ctx, with, without, family+" with maps", smallRequests, goal{atMost: 1.05}); err != nil {
			return err
		}
	}
	return nil
}

// requests are the modes of this program that answer and send requests.
type requests struct{ answer, ask string }

var (
	// smallRequests follow each other over one TCP connection.
	smallRequests = requests{answer: answerMode, ask: askMode}
	httpRequests  = requests{answer: serveMode, ask: fetchMode}
)

// roundTrips compares how long requests take; what begins the names of its rows.
func (b *bench) roundTrips(ctx context.Context, ours, beside *side, what string, of requests, atMost goal) error {
	var medians, tails []pair
	for i := range b.pairs {
		var seen [2]asked
		for j := range seen {
			j = (i + j) % 2 // Each is the first one in turn.
			var err error
			if seen[j], err = b.roundTrip(ctx, []*side{ours, beside}[j], of); err != nil {
				return err
			}
		}
		medians = append(medians, pair{seen[0].Median, seen[1].Median})
		tails = append(tails, pair{seen[0].P99, seen[1].P99})
		b.say("%s, pair %d of %d: round trips of %s and %s, ratio %.3f", what, i+1, b.pairs,
			seconds(seen[0].Median), seconds(seen[1].Median), medians[i].ratio())
	}
	b.table.add(row{what: what + ", round trip", beside: beside.name, pairs: medians, unit: roundTrip, goal: atMost})
	b.table.add(row{what: what + ", round trip, 99th percentile", beside: beside.name, pairs: tails, unit: roundTrip})
	return nil
}

// roundTrip sends requests from one pod to the other for a while.
func (b *bench) roundTrip(ctx context.Context, s *side, of requests) (asked, error) {
	server, client := s.addresses()
	answering, err := s.to.Start(sandbox.Command{Name: "answer", Path: b.self, Args: []string{of.answer, server}})
	if err != nil {
		return asked{}, err
	}
	asking, err := s.from.Start(sandbox.Command{Name: "ask", Path: b.self, Args: []string{of.ask, client, b.seconds.String()}})
	if err != nil {
		return asked{}, err
	}
	printed, err := finish(ctx, asking)
	if err != nil {
		return asked{}, err
	}
	if err := answering.Stop(ctx); err != nil {
		return asked{}, err
	}
	var got asked
	if err := json.Unmarshal([]byte(printed), &got); err != nil {
		return asked{}, fmt.Errorf("the client printed %q: %w", printed, err)
	}
	return got, nil
}
