package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// patience bounds a step that waits for the mesh. It takes a second or two, and longer on a
// busy machine.
const patience = time.Minute

var steps = []step{
	{"Two clusters, aws and gcp, with two nodes each", (*show).prepare},
	{"semaphorectl join aws gcp", (*show).join},
	{"Nodes publish their keys and endpoints as annotations", (*show).annotations},
	{"Routes and devices exist", (*show).devices},
	{"HTTP from pods of gcp to pods of aws, and back", (*show).requests},
	{"Capture of the network between the nodes", (*show).encrypted},
	{"An agent is killed, its device deleted, its routes flushed", (*show).broken},
	{"The agent comes back", (*show).recovery},
	{"A pod of gcp requests a service of aws by name", (*show).names},
	{"A service that both clusters export has one name", (*show).export},
	{"Cluster aws fails, and a global service continues in gcp", (*show).dies},
	{"Pods of gcp become a network set of aws", (*show).sets},
}

func (s *show) annotations(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, a := range s.pair.Agents {
		remote := s.pair.Remotes(a.Node.Cluster)[0].Name
		err := testbed.Wait(ctx, "the annotations of "+a.Node.Name, func(ctx context.Context) error {
			node, err := a.Node.Object(ctx)
			if err != nil {
				return err
			}
			key, endpoint := node.Annotations[remote+".wireguard.semaphore.uw.io/pubKey"], node.Annotations[remote+".wireguard.semaphore.uw.io/endpoint"]
			if key == "" || endpoint == "" {
				return errors.New("not yet")
			}
			s.print("kubectl --context="+a.Node.Cluster.Name+" get node "+a.Node.Name+" -o yaml | grep semaphore",
				fmt.Sprintf("%s.wireguard.semaphore.uw.io/endpoint: %s\n%s.wireguard.semaphore.uw.io/pubKey: %s\n", remote, endpoint, remote, key))
			return nil
		})
		if err != nil {
			return "", err
		}
	}
	return "4 nodes published", nil
}

func (s *show) devices(ctx context.Context) (string, error) {
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := s.pair.WaitConnected(waiting); err != nil {
		return "", err
	}
	aws1 := s.pair.Agents[0]
	if _, err := s.sh(ctx, aws1.Node, "ip", "route", "show", "table", "all", "proto", "115"); err != nil {
		return "", err
	}
	if _, err := s.sh(ctx, aws1.Node, "wg", "show", "wireguard.gcp"); err != nil {
		return "", err
	}
	status, err := aws1.Status(ctx)
	if err != nil {
		return "", err
	}
	return status.Remote("gcp").Device.Backend + " WireGuard", nil
}

func (s *show) requests(ctx context.Context) (string, error) {
	n := 0
	for _, from := range s.pair.Pods {
		for _, to := range s.pair.Pods {
			if from.Node.Cluster == to.Node.Cluster {
				continue
			}
			for _, url := range to.VirtualURLs(programs.PodPort) {
				body, err := from.Get(ctx, url)
				if err != nil {
					return "", err
				}
				s.say("%s  GET %-32s  %s", from.Name, url, strings.TrimSpace(body))
				n++
			}
		}
	}
	return fmt.Sprintf("%d requests answered, IPv4 and IPv6", n), nil
}

func (s *show) encrypted(ctx context.Context) (string, error) {
	counts, err := s.capture.Counts(ctx)
	if err != nil {
		return "", err
	}
	s.say("captured on the link between the nodes: %s", counts)
	switch {
	case counts.Plaintext.Packets > 0:
		return "", fmt.Errorf("plaintext was seen: %s", s.capture.Plaintext()[0])
	case counts.Dropped > 0 || counts.WireGuard.Packets == 0:
		return "", fmt.Errorf("the capture is inconclusive: %s", counts)
	}
	return fmt.Sprintf("%d WireGuard packets, none in plaintext", counts.WireGuard.Packets), nil
}

func (s *show) broken(ctx context.Context) (string, error) {
	agent, from, to := s.pair.Agents[0], s.pair.Pods[0], s.pair.Pods[2]
	for _, fault := range []struct {
		name    string
		do      func() error
		reached bool // the pod, still
	}{
		{"kill -9 the agent of " + agent.Node.Name, func() error { agent.Kill(); return nil }, true},
		{"ip link delete wireguard.gcp", func() error { return agent.Node.DeleteLink("wireguard.gcp") }, false},
		{"ip route flush table all proto 115", func() error { _, err := agent.Node.FlushRoutes(); return err }, false},
	} {
		before, err := s.capture.Counts(ctx)
		if err != nil {
			return "", err
		}
		if err := fault.do(); err != nil {
			return "", fmt.Errorf("%s: %w", fault.name, err)
		}
		outcome, reached := s.send(ctx, from, to)
		after, err := s.capture.Counts(ctx)
		if err != nil {
			return "", err
		}
		leaked := after.Sub(before).Plaintext.Packets
		s.say("%-32s  200 packets from %s: %d in plaintext; connecting: %s", fault.name, from.Name, leaked, outcome)
		if leaked > 0 {
			return "", fmt.Errorf("%s: %d packets in plaintext, such as %s", fault.name, leaked, s.capture.Plaintext()[0])
		}
		if reached != fault.reached {
			return "", fmt.Errorf("%s: connecting: %s", fault.name, outcome)
		}
	}
	return "traffic continues without the agent; none of 600 packets leaked", nil
}

// connectLimit is the timeout for reaching a pod, also on a busy machine.
const connectLimit = 5 * time.Second

// send connects from a pod to another, prints the result, and sends 200
// datagrams. In this order, because the kernel limits how often it says that a
// destination is unreachable (icmp(7), icmp_ratelimit).
func (s *show) send(ctx context.Context, from, to *testbed.Pod) (outcome string, reached bool) {
	connecting, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	conn, err := from.Dial(connecting, "tcp", netip.AddrPortFrom(to.VirtualAddresses()[0], programs.PodPort).String())
	switch {
	case err == nil:
		_ = conn.Close()
		outcome, reached = "works", true
	case errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH):
		outcome = "fails at once, unreachable"
	default:
		outcome = "no answer"
	}
	for _, addr := range to.VirtualAddresses() {
		for range 100 {
			conn, err := from.Dial(ctx, "udp", netip.AddrPortFrom(addr, 9).String())
			if err != nil {
				continue // Unreachable, as expected.
			}
			_, _ = conn.Write([]byte("in plaintext"))
			_ = conn.Close()
		}
	}
	return outcome, reached
}

func (s *show) recovery(ctx context.Context) (string, error) {
	agent := s.pair.Agents[0]
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	start := time.Now()
	if err := agent.Start(); err != nil {
		return "", err
	}
	if err := s.pair.WaitConnected(waiting); err != nil {
		return "", err
	}
	took := time.Since(start).Round(time.Millisecond)
	s.say("all pods reach each other again %s after the start", took)
	if err := agent.Ready(ctx); err != nil {
		return "", err
	}
	counts, err := s.capture.Counts(ctx)
	if err != nil {
		return "", err
	}
	if counts.Plaintext.Packets > 0 || counts.Dropped > 0 {
		return "", fmt.Errorf("on the underlay: %s", counts)
	}
	return fmt.Sprintf("back after %s; %d WireGuard packets in total, 0 in plaintext", took, counts.WireGuard.Packets), nil
}
