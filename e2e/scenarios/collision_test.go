package scenarios_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
)

// TestSubnetsAgainstThisNode gives an agent a second remote whose pod subnets contain, by
// mistake, addresses that the node depends on. The node keeps its network, the other remote
// its tunnel, and nothing of an earlier configuration remains.
func TestSubnetsAgainstThisNode(t *testing.T) {
	t.Parallel()
	p := startPair(t, 1)
	agent, pod, abroad := p.Agents[1], p.Pods[1], p.Pods[0]
	node := agent.Node
	agent.Env["SEMAPHORE_REMOTES"] += ",bad"
	agent.Env["SEMAPHORE_REMOVAL_GRACE"] = "0"
	for _, name := range []string{"API_URL", "CA_FILE", "TOKEN_FILE"} {
		agent.Env[programs.Variable("bad", name)] = agent.Env[programs.Variable("aws", name)]
	}
	restart := func(t *testing.T, subnets string) {
		must(t, agent.Stop(within(t, repair)))
		agent.Env[programs.Variable("bad", "POD_SUBNETS")] = subnets
		must(t, agent.Start())
	}
	// traces lists our rules, routes and devices for a subnet.
	traces := func(ctx context.Context, subnet string) (found []string, err error) {
		for _, command := range [][]string{
			{"ip", "-4", "rule"}, {"ip", "-6", "rule"}, {"ip", "-4", "route", "show", "table", "all"},
			{"ip", "-6", "route", "show", "table", "all"}, {"nft", "list", "table", "inet", programs.WireGuard}, {"ip", "-br", "link"},
		} {
			out, err := node.Run(ctx, command[0], command[1:]...)
			if err != nil {
				return nil, err
			}
			for line := range strings.Lines(out) {
				if strings.HasPrefix(strings.TrimSpace(line), `iifname "wireguard.bad" counter`) {
					continue // Nothing arrives through the device of a refused remote, should there be one.
				}
				if strings.Contains(line, subnet) && !strings.Contains(line, "kernel") || strings.Contains(line, "wireguard.bad") {
					found = append(found, strings.TrimSpace(line))
				}
			}
		}
		return found, nil
	}
	for name, tt := range map[string]struct{ subnet, why string }{
		"pods of this node":      {"10.4.0.0/16", "overlaps " + node.PodCIDRs[0].String() + ", the pods of this node"},
		"IPv6 pods of this node": {"fd00:10:4::/48", "overlaps " + node.PodCIDRs[1].String() + ", the pods of this node"},
		"InternalIP":             {netip.PrefixFrom(node.Addresses()[0], 28).Masked().String(), "contains " + node.Addresses()[0].String() + ", the InternalIP of this node"},
		"API server":             {"10.66.0.0/24", "contains 10.66.0.12, the API server of this cluster"},
		"services":               {"10.104.0.0/14", "overlaps 10.104.0.0/16, the services of this cluster"},
	} {
		t.Run(name, func(t *testing.T) {
			restart(t, "10.200.0.0/16")
			eventually(t, repair, "the earlier configuration", func(ctx context.Context) error {
				found, err := traces(ctx, "10.200.0.0/16")
				if err == nil && len(found) < 8 { // two rules, two routes, three of the packet filter, device
					err = fmt.Errorf("found only %q", found)
				}
				return err
			})
			restart(t, tt.subnet)
			eventually(t, time.Minute, "the refusal", func(ctx context.Context) error {
				status, err := agent.Status(ctx)
				if err != nil {
					return err
				}
				want := "SEMAPHORE_REMOTE_BAD_POD_SUBNETS: " + tt.subnet + " " + tt.why + ": list only the pod subnets of bad"
				if refused := status.Remote("bad").Refused; refused != want {
					return fmt.Errorf("refused %q, want %q", refused, want)
				}
				for _, subnet := range []string{tt.subnet, "10.200.0.0/16"} {
					if found, err := traces(ctx, subnet); err != nil || len(found) > 0 {
						return fmt.Errorf("left of %s: %q, %w", subnet, found, err)
					}
				}
				return nil
			})
			// Its own pod and its API server, and the pod abroad.
			must(t, node.Ping(within(t, repair), pod.Addresses[0]))
			must(t, node.Ping(within(t, repair), pod.Addresses[1]))
			must(t, programs.WaitReach(within(t, time.Minute), pod, abroad))
			eventually(t, repair, "contact with the API servers", func(ctx context.Context) error {
				status, err := agent.Status(ctx)
				if err == nil && len(status.Of(statuspage.Failing)) > 0 {
					err = fmt.Errorf("failing: %v", status.Conditions)
				}
				return err
			})
		})
	}

	t.Run("a subnet beside it that isn't against this node stays guarded", func(t *testing.T) {
		restart(t, "10.104.0.0/14,10.201.0.0/16")
		eventually(t, time.Minute, "rules and guards", func(ctx context.Context) error {
			status, err := agent.Status(ctx)
			if err != nil {
				return err
			}
			found, err := traces(ctx, "10.201.0.0/16")
			if err == nil && (status.Remote("bad").Refused == "" || len(found) != 6) { // two rules, two guards, two of the exit filter
				err = fmt.Errorf("refused %q, found %q", status.Remote("bad").Refused, found)
			}
			return err
		})
		must(t, programs.WaitReach(within(t, time.Minute), pod, abroad))
	})
}
