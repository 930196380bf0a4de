package scenarios_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/routes"
)

// TestNoPlaintextBehindForeignRules sends packets continuously from a pod and from the host
// while policy rules of another program come first and lead them to the remote's node past
// the tunnel, and counts plaintext packets on the underlay.
func TestNoPlaintextBehindForeignRules(t *testing.T) {
	t.Parallel()
	p := startPair(t, 1)
	agent, from, to := p.Agents[0], p.Pods[0], p.Pods[1]
	node := agent.Node
	run := func(t *testing.T, script string) {
		t.Helper()
		if out, err := node.Run(t.Context(), "sh", "-ec", script); err != nil {
			t.Fatalf("%s: %v\n%s", script, err, out)
		}
	}
	// expand writes a command for each family.
	expand := func(command string) string {
		var all []string
		for i, subnet := range p.GCP.PodSubnets {
			family, part := "-4", 24
			if subnet.Addr().Is6() {
				family, part = "-6", 64
			}
			specific, err := to.Addresses[i].Prefix(part)
			must(t, err)
			all = append(all, strings.NewReplacer("FAMILY", family, "SUBNET", subnet.String(), "PART", specific.String(),
				"POD", from.Addresses[i].String(), "GATEWAY", p.Agents[1].Node.Addresses()[i].String()).Replace(command))
		}
		return strings.Join(all, "; ")
	}
	run(t, expand("ip FAMILY route add SUBNET via GATEWAY table 11"))
	capture, err := p.Testbed.Capture()
	must(t, err)
	t.Cleanup(func() { must(t, capture.Close()) })
	ofPod, ofHost := sendWithoutPause(t, from, to), sendWithoutPause(t, node, to)

	stopped := func(ctx context.Context) (uint64, error) {
		status, err := agent.Status(ctx)
		if err != nil {
			return 0, err
		}
		if n := status.Remote("gcp").Stopped; n != nil {
			return *n, nil
		}
		return 0, nil
	}
	const mark = `table inet others {
		chain pre { type filter hook prerouting priority mangle; iifname cni0 udp dport 9 meta mark set 7; }
		chain out { type route hook output priority mangle; udp dport 9 meta mark set 7; }
	}`
	for _, tt := range []struct {
		name        string
		add, remove string
		refuses     bool // the rule itself drops the packets
		needs       string
	}{
		{name: "iif", add: "ip FAMILY rule add pref 10 iif cni0 lookup 11"},
		{name: "from a pod", add: "ip FAMILY rule add pref 111 from POD lookup 11"},
		{name: "of the host", add: "ip FAMILY rule add pref 10 iif lo lookup 11"},
		{name: "to a part", add: "ip FAMILY rule add pref 10 to PART lookup 11"},
		{name: "uidrange", add: "ip FAMILY rule add pref 10 uidrange 0-0 lookup 11"},
		{name: "ipproto", add: "ip FAMILY rule add pref 10 ipproto udp lookup 11"},
		{name: "dport", add: "ip FAMILY rule add pref 10 ipproto udp dport 9 lookup 11"},
		{name: "not", add: "ip FAMILY rule add pref 10 not from GATEWAY lookup 11"},
		{name: "suppress_prefixlength", add: "ip FAMILY rule add pref 10 lookup 11 suppress_prefixlength 7"},
		{name: "fwmark", add: "ip FAMILY rule add pref 10 fwmark 7 lookup 11; nft '" + mark + "'",
			remove: "ip FAMILY rule del pref 10; nft destroy table inet others || nft delete table inet others || true"},
		{name: "main", add: "ip FAMILY route add PART via GATEWAY; ip FAMILY rule add pref 10 lookup main",
			remove: "ip FAMILY rule del pref 10; ip FAMILY route del PART via GATEWAY"},
		{name: "prohibit", refuses: true, add: "ip FAMILY rule add pref 10 to SUBNET prohibit"},
		{name: "VRF", needs: "ip link add vrf0 type vrf table 11",
			add:    "ip link set vrf0 up; ip link set cni0 master vrf0; ip FAMILY rule add pref 10 l3mdev",
			remove: "ip link set cni0 nomaster; ip FAMILY rule del pref 10"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.needs != "" {
				if out, err := node.Run(t.Context(), "sh", "-ec", tt.needs); err != nil {
					t.Skipf("NOT TESTED: this kernel lacks what %q needs: %s", tt.needs, out)
				}
			}
			before, err := stopped(t.Context())
			must(t, err)
			if tt.remove == "" {
				tt.remove = "ip FAMILY rule del pref " + strings.Fields(tt.add)[5]
			}
			defer run(t, expand(tt.remove))
			run(t, expand(tt.add))
			ofPod.wait(t, 200)
			ofHost.wait(t, 200)
			noPlaintext(t, capture)
			after, err := stopped(t.Context())
			must(t, err)
			t.Logf("%d packets stopped, 0 left in plaintext", after-before)
			if (after-before < 100) != tt.refuses {
				t.Errorf("%d packets stopped: the rule refuses them itself: %v", after-before, tt.refuses)
			}
		})
		must(t, programs.WaitReach(within(t, repair), from, to))
	}

	t.Run("without the agent", func(t *testing.T) {
		agent.Kill()
		run(t, expand("ip FAMILY rule add pref 10 lookup 11"))
		ofPod.wait(t, 200)
		ofHost.wait(t, 200)
		noPlaintext(t, capture)
		must(t, node.DeleteLink("wireguard.gcp"))
		ofPod.wait(t, 200)
		ofHost.wait(t, 200)
		noPlaintext(t, capture)
		must(t, agent.Start())
		ofPod.wait(t, 200)
		noPlaintext(t, capture)
		eventually(t, repair, "packets to be counted", func(ctx context.Context) error {
			n, err := stopped(ctx)
			if err == nil && n == 0 {
				err = errors.New("none is")
			}
			return err
		})
	})

	t.Run("the capture would have seen it", func(t *testing.T) {
		agent.Kill()
		run(t, "nft delete table inet "+routes.FilterTable)
		ofPod.wait(t, 50)
		ofHost.wait(t, 50)
		counts, err := capture.Counts(t.Context())
		must(t, err)
		if counts.Plaintext.Packets < 100 {
			t.Errorf("without the filter: %s", counts)
		}
		t.Logf("without the filter: %s", counts)
	})
}
