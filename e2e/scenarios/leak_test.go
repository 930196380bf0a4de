package scenarios_test

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// TestNoPlaintext sends packets from a pod continuously while devices, routes and rules for
// the tunnel are removed, and counts plaintext packets on the underlay.
func TestNoPlaintext(t *testing.T) {
	t.Parallel()
	p := startPair(t, 1)
	agent, from, to := p.Agents[0], p.Pods[0], p.Pods[1]
	capture, err := p.Testbed.Capture()
	must(t, err)
	t.Cleanup(func() { must(t, capture.Close()) })
	// Foreign routes that would take the packets, all of them and a part.
	for _, gateway := range []struct{ family, via string }{{"-4", p.Agents[1].Node.Addresses()[0].String()}, {"-6", p.Agents[1].Node.Addresses()[1].String()}} {
		for _, dst := range foreignTo(gateway.family, to) {
			_, err := agent.Node.Run(t.Context(), "ip", gateway.family, "route", "add", dst, "via", gateway.via, "proto", "bird", "metric", "50")
			must(t, err)
		}
	}
	sent := sendWithoutPause(t, from, to)

	flush := func(t *testing.T) {
		_, err := agent.Node.FlushRoutes()
		must(t, err)
	}
	flushRules := func(t *testing.T) {
		for _, family := range []string{"-4", "-6"} {
			_, err := agent.Node.Run(t.Context(), "sh", "-ec", "while ip "+family+" rule del proto 115 2>/dev/null; do :; done")
			must(t, err)
		}
	}
	deleteDevice := func(t *testing.T) { must(t, agent.Node.DeleteLink("wireguard.gcp")) }
	for _, tt := range []struct {
		name   string
		away   bool // the agent is
		breaks []func(*testing.T)
	}{
		{"device deleted", false, []func(*testing.T){deleteDevice}},
		{"routes flushed", false, []func(*testing.T){flush}},
		{"device deleted, routes flushed", false, []func(*testing.T){deleteDevice, flush}},
		{"rules flushed", false, []func(*testing.T){flushRules}},
		{"device deleted, routes and rules flushed", false, []func(*testing.T){deleteDevice, flush, flushRules}},
		{"agent away", true, nil},
		{"agent away, device deleted", true, []func(*testing.T){deleteDevice}},
		{"agent away, routes flushed", true, []func(*testing.T){flush}},
		{"agent away, device deleted, routes flushed", true, []func(*testing.T){deleteDevice, flush}},
		{"agent away, rules flushed", true, []func(*testing.T){flushRules}},
		{"agent away, device deleted, routes and rules flushed", true, []func(*testing.T){deleteDevice, flush, flushRules}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.away {
				agent.Kill()
			}
			// Often, because a running agent repairs within a short time.
			for range 5 {
				for _, f := range tt.breaks {
					f(t)
				}
				sent.wait(t, 200)
				if tt.away {
					break
				}
				eventually(t, repair, "repair", func(ctx context.Context) error { return hasRoutes(ctx, agent.Node, 4) })
				must(t, programs.WaitReach(within(t, repair), from, to))
			}
			if tt.away {
				must(t, agent.Start())
			}
			must(t, programs.WaitReach(within(t, repair), from, to))
			noPlaintext(t, capture)
		})
	}

	t.Run("the capture would have seen it", func(t *testing.T) {
		must(t, agent.Stop(within(t, repair)))
		must(t, agent.Cleanup(within(t, repair)))
		sent.wait(t, 50)
		counts, err := capture.Counts(t.Context())
		must(t, err)
		if counts.Plaintext.Packets < 50 {
			t.Errorf("without any agent: %s", counts)
		}
	})
}

// foreignTo returns what foreign routes may lead to: a cluster's pod subnet of
// a family, and the part of it that a pod is in.
func foreignTo(family string, pod *testbed.Pod) (to []string) {
	for _, addr := range pod.Addresses {
		if addr.Is4() != (family == "-4") {
			continue
		}
		part := 24
		if addr.Is6() {
			part = 64
		}
		to = append(to, netip.PrefixFrom(addr, part).Masked().String())
		for _, subnet := range pod.Node.Cluster.PodSubnets {
			if subnet.Contains(addr) {
				to = append(to, subnet.String())
			}
		}
	}
	return to
}

// flow counts the packets of an endless stream.
type flow struct{ count chan int }

// wait waits until so many more packets were given to the kernel.
func (f flow) wait(t *testing.T, packets int) {
	t.Helper()
	ctx := within(t, repair)
	for target := <-f.count + packets; ; {
		select {
		case n := <-f.count:
			if n >= target {
				return
			}
		case <-ctx.Done():
			t.Fatalf("no packets are sent: %v", context.Cause(ctx))
		}
	}
}

// sendWithoutPause sends a datagram over each family every millisecond from a pod or node to
// a pod of another cluster until the test ends, and ignores errors.
func sendWithoutPause(t *testing.T, from interface {
	Dial(ctx context.Context, network, address string) (net.Conn, error)
}, to *testbed.Pod) flow {
	t.Helper()
	f := flow{count: make(chan int)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	t.Cleanup(func() {
		cancel()
		<-done
	})
	go func() {
		defer close(done)
		ticker := time.NewTicker(time.Millisecond)
		defer ticker.Stop()
		for n := 0; ; {
			select {
			case <-ctx.Done():
				return
			case f.count <- n:
			case <-ticker.C:
				for _, addr := range to.VirtualAddresses() {
					// A new socket each time, so that a pending error of the
					// socket doesn't affect the next packet.
					conn, err := from.Dial(ctx, "udp", netip.AddrPortFrom(addr, 9).String())
					if err != nil {
						continue
					}
					_, _ = conn.Write([]byte("in plaintext"))
					_ = conn.Close()
				}
				n++
			}
		}
	}()
	return f
}
