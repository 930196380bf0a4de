package scenarios_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// repair bounds the repair of what was broken from outside. The agent aims at
// a second; a busy machine gets more.
const repair = time.Minute

// TestMesh runs faults and changes on a mesh of two nodes in each of two clusters. Each part
// leaves it intact; a capture on the underlay counts plaintext during all of them.
func TestMesh(t *testing.T) {
	t.Parallel()
	p := startPair(t, 2)
	capture, err := p.Testbed.Capture()
	must(t, err)
	t.Cleanup(func() { must(t, capture.Close()) })

	aws1, gcp1 := p.Agents[0], p.Agents[2]
	awsPod, gcpPod := p.Pods[0], p.Pods[2]
	part := func(name string, f func(*testing.T)) {
		t.Run(name, func(t *testing.T) {
			f(t)
			must(t, p.WaitConnected(within(t, repair)))
			noPlaintext(t, capture)
		})
	}

	part("every node publishes its key and endpoint", func(t *testing.T) {
		for _, a := range p.Agents {
			other := p.Remotes(a.Node.Cluster)[0].Name
			node, err := a.Node.Object(t.Context())
			must(t, err)
			status, err := a.Status(t.Context())
			must(t, err)
			want := netip.AddrPortFrom(a.Node.Addresses()[0], 51820).String()
			if got := node.Annotations[other+".wireguard.semaphore.uw.io/endpoint"]; got != want {
				t.Errorf("%s: endpoint %q, want %q", a.Node.Name, got, want)
			}
			if got := node.Annotations[other+".wireguard.semaphore.uw.io/pubKey"]; got == "" || got != status.Remote(other).Device.PublicKey {
				t.Errorf("%s: public key %q, the device has %q", a.Node.Name, got, status.Remote(other).Device.PublicKey)
			}
		}
	})

	part("routes, devices and health are what an operator expects", func(t *testing.T) {
		out, err := aws1.Node.Run(t.Context(), "ip", "route", "show", "table", "115115")
		must(t, err)
		for _, want := range []string{"10.4.0.0/16 dev wireguard.gcp proto 115 scope link src 10.2.1.1", "unreachable 10.4.0.0/16 proto 115 metric 4294967295"} {
			if !strings.Contains(out, want) {
				t.Errorf("no route %q in\n%s", want, out)
			}
		}
		out, err = aws1.Node.Run(t.Context(), "wg", "show", "wireguard.gcp")
		must(t, err)
		for _, want := range []string{"private key: (hidden)", "listening port: 51820", "endpoint: 10.66.2.1:51820", "allowed ips: 10.4.1.0/24, fd00:10:4:1::/64", "persistent keepalive: every 25 seconds"} {
			if !strings.Contains(out, want) {
				t.Errorf("wg show has no %q:\n%s", want, out)
			}
		}
		for _, a := range p.Agents {
			must(t, a.Ready(t.Context()))
			must(t, a.Healthy(t.Context()))
		}
		// Pods reach each other before every peer has answered.
		eventually(t, repair, "metrics of a mesh in order", func(ctx context.Context) error {
			metrics, err := aws1.Metrics(ctx)
			if err != nil {
				return err
			}
			for _, want := range []string{
				`semaphore_wg_peers{cluster="gcp",device="wireguard.gcp",health="up"} 2`,
				`semaphore_wg_device_up{cluster="gcp",device="wireguard.gcp"} 1`,
				`semaphore_wg_remote_synced{cluster="gcp",kind="nodes"} 1`,
			} {
				if !strings.Contains(metrics, want) {
					return fmt.Errorf("no %s", want)
				}
			}
			return nil
		})
	})

	part("processes of the host reach remote pods", func(t *testing.T) {
		must(t, programs.WaitReach(within(t, repair), aws1.Node, gcpPod))
		must(t, programs.WaitReach(within(t, repair), gcp1.Node, awsPod))
	})

	part("a restart goes unnoticed", func(t *testing.T) {
		for _, how := range []string{"kill -9", "SIGTERM"} {
			t.Run(how, func(t *testing.T) { testRestart(t, aws1, awsPod, gcpPod, how) })
		}
		t.Run("the local API server is down", func(t *testing.T) {
			must(t, p.AWS.CutAPI())
			defer func() { must(t, p.AWS.RestoreAPI()) }()
			testRestart(t, aws1, awsPod, gcpPod, "kill -9")
		})
		t.Run("its port is taken", func(t *testing.T) { testRestartWithoutPort(t, aws1, awsPod, gcpPod) })
	})

	part("flushed routes come back", func(t *testing.T) {
		n, err := aws1.Node.FlushRoutes()
		must(t, err)
		if n != 4 {
			t.Errorf("flushed %d routes, want a device route and a guard in each family", n)
		}
		eventually(t, repair, "four routes", func(ctx context.Context) error { return hasRoutes(ctx, aws1.Node, 4) })
	})

	part("foreign routes take nothing", func(t *testing.T) {
		via := gcp1.Node.Addresses()[0].String()
		for _, to := range []string{"10.4.1.0/24", "10.4.0.0/16"} {
			_, err := aws1.Node.Run(t.Context(), "ip", "route", "add", to, "via", via, "proto", "bird", "metric", "50")
			must(t, err)
		}
		must(t, programs.WaitReach(within(t, repair), awsPod, gcpPod))
		_, err := aws1.Node.Run(t.Context(), "ip", "route", "flush", "proto", "bird")
		must(t, err)
	})

	part("deleted policy rules come back", func(t *testing.T) {
		_, err := aws1.Node.Run(t.Context(), "ip", "rule", "del", "priority", "400")
		must(t, err)
		eventually(t, repair, "the rule", func(ctx context.Context) error {
			out, err := aws1.Node.Run(ctx, "ip", "rule", "show")
			if err == nil && !strings.Contains(out, "from all to 10.4.0.0/16 lookup 115115") {
				err = errors.New(out)
			}
			return err
		})
	})

	part("a deleted device comes back", func(t *testing.T) {
		must(t, aws1.Node.DeleteLink("wireguard.gcp"))
		must(t, programs.WaitReach(within(t, repair), awsPod, gcpPod))
		if body, err := aws1.Metrics(t.Context()); err != nil || !strings.Contains(body, "semaphore_wg_device_up") {
			t.Errorf("metrics: %v", err)
		}
	})

	part("a device that was set down comes up", func(t *testing.T) {
		must(t, aws1.Node.SetLinkDown("wireguard.gcp"))
		must(t, programs.WaitReach(within(t, repair), awsPod, gcpPod))
	})

	part("annotations that were wiped or changed are put back", func(t *testing.T) {
		before, err := aws1.Node.Object(t.Context())
		must(t, err)
		must(t, aws1.Node.Patch(t.Context(), `{"metadata":{"annotations":{
			"gcp.wireguard.semaphore.uw.io/pubKey":null,
			"gcp.wireguard.semaphore.uw.io/endpoint":"203.0.113.7:1"}}}`))
		eventually(t, repair, "the annotations", func(ctx context.Context) error {
			return hasAnnotations(ctx, aws1.Node, before.Annotations)
		})
	})

	part("a recreated node object gets its annotations", func(t *testing.T) {
		before, err := aws1.Node.Object(t.Context())
		must(t, err)
		nodes := p.AWS.Client().CoreV1().Nodes()
		must(t, nodes.Delete(t.Context(), before.Name, metav1.DeleteOptions{}))
		waitPeers(t, gcp1, "aws", "aws-2")
		again := before.DeepCopy()
		again.ResourceVersion, again.UID, again.ManagedFields, again.Annotations = "", "", nil, nil
		_, err = nodes.Create(t.Context(), again, metav1.CreateOptions{})
		must(t, err)
		// A patch: the agent may have written the annotations already.
		status, err := json.Marshal(map[string]any{"status": map[string]any{"addresses": before.Status.Addresses}})
		must(t, err)
		must(t, aws1.Node.Patch(t.Context(), string(status), "status"))
		eventually(t, repair, "the annotations", func(ctx context.Context) error {
			return hasAnnotations(ctx, aws1.Node, before.Annotations)
		})
		waitPeers(t, gcp1, "aws", "aws-1", "aws-2")
	})

	part("a peer goes with its annotations", func(t *testing.T) {
		stopped := p.Agents[1]
		must(t, stopped.Stop(within(t, repair)))
		must(t, stopped.Node.Patch(t.Context(), `{"metadata":{"annotations":{
			"gcp.wireguard.semaphore.uw.io/pubKey":null,"gcp.wireguard.semaphore.uw.io/endpoint":null}}}`))
		waitPeers(t, gcp1, "aws", "aws-1")
		must(t, stopped.Start())
		waitPeers(t, gcp1, "aws", "aws-1", "aws-2")
	})

	part("a node's new address is followed", func(t *testing.T) {
		old := aws1.Node.Addresses()
		must(t, aws1.Node.SetAddresses(t.Context(), netip.MustParseAddr("10.66.1.200"), netip.MustParseAddr("fd00:66::1:200")))
		eventually(t, repair, "the new endpoint", func(ctx context.Context) error {
			return hasEndpoint(ctx, gcp1, "aws", "aws-1", "10.66.1.200:51820")
		})
		must(t, p.WaitConnected(within(t, repair)))
		must(t, aws1.Node.SetAddresses(t.Context(), old...))
	})

	part("a node whose first address is IPv6", func(t *testing.T) {
		old := aws1.Node.Addresses()
		// Otherwise it roams back to IPv4 with the node's next packet.
		nft := func(command string) {
			_, err := aws1.Node.Run(t.Context(), "nft", command)
			must(t, err)
		}
		nft("table ip only6 { chain output { type filter hook output priority 0; udp dport 51820 drop; }; }")
		must(t, aws1.Node.SetAddresses(t.Context(), old[1], old[0]))
		eventually(t, repair, "the IPv6 endpoint", func(ctx context.Context) error {
			return hasEndpoint(ctx, gcp1, "aws", "aws-1", "[fd00:66::1:1]:51820")
		})
		must(t, programs.WaitReach(within(t, repair), awsPod, gcpPod))
		nft("delete table ip only6")
		must(t, aws1.Node.SetAddresses(t.Context(), old...))
	})

	part("an underlay that drops packets for a while", func(t *testing.T) {
		must(t, p.Testbed.Drop(aws1.Node, gcp1.Node))
		defer func() { must(t, p.Testbed.Restore(aws1.Node, gcp1.Node)) }()
		must(t, programs.Reach(within(t, repair), awsPod, p.Pods[3]))
	})

	part("a node behind address translation", func(t *testing.T) { testTranslation(t, p) })

	part("a node that is reached elsewhere than where it is", func(t *testing.T) { testForwarding(t, p) })

	part("a node that reboots", func(t *testing.T) {
		status, err := aws1.Status(t.Context())
		must(t, err)
		key := status.Remote("gcp").Device.PublicKey
		must(t, aws1.Node.Reboot())
		must(t, awsPod.Serve(t.Context(), programs.PodPort, nil))
		delete(aws1.Env, "SEMAPHORE_WG_ENGINE") // The agent starts an engine, which -cleanup ends.
		must(t, aws1.Start())
		// Until the agent has run once after a boot nothing guards the node's
		// pods: docs/install.md says so.
		eventually(t, repair, "the agent to be ready", aws1.Ready)
		must(t, p.WaitConnected(within(t, time.Minute)))
		status, err = aws1.Status(t.Context())
		must(t, err)
		if got := status.Remote("gcp").Device.PublicKey; got != key {
			t.Errorf("the key changed from %s to %s", key, got)
		}
	})

	t.Run("private keys stay on their nodes", func(t *testing.T) { testPrivateKeysStay(t, p.Agents...) })

	t.Run("-cleanup leaves nothing", func(t *testing.T) { testCleanup(t, aws1) })
}

