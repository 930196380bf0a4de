package scenarios_test

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/tools"
)

// sharing are two clusters whose nodes and pods have addresses in the same subnets, as with
// the network plugins of EKS and AKS, and with strict reverse path filters.
type sharing struct {
	tb       *testbed.Testbed
	aws, gcp *testbed.Cluster
	agents   []*programs.Agent // of aws-1, gcp-1, gcp-2
	pods     []*testbed.Pod    // one on each, beside the nodes' addresses
}

func startSharing(t *testing.T) *sharing {
	t.Helper()
	nstest.Root(t)
	tb := testbed.Start(t, testbed.Config{Underlay: prefixes("10.66.0.0/16", "fd00:66::/48")}, tools.KubeProxy)
	t.Cleanup(func() { soundLogs(t, tb) })
	ctx := within(t, 5*time.Minute)
	clusters, err := tb.StartClusters(ctx,
		testbed.ClusterConfig{Name: "aws", PodSubnets: prefixes("10.66.64.0/18", "fd00:66:0:100::/56"), NodeSubnets: prefixes("10.66.64.0/24", "fd00:66:0:100::/112")},
		testbed.ClusterConfig{Name: "gcp", PodSubnets: prefixes("10.66.128.0/18", "fd00:66:0:200::/56"), NodeSubnets: prefixes("10.66.128.0/24", "fd00:66:0:200::/112")})
	must(t, err)
	s := &sharing{tb: tb, aws: clusters[0], gcp: clusters[1]}
	must(t, programs.Grant(ctx, programs.WireGuard, clusters...))
	for _, c := range clusters {
		must(t, c.Apply(ctx, filepath.Join(deployFolder(t), "wireguard", "pods", "pods", "rbac.yaml")))
	}
	for i, c := range []*testbed.Cluster{s.aws, s.gcp, s.gcp} {
		node, err := c.AddNode(ctx, testbed.NodeConfig{})
		must(t, err)
		_, err = node.Run(ctx, "sh", "-ec", "echo 1 > /proc/sys/net/ipv4/conf/eth0/rp_filter")
		must(t, err)
		s.pods = append(s.pods, s.pod(t, node, "pod", 50+i))
	}
	must(t, s.neighbours(t.Context()))
	for _, p := range s.pods {
		remote := s.aws
		if p.Node.Cluster == s.aws {
			remote = s.gcp
		}
		a, err := programs.PrepareAgent(ctx, program(t, programs.WireGuard), p.Node, remote)
		must(t, err)
		a.Env["SEMAPHORE_WG_POD_CIDRS"] = "pods"
		must(t, a.Start())
		s.agents = append(s.agents, a)
	}
	// Before their rules are there, packets of pods leave in plaintext or are stopped.
	for _, a := range s.agents {
		eventually(t, time.Minute, "the agent to be ready", a.Ready)
	}
	return s
}

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// neighbours gives nodes the hardware addresses of the other cluster's: as in a cloud, no node
// answers address resolution, which a strict reverse path filter would prevent.
func (s *sharing) neighbours(ctx context.Context) error {
	for _, of := range s.pods {
		hardware, err := of.Node.Run(ctx, "cat", "/sys/class/net/eth0/address")
		if err != nil {
			return err
		}
		for _, at := range s.pods {
			if at.Node.Cluster == of.Node.Cluster {
				continue
			}
			for _, addr := range of.Node.Addresses() {
				_, err := at.Node.Run(ctx, "ip", "neigh", "replace", addr.String(), "lladdr", strings.TrimSpace(hardware), "dev", "eth0", "nud", "permanent")
				if err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// pod adds a pod with the n-th address of each subnet of its cluster's nodes.
func (s *sharing) pod(t *testing.T, node *testbed.Node, name string, n int) *testbed.Pod {
	t.Helper()
	four, six := node.Cluster.NodeSubnets[0].Addr().As4(), node.Cluster.NodeSubnets[1].Addr().As16()
	four[3], six[15] = byte(n), byte(n)
	p, err := node.AddPod(t.Context(), testbed.PodConfig{Name: name, Addresses: []netip.Addr{netip.AddrFrom4(four), netip.AddrFrom16(six)}, Object: &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name + "-" + name},
	}})
	must(t, err)
	must(t, p.Serve(t.Context(), programs.PodPort, nil))
	return p
}

// connected waits until all pods of the two clusters reach each other.
func (s *sharing) connected(t *testing.T) {
	t.Helper()
	bound := within(t, 2*time.Minute)
	for _, from := range s.pods {
		for _, to := range s.pods {
			if from.Node.Cluster != to.Node.Cluster {
				must(t, programs.WaitReach(bound, from, to))
			}
		}
	}
}

// sound checks that no node has rejected, or counted as forged, anything of the mesh.
func (s *sharing) sound(t *testing.T) {
	t.Helper()
	for _, a := range s.agents {
		status, err := a.Status(t.Context())
		must(t, err)
		for i := range status.Remotes {
			if r := &status.Remotes[i]; len(r.Rejected) > 0 {
				t.Errorf("%s has rejected %v", a.Node.Name, r.Rejected)
			}
		}
		metrics, err := a.Metrics(t.Context())
		must(t, err)
		for line := range strings.Lines(metrics) {
			for _, name := range []string{"semaphore_wg_forged_packets_total{", "semaphore_wg_stopped_packets_total{"} {
				if strings.HasPrefix(line, name) && !strings.HasSuffix(line, " 0\n") {
					t.Errorf("%s: %s", a.Node.Name, line)
				}
			}
		}
	}
}

// datagrams sends datagrams from a pod to one of another cluster until the returned function is called,
// which checks that all arrive, however late: a request would need a time-out, which a busy
// machine exceeds without any loss.
func datagrams(t *testing.T, from, to *testbed.Pod) (end func()) {
	t.Helper()
	const port = 4243
	var arrived, sent atomic.Int64
	count(t, to.Space(), port, &arrived)
	ctx, cancel := context.WithCancel(t.Context())
	var sending sync.WaitGroup
	sending.Go(func() {
		ticker := time.NewTicker(25 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			for _, addr := range to.VirtualAddresses() {
				sent.Add(1)
				// A new socket each time, as a new connection has.
				conn, err := from.Dial(t.Context(), "udp", netip.AddrPortFrom(addr, port).String())
				if err != nil {
					continue
				}
				_, _ = conn.Write([]byte("datagram"))
				_ = conn.Close()
			}
		}
	})
	return func() {
		t.Helper()
		cancel()
		sending.Wait()
		eventually(t, time.Minute, "all datagrams from "+from.Name+" to "+to.Name+" to arrive", func(context.Context) error {
			if got := arrived.Load(); got != sent.Load() {
				return fmt.Errorf("%d of %d", got, sent.Load())
			}
			return nil
		})
		t.Logf("%d datagrams from %s to %s have arrived", arrived.Load(), from.Name, to.Name)
	}
}

// TestNodesAmongPods joins clusters whose nodes and pods share subnets.
func TestNodesAmongPods(t *testing.T) {
	t.Parallel()
	s := startSharing(t)
	capture, err := s.tb.Capture()
	must(t, err)
	t.Cleanup(func() { must(t, capture.Close()) })
	s.connected(t)
	waitPrefixes(t, s.agents[0].Node, "10.66.64.50/32,fd00:66:0:100::32/128")
	s.sound(t)
	noPlaintext(t, capture)
	node := func(i int) *testbed.Node { return s.agents[i].Node }

	t.Run("a node's address is none of a pod", func(t *testing.T) {
		var arrived atomic.Int64
		const port = 4242
		count(t, node(1).Space(), port, &arrived)
		for _, from := range []*testbed.Host{&node(0).Host, &s.pods[0].Host} {
			for _, to := range node(1).Addresses() {
				for range 20 {
					conn, err := from.Dial(t.Context(), "udp", netip.AddrPortFrom(to, port).String())
					if err != nil {
						continue
					}
					_, _ = conn.Write([]byte("to a node"))
					_ = conn.Close()
				}
			}
		}
		s.connected(t)
		if got := arrived.Load(); got != 0 {
			t.Errorf("%d packets arrived at a node of the remote outside the tunnel", got)
		}
		noPlaintext(t, capture)
	})

	t.Run("restarts lose nothing", func(t *testing.T) {
		there, back := datagrams(t, s.pods[0], s.pods[1]), datagrams(t, s.pods[2], s.pods[0])
		for _, a := range s.agents {
			must(t, a.Stop(within(t, time.Minute)))
			must(t, a.Start())
			eventually(t, time.Minute, "the agent to be ready", a.Ready)
		}
		time.Sleep(time.Second) // datagrams after the last restart
		there()
		back()
		s.sound(t)
		noPlaintext(t, capture)
	})

	t.Run("mirrored services", func(t *testing.T) {
		ctx := within(t, 3*time.Minute)
		must(t, programs.Grant(ctx, programs.ServiceMirror, s.aws, s.gcp))
		mirror, err := programs.Prepare(ctx, programs.Config{
			Name: programs.ServiceMirror, Replica: "service-mirror", Binary: program(t, programs.ServiceMirror), Port: 8080,
		}, node(1), s.aws)
		must(t, err)
		must(t, mirror.Start())
		_, err = node(1).StartKubeProxy(ctx)
		must(t, err)
		putService(t, s.aws, "shop", service("web", "mirror-service=true"), s.pods[0])
		eventually(t, repair, "the service to be reached", func(ctx context.Context) error {
			mirrored, err := s.gcp.Client().CoreV1().Services(programs.Namespace).Get(ctx, "aws-shop-73736d-web", metav1.GetOptions{})
			if err != nil {
				return err
			}
			// Before kube-proxy knows the address, packets to it leave as they are.
			if rules, err := node(1).Run(ctx, "nft", "list", "table", "ip", "kube-proxy"); err != nil || !strings.Contains(rules, mirrored.Spec.ClusterIP) {
				return fmt.Errorf("kube-proxy doesn't know %s: %w", mirrored.Spec.ClusterIP, err)
			}
			ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			body, err := s.pods[1].Get(ctx, fmt.Sprintf("http://%s:8888/", mirrored.Spec.ClusterIP))
			if err == nil && !strings.HasPrefix(body, s.pods[0].Name+" asked by "+s.pods[1].Addresses[0].String()+":") {
				err = fmt.Errorf("the response is %q", body)
			}
			return err
		})
		noPlaintext(t, capture)
	})

	t.Run("network sets", func(t *testing.T) {
		ctx := within(t, 3*time.Minute)
		must(t, s.aws.Apply(ctx, "../../policy/testdata/v3.yaml"))
		must(t, programs.Grant(ctx, programs.Policy, s.aws, s.gcp))
		startPolicy(t, node(0), s.gcp)
		sets := networkSets(t, s.aws)
		must(t, s.pods[0].Serve(ctx, fluentdPort, nil))
		admitted := forwarder(t, node(2), "forwarder")
		await(t, sets, admitted)
		filter(t, s.pods[0], sets)
		checkReach(t, admitted, s.pods[0], true)
		checkReach(t, s.pods[1], s.pods[0], false)
		noPlaintext(t, capture)
	})

	t.Run("a node that publishes its own address", func(t *testing.T) {
		a := s.agents[1]
		must(t, a.Stop(within(t, time.Minute)))
		a.Env["SEMAPHORE_WG_POD_CIDRS"] = "10.66.128.1/32,10.66.128.51/32,fd00:66:0:200::1/128,fd00:66:0:200::33/128"
		must(t, a.Start())
		waitPrefixes(t, a.Node, a.Env["SEMAPHORE_WG_POD_CIDRS"])
		must(t, a.Node.Serve(t.Context(), 8099, nil))
		for _, to := range a.Node.Addresses() {
			url := "http://" + netip.AddrPortFrom(to, 8099).String()
			eventually(t, repair, "the node to be reached through the tunnel", func(ctx context.Context) error {
				ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
				defer cancel()
				_, err := s.pods[0].Get(ctx, url)
				return err
			})
		}
		s.connected(t)
		before, err := capture.Counts(t.Context())
		must(t, err)
		time.Sleep(3 * time.Second)
		after, err := capture.Counts(t.Context())
		must(t, err)
		sent := after.Sub(before)
		t.Logf("in 3 s without requests: %s", sent)
		if sent.WireGuard.Packets > 300 {
			t.Errorf("%d packets in 3 s without requests: they loop", sent.WireGuard.Packets)
		}
		s.sound(t)
		noPlaintext(t, capture)
	})

	t.Run("routes and rules flushed", func(t *testing.T) {
		sent := sendWithoutPause(t, s.pods[0], s.pods[1])
		for range 3 {
			_, err := node(0).FlushRoutes()
			must(t, err)
			for _, family := range []string{"-4", "-6"} {
				_, err = node(0).Run(t.Context(), "sh", "-ec", fmt.Sprintf("while ip %s rule del proto 115 2>/dev/null; do :; done", family))
				must(t, err)
			}
			sent.wait(t, 100)
			s.connected(t)
		}
		noPlaintext(t, capture)
	})
}
