package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/e2e/bench/measure"
	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed/sandbox"
)

// What others do to the main table of a node in part churn, as BGP may.
const (
	foreignRoutes  = 10000
	foreignChanges = 1000 // a second
	churnBatch     = 10   // changes at once
)

// churnShare is how much of a core an agent may take for changes that don't concern
// it.
const churnShare = 0.05

// churn measures what an agent takes while another program changes routes that don't
// concern it, beside a program that only receives the same events, and beside itself
// when it is left alone.
func (b *bench) churn(ctx context.Context, a *arena) error {
	clusters, err := b.clusters(ctx, a, testbed.ClusterConfig{Name: "aws"}, testbed.ClusterConfig{Name: "gcp"})
	if err != nil {
		return err
	}
	node, err := clusters[0].AddNode(ctx, testbed.NodeConfig{})
	if err != nil {
		return err
	}
	agent, err := programs.StartAgent(ctx, a.agent, node, clusters[1])
	if err != nil {
		return err
	}
	if err := testbed.Wait(ctx, "the agent to be ready", agent.Ready); err != nil {
		return err
	}
	b.say("adding %d foreign routes", foreignRoutes)
	handle := node.Space().Netlink
	for i := range foreignRoutes {
		if err := handle.RouteAdd(foreignRoute(i)); err != nil {
			return fmt.Errorf("add route %d: %w", i, err)
		}
	}
	monitor, err := node.Start(sandbox.Command{Name: "ip-monitor", Path: "/usr/sbin/ip", Args: []string{"monitor", "route"}})
	if err != nil {
		return err
	}
	defer monitor.Kill()
	if err := measure.Pause(ctx, settling); err != nil {
		return err
	}
	var besides, idles []pair
	for i := range b.pairs {
		before, err := cpuOfAgents(agent)
		if err != nil {
			return err
		}
		start := time.Now()
		if err := measure.Pause(ctx, b.seconds); err != nil {
			return err
		}
		quiet, err := cpuOfAgents(agent)
		if err != nil {
			return err
		}
		idle := (quiet - before).Seconds() / time.Since(start).Seconds()
		received, err := cpuOf(monitor.PID())
		if err != nil {
			return err
		}
		start = time.Now()
		changes, err := pace(ctx, time.Second*churnBatch/foreignChanges, b.seconds, func(n int) error {
			var errs []error
			for j := range churnBatch / 2 {
				r := foreignRoute((n*churnBatch/2 + j) % foreignRoutes)
				errs = append(errs, handle.RouteDel(r), handle.RouteAdd(r))
			}
			return errors.Join(errs...)
		})
		if err != nil {
			return err
		}
		took := time.Since(start).Seconds()
		busy, err := cpuOfAgents(agent)
		if err != nil {
			return err
		}
		printed, err := cpuOf(monitor.PID())
		if err != nil {
			return err
		}
		ours := (busy - quiet).Seconds() / took
		besides = append(besides, pair{ours, (printed - received).Seconds() / took})
		idles = append(idles, pair{ours, idle})
		b.say("pair %d of %d: %s with %.0f changes/s, %s without", i+1, b.pairs, share(ours), float64(changes*churnBatch)/took, share(idle))
	}
	ours := spreadOf(idles, func(p pair) float64 { return p.ours })
	b.table.add(row{what: "1,000 foreign route changes/s", beside: "ip monitor route", pairs: besides, unit: processorTime})
	verdict := "met"
	if ours.median >= churnShare {
		verdict = "MISSED"
	}
	b.table.note("%d foreign routes, %d foreign changes/s: the agent takes %s, left alone %s; under %s %s", foreignRoutes, foreignChanges,
		share(ours.median), share(spreadOf(idles, func(p pair) float64 { return p.beside }).median), share(churnShare), verdict)
	return nil
}

// foreignRoute is a foreign route to an unused network.
func foreignRoute(i int) *netlink.Route {
	return &netlink.Route{
		Dst:      &net.IPNet{IP: net.IPv4(198, 18+byte(i>>14), byte(i>>6), byte(i<<2)).To4(), Mask: net.CIDRMask(30, 32)},
		Type:     unix.RTN_BLACKHOLE,
		Protocol: unix.RTPROT_BIRD,
	}
}
