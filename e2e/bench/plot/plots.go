package main

import (
	"errors"
	"fmt"
)

// plots are what is drawn, by file name.
func plots() map[string]func(figures) (*chart, error) {
	return map[string]func(figures) (*chart, error){
		"bench-throughput.svg": throughput,
		"bench-memory.svg":     memory,
		"bench-changes.svg":    changes,
		"bench-failover.svg":   failover,
	}
}

func throughput(f figures) (*chart, error) {
	c := &chart{
		Title:  "TCP throughput of the userspace engine, as a ratio",
		Note:   "Above 1: the engine is faster. Lines show the least and the greatest ratio of the pairs, where recorded.",
		Series: []string{"to wireguard-go", "to Tailscale's fork of it"},
		Line:   1,
	}
	for _, m := range []struct{ name, label string }{
		{"TCP, 1 stream", "1 stream"},
		{"TCP, 4 streams", "4 streams"},
		{"TCP of pods, 1 stream", "between pods, 1 stream"},
		{"TCP of pods, 4 streams", "between pods, 4 streams"},
		{"TCP, garbage", "beside a flood of garbage"},
		{"TCP, dead peer", "beside packets to a silent peer"},
		{"TCP and small UDP", "beside small datagrams"},
	} {
		g := group{Label: m.label}
		for i, with := range []string{"wireguard-go", "fork"} {
			r, err := f.get(m.name, "Gbit/s", with)
			if err != nil {
				return nil, err
			}
			if r.Ratio == nil {
				return nil, fmt.Errorf("%s beside %s has no ratio", m.name, with)
			}
			b := bar{Series: i, Value: *r.Ratio, Text: fmt.Sprintf("%.2f", *r.Ratio)}
			if len(r.Spread) == 2 {
				b.Low, b.High = r.Spread[0], r.Spread[1]
			}
			g.Bars = append(g.Bars, b)
		}
		c.Groups = append(c.Groups, g)
	}
	return c, nil
}

func memory(f figures) (*chart, error) {
	c := &chart{
		Title:  "Memory with 5,000 peers that don't answer, MB",
		Note:   "Agent and engine together, beside one wireguard-go with the same peers.",
		Series: []string{"agent and engine", "wireguard-go"},
	}
	for _, m := range []struct{ name, label string }{
		{"memory with them, after 5s", "5 s after the start"},
		{"memory, mean of 1m0s from then", "mean of the next minute"},
		{"memory, after 1m5s", "at the end of it"},
		{"memory, peak", "peak"},
	} {
		r, err := f.get(m.name, "MB", "wireguard-go")
		if err != nil {
			return nil, err
		}
		if r.Ours == nil || r.Beside == nil {
			return nil, fmt.Errorf("%s: figures of one side are missing", m.name)
		}
		c.Groups = append(c.Groups, group{Label: m.label, Bars: []bar{
			{Series: 0, Value: *r.Ours, Text: fmt.Sprintf("%.0f", *r.Ours)},
			{Series: 1, Value: *r.Beside, Text: fmt.Sprintf("%.0f", *r.Beside)},
		}})
	}
	return c, nil
}

// pair draws two results of ours, one for each series, in a unit of so many seconds.
func (c *chart) pair(f figures, label, first, second string, unit float64) error {
	g := group{Label: label}
	for i, name := range []string{first, second} {
		r, err := f.get(name, "s", "")
		if err != nil {
			return err
		}
		if r.Ours == nil {
			return fmt.Errorf("%s isn't a figure of ours", name)
		}
		value := *r.Ours / unit
		g.Bars = append(g.Bars, bar{Series: i, Value: value, Text: fmt.Sprintf("%.3g", value)})
	}
	c.Groups = append(c.Groups, g)
	return nil
}

func changes(f figures) (*chart, error) {
	c := &chart{
		Title:  "From a change in one cluster to its effect in the other, ms",
		Note:   "By changes per second, with the API servers on the same two cores.",
		Series: []string{"median", "99th percentile"},
	}
	var errs []error
	for _, m := range []struct{ name, label string }{
		{"API write sent to device", "node to WireGuard device, 20/s"},
		{"a block that moved, on the device", "moved block to device, 20/s"},
		{"a pod with a borrowed address, reached", "new pod to first answer, 20/s"},
		{"endpoint changes, 20/s", "endpoint to mirror, 20/s"},
		{"endpoint changes, 200/s", "endpoint to mirror, 200/s"},
		{"pod changes, 20/s", "pod to network set, 20/s"},
		{"pod changes, 50/s", "pod to network set, 50/s"},
		{"pod changes, 200/s", "pod to network set, 200/s"},
	} {
		errs = append(errs, c.pair(f, m.label, m.name+", p50", m.name+", p99", 1e-3))
	}
	return c, errors.Join(errs...)
}

func failover(f figures) (*chart, error) {
	c := &chart{
		Title:  "Failover of a global service: when the last request failed, s",
		Note:   "After what was unplugged. A client on a node with kube-proxy in each mode asks ten times a second.",
		Series: []string{"nftables", "iptables"},
	}
	var errs []error
	for _, m := range []struct{ name, label string }{
		{"a cluster, its API server included", "cluster and its API server"},
		{"its nodes alone", "nodes alone"},
		{"one direction", "packets in one direction"},
		{"a cluster, with 1,000 local nodes", "cluster, with 1,000 local nodes"},
	} {
		errs = append(errs, c.pair(f, m.label, m.name+", nftables: last failure after", m.name+", iptables: last failure after", 1))
	}
	return c, errors.Join(errs...)
}
