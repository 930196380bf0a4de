package scenarios_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
)

// largePort is where a pod serves largeSize bytes.
const (
	largePort = 8080
	largeSize = 2 << 20
)

// Agents give their devices the MTU that fits the underlay and follow it: on one of
// 1400 pods exchange more than fits into a packet and nothing is fragmented. With an
// MTU that is too large they do too, in fragments, and status reports it.
func TestMTUFollowsTheUnderlay(t *testing.T) {
	t.Parallel()
	p := startPair(t, 1)
	large := strings.Repeat("0123456789abcdef", largeSize/16)
	for _, pod := range p.Pods {
		must(t, pod.Serve(t.Context(), largePort, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(large)) // the client notices
		})))
	}
	exchange := func() {
		t.Helper()
		for i, from := range p.Pods {
			for _, url := range p.Pods[1-i].URLs(largePort) {
				body, err := from.Get(within(t, time.Minute), url)
				must(t, err)
				if body != large {
					t.Errorf("%s: %d bytes arrived, which aren't those that were sent", url, len(body))
				}
			}
		}
	}
	underlay := func(mtu string) {
		t.Helper()
		for _, a := range p.Agents {
			_, err := a.Node.Run(t.Context(), "ip", "link", "set", "eth0", "mtu", mtu)
			must(t, err)
		}
	}

	waitMTU(t, p, 1420)
	underlay("1400")
	waitMTU(t, p, 1320)
	before := fragments(t, p)
	exchange()
	if after := fragments(t, p); after != before {
		t.Errorf("%d fragments before, %d after", before, after)
	}

	for i, a := range p.Agents {
		remote := p.Remotes(a.Node.Cluster)[0].Name
		must(t, a.Stop(within(t, time.Minute)))
		a.Env[programs.Variable(remote, "WG_MTU")] = "1420"
		must(t, a.Start())
		eventually(t, time.Minute, "status to report the MTU", func(ctx context.Context) error {
			return reportsMTU(ctx, p, a, fmt.Sprintf("exceeds the path to %s, which fragments: 1340 fits", p.Agents[1-i].Node.Addresses()[0]))
		})
	}
	waitMTU(t, p, 1420)
	for _, pod := range p.Pods {
		for _, family := range []string{"-4", "-6"} {
			// The kernel caches the earlier path MTU for ten minutes.
			_, err := pod.Run(t.Context(), "ip", family, "route", "flush", "cache")
			must(t, err)
		}
	}
	must(t, p.WaitConnected(within(t, time.Minute)))
	exchange()
	if after := fragments(t, p); after == before {
		t.Errorf("%d fragments, as before: the MTU isn't too large", after)
	}
	underlay("1500")
	for _, a := range p.Agents {
		eventually(t, time.Minute, "all to be well", func(ctx context.Context) error {
			return reportsMTU(ctx, p, a, "all is well")
		})
	}
}

// waitMTU waits until all devices have an MTU.
func waitMTU(t *testing.T, p *programs.Pair, mtu int) {
	t.Helper()
	for _, a := range p.Agents {
		remote := p.Remotes(a.Node.Cluster)[0].Name
		eventually(t, time.Minute, fmt.Sprintf("an MTU of %d on %s", mtu, a.Node.Name), func(ctx context.Context) error {
			out, err := a.Node.Run(ctx, "ip", "link", "show", "wireguard."+remote)
			if err == nil && !strings.Contains(out, fmt.Sprintf(" mtu %d ", mtu)) {
				err = errors.New(out)
			}
			return err
		})
	}
}

// reportsMTU is nil when "semaphore-wireguard status" on the agent's node says this.
func reportsMTU(ctx context.Context, p *programs.Pair, a *programs.Agent, what string) error {
	out, err := a.Node.Run(ctx, p.Binary, "status")
	if err != nil {
		out += err.Error() // its exit code is non-zero if there are faults
	}
	if !strings.Contains(out, what) {
		return errors.New(out)
	}
	return nil
}

// fragments returns how many fragments the nodes' kernels have made.
func fragments(t *testing.T, p *programs.Pair) (n int) {
	t.Helper()
	for _, a := range p.Agents {
		four, err := a.Node.Run(t.Context(), "grep", "^Ip:", "/proc/net/snmp")
		must(t, err)
		six, err := a.Node.Run(t.Context(), "grep", "Ip6FragCreates", "/proc/net/snmp6")
		must(t, err)
		names, values, _ := strings.Cut(strings.TrimSpace(four), "\n")
		at := slices.Index(strings.Fields(names), "FragCreates")
		for _, number := range []string{strings.Fields(values)[at], strings.Fields(six)[1]} {
			made, err := strconv.Atoi(number)
			must(t, err)
			n += made
		}
	}
	return n
}
