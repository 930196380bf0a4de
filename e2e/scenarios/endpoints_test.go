package scenarios_test

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/peers"
)

// What a node of gcp publishes for aws.
const gcpKey, gcpEndpoint = "aws.wireguard.semaphore.uw.io/pubKey", "aws.wireguard.semaphore.uw.io/endpoint"

// TestHostileEndpoints lets a remote publish foreign endpoints: addresses of this cluster's
// nodes, pods and services, and others. No packet is sent there, counted where it would leave
// the node; the remote's other nodes stay peers.
func TestHostileEndpoints(t *testing.T) {
	t.Parallel()
	p := startPair(t, 2)
	agent, other := p.Agents[0], p.Agents[1].Node
	external := netip.MustParseAddr("203.0.113.7")
	must(t, other.Patch(t.Context(), `{"status":{"addresses":[
		{"type":"InternalIP","address":"`+other.Addresses()[0].String()+`"},
		{"type":"InternalIP","address":"`+other.Addresses()[1].String()+`"},
		{"type":"ExternalIP","address":"`+external.String()+`"}]}}`, "status"))
	service, err := p.AWS.Client().CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	must(t, err)
	must(t, agent.Stop(within(t, repair)))
	agent.Env["SEMAPHORE_LOCAL_SUBNETS"] = "192.0.2.0/25, 2001:db8:2::/48"
	must(t, agent.Start())
	must(t, p.WaitConnected(within(t, time.Minute)))

	forbidden := map[string]netip.Addr{
		"a node's address":             other.Addresses()[0],
		"its address of IPv6":          other.Addresses()[1],
		"its external address":         external,
		"a pod of this node":           p.Pods[0].Addresses[0],
		"a pod of another node":        p.Pods[1].Addresses[0],
		"its address of IPv6 there":    p.Pods[1].Addresses[1],
		"a service":                    netip.MustParseAddr(service.Spec.ClusterIP),
		"any address for services":     p.AWS.ServiceSubnets[0].Addr().Next().Next(),
		"one of IPv6":                  p.AWS.ServiceSubnets[1].Addr().Next().Next(),
		"what SEMAPHORE_LOCAL says":    netip.MustParseAddr("192.0.2.5"),
		"what it says of IPv6":         netip.MustParseAddr("2001:db8:2::5"),
		"all that are on a link of us": netip.MustParseAddr("10.66.255.255"),
	}
	names := slices.Sorted(maps.Keys(forbidden))
	// Addresses that the agent knows without any API server.
	evident := "hostile-" + strconv.Itoa(slices.Index(names, "all that are on a link of us"))
	// Allowed without node subnets.
	stranger := netip.MustParseAddr("198.51.100.9")
	watched := append(slices.Collect(maps.Values(forbidden)), stranger, p.Agents[2].Node.Addresses()[0])
	sent := countSent(t, agent.Node, watched...)

	good := []string{"gcp-1", "gcp-2"}
	publishStrangers(t, p.GCP, "hostile", len(names), func(i int) netip.AddrPort { return netip.AddrPortFrom(forbidden[names[i]], 51820) })
	publishStrangers(t, p.GCP, "stranger", 1, func(int) netip.AddrPort { return netip.AddrPortFrom(stranger, 51820) })
	waitPeers(t, agent, "gcp", append(good, "stranger-0")...)
	// Once a packet to the stranger was sent, those to the others would have been.
	eventually(t, repair, "a packet to the stranger", func(ctx context.Context) error {
		if sent(ctx)[stranger] == 0 {
			return errors.New("none yet")
		}
		return nil
	})
	silent := func(t *testing.T) {
		t.Helper()
		must(t, programs.WaitReach(within(t, repair), p.Pods[0], p.Pods[2]))
		counts := sent(t.Context())
		for name, addr := range forbidden {
			if counts[addr] > 0 {
				t.Errorf("%s, %s: %d packets went there", name, addr, counts[addr])
			}
		}
		if counts[p.Agents[2].Node.Addresses()[0]] == 0 {
			t.Error("nothing is counted")
		}
	}
	silent(t)
	status, err := agent.Status(t.Context())
	must(t, err)
	if n := len(status.Remote("gcp").Rejected); n != len(names) {
		t.Errorf("%d nodes are rejected, want %d", n, len(names))
	}
	for _, r := range status.Remote("gcp").Rejected {
		t.Logf("%s: %s", r.Node, r.Detail)
		if r.Reason != "endpoint" {
			t.Errorf("%s is rejected for %s", r.Node, r.Reason)
		}
	}
	must(t, p.WaitConnected(within(t, repair)))

	t.Run("a node of ours gets an address that was accepted", func(t *testing.T) {
		object := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "aws-new"},
			Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: stranger.String()}}},
		}
		nodes := p.AWS.Client().CoreV1().Nodes()
		_, err := nodes.Create(t.Context(), object, metav1.CreateOptions{})
		must(t, err)
		// The peer is retained: a node's own annotations remove no peer. No other peer gets
		// this endpoint.
		waitDisputed(t, agent, "gcp", map[string]string{"stranger-0": object.Name})
		publishStrangers(t, p.GCP, "newcomer", 1, func(int) netip.AddrPort { return netip.AddrPortFrom(stranger, 51821) })
		waitRejected(t, agent, "gcp", "newcomer-0")
		waitPeers(t, agent, "gcp", append(good, "stranger-0")...)
		must(t, nodes.Delete(t.Context(), object.Name, metav1.DeleteOptions{}))
		waitDisputed(t, agent, "gcp", nil)
		must(t, p.GCP.Client().CoreV1().Nodes().Delete(t.Context(), "newcomer-0", metav1.DeleteOptions{}))
		waitPeers(t, agent, "gcp", append(good, "stranger-0")...)
	})

	t.Run("a node of ours claims where the remote's nodes are", func(t *testing.T) {
		was := other.Addresses()
		var claimed, addresses []string
		for _, s := range p.GCP.NodeSubnets {
			claimed = append(claimed, s.String())
		}
		for _, a := range append([]netip.Addr{external}, append(was, append(p.Agents[2].Node.Addresses(), p.Agents[3].Node.Addresses()...)...)...) {
			addresses = append(addresses, fmt.Sprintf(`{"type":"InternalIP","address":%q}`, a))
		}
		// Its own agent would restore its annotations.
		must(t, p.Agents[1].Stop(within(t, repair)))
		stop := keepsSession(t, agent, "gcp", p.Agents[2].Node.Name)
		must(t, other.Patch(t.Context(), prefixesPatch(strings.Join(claimed, ","))))
		must(t, other.Patch(t.Context(), `{"status":{"addresses":[`+strings.Join(addresses, ",")+`]}}`, "status"))
		waitDisputed(t, agent, "gcp", map[string]string{"gcp-1": other.Name, "gcp-2": other.Name})
		waitPeers(t, agent, "gcp", append(good, "stranger-0")...)
		must(t, programs.WaitReach(within(t, repair), p.Pods[0], p.Pods[2]))
		stop()
		must(t, waitStored(t, agent.Node))
		must(t, agent.Stop(within(t, repair)))
		must(t, agent.Start())
		waitDisputed(t, agent, "gcp", map[string]string{"gcp-1": other.Name, "gcp-2": other.Name})
		waitPeers(t, agent, "gcp", append(good, "stranger-0")...)
		must(t, programs.WaitReach(within(t, repair), p.Pods[0], p.Pods[2]))
		must(t, other.Patch(t.Context(), `{"metadata":{"annotations":{"`+peers.PodCIDRsAnnotation+`":null}}}`))
		must(t, other.Patch(t.Context(), fmt.Sprintf(`{"status":{"addresses":[
			{"type":"InternalIP","address":%q},{"type":"InternalIP","address":%q},{"type":"ExternalIP","address":%q}]}}`, was[0], was[1], external), "status"))
		must(t, p.Agents[1].Start())
		waitDisputed(t, agent, "gcp", nil)
		must(t, p.WaitConnected(within(t, time.Minute)))
	})

	t.Run("the local API server is down at start", func(t *testing.T) {
		must(t, waitStored(t, agent.Node))
		must(t, agent.Stop(within(t, repair)))
		p.AWS.StopAPI()
		publishStrangers(t, p.GCP, "later", 1, func(int) netip.AddrPort { return netip.AddrPortFrom(other.Addresses()[0], 443) })
		must(t, agent.Start())
		// A new node becomes a peer that has to initiate.
		unchecked := append(slices.Clone(good), "later-0", "stranger-0")
		for i := range names {
			if node := fmt.Sprintf("hostile-%d", i); node != evident {
				unchecked = append(unchecked, node)
			}
		}
		slices.Sort(unchecked)
		waitPeers(t, agent, "gcp", unchecked...)
		silent(t)
		must(t, p.AWS.StartAPI(within(t, 3*time.Minute)))
		eventually(t, time.Minute, "the new ones to be rejected", func(ctx context.Context) error {
			status, err := agent.Status(ctx)
			if err == nil && len(status.Remote("gcp").Rejected) != len(names)+1 {
				err = fmt.Errorf("%d are", len(status.Remote("gcp").Rejected))
			}
			return err
		})
		waitPeers(t, agent, "gcp", append(good, "stranger-0")...)
		silent(t)
	})

	t.Run("outside of the node subnets", func(t *testing.T) {
		must(t, agent.Stop(within(t, repair)))
		var subnets []string
		for _, s := range p.GCP.NodeSubnets {
			subnets = append(subnets, s.String())
		}
		agent.Env[programs.Variable("gcp", "NODE_SUBNETS")] = strings.Join(subnets, ",")
		must(t, agent.Start())
		waitPeers(t, agent, "gcp", good...)
		before := sent(t.Context())[stranger]
		must(t, p.WaitConnected(within(t, repair)))
		if after := sent(t.Context())[stranger]; after != before {
			t.Errorf("%d packets went to %s", after-before, stranger)
		}
		silent(t)
	})
}

