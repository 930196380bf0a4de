package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed/sandbox"
)

// trafficPort is where receivers listen in their pod.
const trafficPort = 5201

// transfer is one measurement of a side.
type transfer struct {
	bitsPerSecond float64
	// cpuPerGigabyte is in seconds per 10^9 bytes, of both ends of the tunnel.
	cpuPerGigabyte float64
}

// throughput compares TCP through two tunnels.
func (b *bench) throughput(ctx context.Context, ours, beside *side) error {
	atLeast := goal{atLeast: 0.98}
	if b.against != "" {
		atLeast = goal{}
	}
	for _, streams := range []int{1, 4} {
		// Buffers grow and pages are touched once, and count for neither.
		for _, s := range []*side{ours, beside} {
			if _, err := b.transfer(ctx, s, streams); err != nil {
				return err
			}
		}
		var speed, cpu []pair
		for i := range b.pairs {
			x, err := b.transfer(ctx, ours, streams)
			if err != nil {
				return err
			}
			y, err := b.transfer(ctx, beside, streams)
			if err != nil {
				return err
			}
			speed = append(speed, pair{x.bitsPerSecond, y.bitsPerSecond})
			cpu = append(cpu, pair{x.cpuPerGigabyte, y.cpuPerGigabyte})
			b.say("streams: %d, pair %d of %d: %s and %s, ratio %.3f; CPU %.3f", streams, i+1, b.pairs,
				gigabits(x.bitsPerSecond), gigabits(y.bitsPerSecond), speed[i].ratio(), cpu[i].ratio())
		}
		b.table.add(row{what: "TCP, streams: " + strconv.Itoa(streams), beside: beside.name, pairs: speed, unit: bandwidth, goal: atLeast})
		b.table.add(row{what: "CPU per GB, streams: " + strconv.Itoa(streams), beside: beside.name, pairs: cpu, unit: duration})
	}
	return nil
}

// transfer sends from one pod to the other for a while.
func (b *bench) transfer(ctx context.Context, s *side, streams int) (transfer, error) {
	address := netip.AddrPortFrom(s.to.Addresses[0], trafficPort).String()
	before, err := s.cpu()
	if err != nil {
		return transfer{}, err
	}
	receiver, err := s.to.Start(sandbox.Command{
		Name: "receive", Path: b.self, Args: []string{receiveMode, address, strconv.Itoa(streams)},
	})
	if err != nil {
		return transfer{}, err
	}
	sender, err := s.from.Start(sandbox.Command{
		Name: "send", Path: b.self, Args: []string{sendMode, address, strconv.Itoa(streams), b.seconds.String()},
	})
	if err != nil {
		return transfer{}, err
	}
	if _, err := finish(ctx, sender); err != nil {
		return transfer{}, err
	}
	printed, err := finish(ctx, receiver)
	if err != nil {
		return transfer{}, err
	}
	after, err := s.cpu()
	if err != nil {
		return transfer{}, err
	}
	var got received
	if err := json.Unmarshal([]byte(printed), &got); err != nil {
		return transfer{}, fmt.Errorf("the receiver printed %q: %w", printed, err)
	}
	return transfer{
		bitsPerSecond:  got.bitsPerSecond(),
		cpuPerGigabyte: (after - before).Seconds() / (float64(got.Bytes) / 1e9),
	}, nil
}