// noPlaintext fails if a packet from or to a pod left a node outside of a tunnel since the
// capture began, or if the capture is incomplete.
func noPlaintext(t *testing.T, capture *testbed.Capture) {
	t.Helper()
	counts, err := capture.Counts(t.Context())
	must(t, err)
	if counts.Plaintext.Packets > 0 || counts.Dropped > 0 || counts.WireGuard.Packets == 0 {
		samples := capture.Plaintext()
		t.Errorf("on the underlay: %s; plaintext: %s", counts, strings.Join(samples[:min(3, len(samples))], "; "))
	}
}

// testCleanup stops an agent, runs its cleanup and checks that nothing remains.
func testCleanup(t *testing.T, a *programs.Agent) {
	must(t, a.Stop(within(t, repair)))
	must(t, a.Cleanup(within(t, repair)))
	node := a.Node
	must(t, hasRoutes(t.Context(), node, 0))
	for _, family := range []string{"-4", "-6"} {
		if out, err := node.Run(t.Context(), "ip", family, "rule", "show"); err != nil || strings.Contains(out, "115") {
			t.Errorf("rules are left: %v\n%s", err, out)
		}
	}
	if out, err := node.Run(t.Context(), "ip", "link", "show"); err != nil || strings.Contains(out, "wireguard.") {
		t.Errorf("a device is left: %v\n%s", err, out)
	}
	if out, err := node.Run(t.Context(), "ls", "-A", "/var/run/wireguard"); err != nil || strings.TrimSpace(out) != "" {
		t.Errorf("a socket is left: %v\n%s", err, out)
	}
	if out, err := node.Run(t.Context(), "nft", "list", "tables"); err != nil || strings.Contains(out, "semaphore") {
		t.Errorf("a table is left: %v\n%s", err, out)
	}
	object, err := node.Object(t.Context())
	must(t, err)
	for k := range object.Annotations {
		if strings.Contains(k, "semaphore") {
			t.Errorf("the annotation %s is left", k)
		}
	}
}