// waitDisputed waits until exactly these peers are retained though a node of the agent's
// cluster claims their addresses.
func waitDisputed(t *testing.T, a *programs.Agent, remote string, want map[string]string) {
	t.Helper()
	eventually(t, time.Minute, fmt.Sprintf("disputed peers %v", want), func(ctx context.Context) error {
		status, err := a.Status(ctx)
		if err != nil {
			return err
		}
		disputed := 0
		for _, peer := range status.Remote(remote).Peers {
			if peer.Disputed == "" {
				continue
			}
			if disputed++; want[peer.Node] == "" || !strings.Contains(peer.Disputed, strconv.Quote(want[peer.Node])) {
				return fmt.Errorf("%s is disputed: %s", peer.Node, peer.Disputed)
			}
		}
		if disputed != len(want) {
			return fmt.Errorf("%d peers are disputed", disputed)
		}
		return nil
	})
}

// waitRejected waits until an agent rejects a node.
func waitRejected(t *testing.T, a *programs.Agent, remote, node string) {
	t.Helper()
	eventually(t, repair, node+" to be rejected", func(ctx context.Context) error {
		status, err := a.Status(ctx)
		if err != nil {
			return err
		}
		for _, r := range status.Remote(remote).Rejected {
			if r.Node == node {
				return nil
			}
		}
		return errors.New("it isn't")
	})
}

