package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/routes"
)

// roundTrips are the requests of one measurement of latency.
const roundTrips = 2000

// exitFilter compares TCP and round trips through the same tunnel with and without the exit
// filter on both nodes. The agents have ended, so that they don't restore it; the engines
// carry the packets.
func (b *bench) exitFilter(ctx context.Context, s *side) error {
	var engines []int
	for _, agent := range s.agents {
		agent.Kill()
		pids, err := agent.Node.Space().PIDs(programs.Engine)
		if err != nil {
			return err
		}
		engines = append(engines, pids...)
	}
	s.cpu = func() (time.Duration, error) { return cpuOf(engines...) }
	with, err := s.setExitFilter(ctx)
	if err != nil {
		return err
	}
	echo, err := s.to.Listen(ctx, "tcp", net.JoinHostPort(s.to.Addresses[0].String(), "7"))
	if err != nil {
		return err
	}
	defer echo.Close()
	go func() {
		for {
			conn, err := echo.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(conn, conn); _ = conn.Close() }()
		}
	}()
	var speed, cpu, trips []pair
	for i := range b.pairs {
		var transfers [2]transfer
		var latencies [2]time.Duration
		for j := range 2 {
			// The order alternates, too.
			without := (i+j)%2 == 1
			if err := with(!without); err != nil {
				return err
			}
			at := 0
			if without {
				at = 1
			}
			if transfers[at], err = b.transfer(ctx, s, flow{streams: 1, message: trafficBuffer}); err != nil {
				return err
			}
			if latencies[at], err = s.roundTrip(ctx); err != nil {
				return err
			}
		}
		speed = append(speed, pair{transfers[0].bitsPerSecond, transfers[1].bitsPerSecond})
		cpu = append(cpu, pair{transfers[0].cpuPerGigabyte, transfers[1].cpuPerGigabyte})
		trips = append(trips, pair{latencies[0].Seconds(), latencies[1].Seconds()})
		b.say("exit filter, pair %d of %d: ratio %.3f; CPU %.3f; round trip %.3f", i+1, b.pairs, speed[i].ratio(), cpu[i].ratio(), trips[i].ratio())
	}
	const beside = "without the exit filter"
	b.table.add(row{what: "TCP with the exit filter", beside: beside, pairs: speed, unit: bandwidth, goal: goal{atLeast: 0.98}})
	b.table.add(row{what: "CPU per GB of the engines", beside: beside, pairs: cpu, unit: duration})
	b.table.add(row{what: "round trip, p50", beside: beside, pairs: trips, unit: duration, goal: goal{atMost: 1.05}})
	return with(true)
}

// setExitFilter returns a function that installs or removes the chains of the exit filter on
// both nodes, as they are now.
func (s *side) setExitFilter(ctx context.Context) (set func(on bool) error, err error) {
	nodes := []interface {
		Run(ctx context.Context, program string, args ...string) (string, error)
	}{s.from.Node, s.to.Node}
	tables := make([]string, len(nodes))
	for i, node := range nodes {
		if tables[i], err = node.Run(ctx, "nft", "list", "table", "inet", routes.FilterTable); err != nil {
			return nil, err
		}
		if !strings.Contains(tables[i], "chain postrouting") {
			return nil, fmt.Errorf("no exit filter in %s", tables[i])
		}
	}
	return func(on bool) error {
		var errs []error
		for i, node := range nodes {
			script := "delete table inet " + routes.FilterTable + "\n" + tables[i]
			if !on {
				for _, chain := range []string{"forward", "postrouting"} {
					script += "\ndelete chain inet " + routes.FilterTable + " " + chain
				}
			}
			_, err := node.Run(ctx, "nft", script)
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}, nil
}

// roundTrip returns the median of the times between a byte and its echo.
func (s *side) roundTrip(ctx context.Context) (time.Duration, error) {
	conn, err := s.from.Dial(ctx, "tcp", net.JoinHostPort(s.to.Addresses[0].String(), "7"))
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return 0, err
	}
	times := make([]time.Duration, roundTrips)
	one := []byte{1}
	for i := range times {
		start := time.Now()
		if _, err := conn.Write(one); err != nil {
			return 0, err
		}
		if _, err := io.ReadFull(conn, one); err != nil {
			return 0, err
		}
		times[i] = time.Since(start)
	}
	slices.Sort(times)
	return times[len(times)/2], nil
}
