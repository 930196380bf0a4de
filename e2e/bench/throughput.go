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
		if err := b.compare(ctx, ours, beside, "", flow{streams: streams, message: trafficBuffer}, atLeast); err != nil {
			return err
		}
	}
	return nil
}

// compare compares transfers; what begins the names of its rows.
func (b *bench) compare(ctx context.Context, ours, beside *side, what string, f flow, atLeast goal) error {
	// Buffers grow and pages are touched once, and count for neither.
	for _, s := range []*side{ours, beside} {
		if _, err := b.transfer(ctx, s, f); err != nil {
			return err
		}
	}
	var speed, cpu []pair
	for i := range b.pairs {
		x, err := b.transfer(ctx, ours, f)
		if err != nil {
			return err
		}
		y, err := b.transfer(ctx, beside, f)
		if err != nil {
			return err
		}
		speed = append(speed, pair{x.bitsPerSecond, y.bitsPerSecond})
		cpu = append(cpu, pair{x.cpuPerGigabyte, y.cpuPerGigabyte})
		b.say("%sstreams: %d, pair %d of %d: %s and %s, ratio %.3f; CPU %.3f and %.3f s per GB", what, f.streams, i+1, b.pairs,
			gigabits(x.bitsPerSecond), gigabits(y.bitsPerSecond), speed[i].ratio(), x.cpuPerGigabyte, y.cpuPerGigabyte)
	}
	b.table.add(row{what: what + "TCP, streams: " + strconv.Itoa(f.streams), beside: beside.name, pairs: speed, unit: bandwidth, goal: atLeast})
	if beside.cpu != nil {
		b.table.add(row{what: what + "CPU per GB, streams: " + strconv.Itoa(f.streams), beside: beside.name, pairs: cpu, unit: duration})
	}
	return nil
}

// addresses are where to's pod listens, and how from's pod knows that.
func (s *side) addresses() (server, client string) {
	return netip.AddrPortFrom(s.to.Addresses[s.family], trafficPort).String(), netip.AddrPortFrom(s.to.VirtualAddresses()[s.family], trafficPort).String()
}

// transfer sends from one pod to the other for a while.
func (b *bench) transfer(ctx context.Context, s *side, f flow) (transfer, error) {
	server, client := s.addresses()
	before, err := s.used()
	if err != nil {
		return transfer{}, err
	}
	receiver, err := s.to.Start(sandbox.Command{
		Name: "receive", Path: b.self, Args: []string{receiveMode, server, strconv.Itoa(f.streams)},
	})
	if err != nil {
		return transfer{}, err
	}
	sender, err := s.from.Start(sandbox.Command{
		Name: "send", Path: b.self, Args: []string{sendMode, client, strconv.Itoa(f.streams), b.seconds.String(), strconv.Itoa(f.message)},
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
	after, err := s.used()
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