// publishStrangers adds Node objects to gcp that publish an endpoint for aws.
func publishStrangers(t *testing.T, gcp *testbed.Cluster, name string, count int, endpoint func(int) netip.AddrPort) {
	t.Helper()
	must(t, gcp.AddObjects(within(t, time.Minute), count, func(i int, n *corev1.Node) {
		key := make([]byte, 32)
		_, err := rand.Read(key)
		must(t, err)
		n.Name = fmt.Sprintf("%s-%d", name, i)
		n.Annotations = map[string]string{gcpKey: base64.StdEncoding.EncodeToString(key), gcpEndpoint: endpoint(i).String()}
	}))
}

// countSent counts the packets that a node sends to addresses, before other rules apply. It
// returns a function that reads the counts.
func countSent(t *testing.T, node *testbed.Node, to ...netip.Addr) func(context.Context) map[netip.Addr]int {
	t.Helper()
	var rules strings.Builder
	for _, a := range to {
		family := "ip6"
		if a.Is4() {
			family = "ip"
		}
		fmt.Fprintf(&rules, "%s daddr %s udp dport 1-65535 counter\n", family, a)
	}
	table := filepath.Join(t.TempDir(), "sent.nft")
	must(t, os.WriteFile(table, []byte("table inet sent {\nchain out {\ntype filter hook output priority -300;\n"+rules.String()+"}\n}\n"), 0o644))
	_, err := node.Run(t.Context(), "nft", "-f", table)
	must(t, err)
	line := regexp.MustCompile(`daddr (\S+) udp dport 1-65535 counter packets (\d+)`)
	return func(ctx context.Context) map[netip.Addr]int {
		out, err := node.Run(ctx, "nft", "list", "table", "inet", "sent")
		must(t, err)
		counts := map[netip.Addr]int{}
		for _, m := range line.FindAllStringSubmatch(out, -1) {
			n, err := strconv.Atoi(m[2])
			must(t, err)
			counts[netip.MustParseAddr(m[1])] = n
		}
		if len(counts) != len(to) {
			t.Fatalf("%d of %d counters in\n%s", len(counts), len(to), out)
		}
		return counts
	}
}
