package scenarios_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/tools"
)

// overlap is a mesh of three clusters. aws and gcp have the same subnets of pods and of Services,
// and pods with the same addresses; others know their pods by virtual addresses. merit has
// subnets of its own, no map, and semaphore-relay. aws has two nodes, kube-proxy is in nftables
// mode, in gcp in iptables mode.
type overlap struct {
	*imports
	tb      *testbed.Testbed
	agents  []*programs.Agent
	mirrors map[*testbed.Cluster]*programs.Program
	relay   *programs.Program // of merit
	capture *testbed.Capture
}

// hostPort is the port of servers on nodes.
const hostPort = 8099

// What aws and gcp share.
var (
	sharedPods     = []string{"10.4.0.0/16", "fd00:10:4::/48"}
	sharedServices = []string{"10.104.0.0/16", "fd00:10:104::/112"}
)

func startOverlap(t *testing.T) *overlap {
	t.Helper()
	tb := testbed.Start(t, testbed.Config{}, tools.KubeProxy, tools.CoreDNS)
	t.Cleanup(func() { soundLogs(t, tb) })
	for _, name := range []string{programs.WireGuard, programs.ServiceMirror, programs.Relay, programs.Policy} {
		program(t, name) // Builds take their time.
	}
	ctx := within(t, 10*time.Minute)
	clusters, err := tb.StartClusters(ctx,
		testbed.ClusterConfig{Name: "aws", PodSubnets: prefixes(sharedPods...), ServiceSubnets: prefixes(sharedServices...), VirtualSubnets: prefixes("100.64.0.0/16", "fd00:64::/48")},
		testbed.ClusterConfig{Name: "gcp", PodSubnets: prefixes(sharedPods...), ServiceSubnets: prefixes(sharedServices...), VirtualSubnets: prefixes("100.65.0.0/16", "fd00:65::/48")},
		testbed.ClusterConfig{Name: "merit"})
	must(t, err)
	m := &overlap{
		imports: &imports{
			clusters: clusters, aws: clusters[0], gcp: clusters[1], merit: clusters[2],
			api: map[*testbed.Cluster]kube.Client{}, dns: map[*testbed.Cluster]*programs.DNS{}, servers: map[*testbed.Cluster][]*testbed.Pod{},
		},
		tb:      tb,
		mirrors: map[*testbed.Cluster]*programs.Program{},
	}
	deploy := deployFolder(t)
	for _, program := range []string{programs.WireGuard, programs.ServiceMirror} {
		must(t, programs.Grant(ctx, program, clusters...))
	}
	must(t, programs.Grant(ctx, programs.Relay, m.merit))
	must(t, m.merit.Apply(ctx, filepath.Join(deploy, "relay", "crd.yaml"), filepath.Join(deploy, "wireguard", "relay", "rbac.yaml")))
	for _, c := range clusters {
		must(t, c.Apply(ctx, append(multiclusterCRDs(t), filepath.Join(deploy, "service-mirror", "mcs", "rbac.yaml"), filepath.Join(deploy, "coredns", "clusterset.yaml"))...))
		m.api[c] = multiclusterWith(t, c, "")
		mode, nodes := "nftables", 1
		switch c {
		case m.aws:
			nodes = 2
		case m.gcp:
			mode = "iptables"
		}
		for range nodes {
			node, err := c.AddNode(ctx, testbed.NodeConfig{})
			must(t, err)
			must(t, node.Masquerade(ctx))
			// What kube-proxy doesn't translate yet must not look like a leak.
			for _, s := range c.ServiceSubnets {
				_, err := node.Run(ctx, "ip", "route", "add", "unreachable", s.String())
				must(t, err)
			}
			_, err = node.StartKubeProxy(ctx, "--proxy-mode="+mode)
			must(t, err)
			must(t, node.Serve(t.Context(), hostPort, nil))
			m.servers[c] = append(m.servers[c], m.pod(t, node))
			client, err := node.AddPod(ctx, testbed.PodConfig{})
			must(t, err)
			m.clients = append(m.clients, client)
		}
	}
	if a, g := m.servers[m.aws][0].Addresses, m.servers[m.gcp][0].Addresses; !slices.Equal(a, g) {
		t.Fatalf("pods of aws have %v, those of gcp %v", a, g)
	}
	m.watchTunnels(t)
	m.capture, err = tb.Capture()
	must(t, err)
	t.Cleanup(func() { must(t, m.capture.Close()) })
	m.startPrograms(t)
	for _, c := range clusters {
		m.startDNS(t, c)
	}
	m.connected(t)
	return m
}

// others returns the remotes of a cluster.
func (m *overlap) others(c *testbed.Cluster) []*testbed.Cluster {
	return slices.DeleteFunc(slices.Clone(m.clusters), func(other *testbed.Cluster) bool { return other == c })
}

// startPrograms starts an agent on each node, a service mirror in each cluster and the relay.
func (m *overlap) startPrograms(t *testing.T) {
	t.Helper()
	ctx := within(t, 5*time.Minute)
	var err error
	m.relay, err = programs.Prepare(ctx, programs.Config{Name: programs.Relay, Binary: program(t, programs.Relay), Port: 7790}, m.merit.Nodes()[0], m.others(m.merit)...)
	must(t, err)
	must(t, m.relay.Start())
	for _, c := range m.clusters {
		for _, node := range c.Nodes() {
			a, err := programs.PrepareAgent(ctx, program(t, programs.WireGuard), node, m.others(c)...)
			must(t, err)
			if c == m.merit {
				a.Env["SEMAPHORE_REMOTES_FROM"] = config.RemotesFromRelay
			}
			must(t, a.Start())
			m.agents = append(m.agents, a)
		}
		m.mirrors[c], err = programs.Prepare(ctx, programs.Config{
			Name: programs.ServiceMirror, Replica: programs.ServiceMirror + "-" + c.Name, Binary: program(t, programs.ServiceMirror), Port: 8080,
		}, c.Nodes()[0], m.others(c)...)
		must(t, err)
		must(t, m.mirrors[c].Start())
	}
}

// startDNS runs CoreDNS in a cluster with a zone for each remote.
func (m *overlap) startDNS(t *testing.T, c *testbed.Cluster) {
	t.Helper()
	binaries, err := tools.Build(t.Context(), t.Output(), tools.CoreDNS)
	must(t, err)
	documented, err := os.ReadFile(filepath.Join(deployFolder(t), "coredns", "Corefile"))
	must(t, err)
	clusterset, err := os.ReadFile(filepath.Join(deployFolder(t), "coredns", "Corefile.clusterset"))
	must(t, err)
	aws, global, _ := strings.Cut(string(documented), "cluster.global:53 {")
	text := "cluster.global:53 {" + global + string(clusterset)
	for _, remote := range m.others(c) {
		text += strings.ReplaceAll(aws, "aws", remote.Name)
	}
	file := filepath.Join(t.TempDir(), "Corefile")
	must(t, os.WriteFile(file, []byte(text), 0o600))
	m.dns[c], err = programs.StartDNSWith(t.Context(), binaries[tools.CoreDNS], c.Nodes()[0], file)
	must(t, err)
}

// agent is that of a node.
func (m *overlap) agent(n *testbed.Node) *programs.Agent {
	return m.agents[slices.IndexFunc(m.agents, func(a *programs.Agent) bool { return a.Node == n })]
}

// pairs calls do for each client and each server of another cluster, some at the same time.
func (m *overlap) pairs(t *testing.T, do func(ctx context.Context, from, to *testbed.Pod) error) {
	t.Helper()
	var all [][2]*testbed.Pod
	for _, from := range m.clients {
		for _, c := range m.others(from.Node.Cluster) {
			for _, to := range m.servers[c] {
				all = append(all, [2]*testbed.Pod{from, to})
			}
		}
	}
	must(t, testbed.InParallel(within(t, patient), len(all), func(ctx context.Context, i int) error {
		from, to := all[i][0], all[i][1]
		return testbed.Wait(ctx, from.Name+" to "+to.Name, func(ctx context.Context) error { return do(ctx, from, to) })
	}))
}

// connected waits until each client reaches each server of the other clusters.
func (m *overlap) connected(t *testing.T) {
	t.Helper()
	m.pairs(t, func(ctx context.Context, from, to *testbed.Pod) error { return programs.WaitReach(ctx, from, to) })
}

// watchTunnels counts on all nodes what comes out of tunnels, before anything else sees it:
// packets with an address that aws and gcp share, or an ICMP error about one, and packets with a
// virtual address.
func (m *overlap) watchTunnels(t *testing.T) {
	t.Helper()
	rules := `add table inet watched; delete table inet watched; table inet watched {
		counter shared { }
		counter virtual { }
		chain arriving {
			type filter hook prerouting priority -450
			iifname != "wireguard.*" accept
			ip saddr { 10.4.0.0/16, 10.104.0.0/16 } counter name shared
			ip daddr { 10.4.0.0/16, 10.104.0.0/16 } counter name shared
			ip6 saddr { fd00:10:4::/48, fd00:10:104::/112 } counter name shared
			ip6 daddr { fd00:10:4::/48, fd00:10:104::/112 } counter name shared
			icmp type { destination-unreachable, time-exceeded, parameter-problem } @th,160,16 0x0a04 counter name shared
			icmp type { destination-unreachable, time-exceeded, parameter-problem } @th,192,16 0x0a04 counter name shared
			icmpv6 type { destination-unreachable, packet-too-big, time-exceeded, parameter-problem } @th,128,48 0xfd0000100004 counter name shared
			icmpv6 type { destination-unreachable, packet-too-big, time-exceeded, parameter-problem } @th,256,48 0xfd0000100004 counter name shared
			ip saddr { 100.64.0.0/15 } counter name virtual
			ip6 saddr { fd00:64::/47 } counter name virtual
		}
	}`
	for _, c := range m.clusters {
		for _, n := range c.Nodes() {
			_, err := n.Run(t.Context(), "nft", rules)
			must(t, err)
		}
	}
}

// hidden fails if an address that aws and gcp share was seen outside of them, or plaintext on the
// underlay.
func (m *overlap) hidden(t *testing.T) {
	t.Helper()
	noPlaintext(t, m.capture)
	seen := map[string]int{}
	for _, c := range m.clusters {
		for _, n := range c.Nodes() {
			for _, counter := range []string{"shared", "virtual"} {
				out, err := n.Run(t.Context(), "nft", "list", "counter", "inet", "watched", counter)
				must(t, err)
				_, rest, _ := strings.Cut(out, "packets ")
				packets, err := strconv.Atoi(strings.Fields(rest)[0])
				must(t, err)
				if seen[counter] += packets; counter == "shared" && packets > 0 {
					t.Errorf("%d packets from tunnels of %s have an address that aws and gcp share", packets, n.Name)
				}
			}
		}
	}
	if seen["virtual"] == 0 {
		t.Error("no packet from a tunnel has a virtual address")
	}
}

// TestOverlap joins three clusters, two of which have the same pod subnets and pods with the same
// addresses. Each part leaves the mesh intact; meanwhile no packet is in plaintext, and no tunnel
// carries an address that both have.
func TestOverlap(t *testing.T) {
	t.Parallel()
	m := startOverlap(t)
	for _, part := range []struct {
		name string
		test func(*overlap, *testing.T)
	}{
		{"what nodes publish", (*overlap).testPublished},
		{"who asks", (*overlap).testSources},
		{"mirrored names", (*overlap).testMirrored},
		{"imported names", (*overlap).testImported},
		{"pods of headless services", (*overlap).testHeadless},
		{"network sets", (*overlap).testNetworkSets},
		{"virtual addresses of the own cluster", (*overlap).testHairpin},
		{"equal ports both ways", (*overlap).testEqualPorts},
		{"datagrams and fragments", (*overlap).testDatagrams},
		{"refused datagrams", (*overlap).testRefusals},
		{"a narrow link behind the tunnel", (*overlap).testNarrow},
		{"protocols without ports", (*overlap).testProtocols},
		{"a network plugin masquerades", (*overlap).testMasquerading},
		{"restarts lose nothing", (*overlap).testRestarts},
		{"rules are flushed", (*overlap).testFlushed},
		{"another map", (*overlap).testAnotherMap},
		{"a map comes and goes", (*overlap).testComesAndGoes},
	} {
		t.Run(part.name, func(t *testing.T) {
			part.test(m, t)
			m.connected(t)
			m.hidden(t)
		})
	}
	t.Run("-cleanup leaves nothing", func(t *testing.T) { testCleanup(t, m.agents[0]) })
}

// testPublished checks that annotations and peers have virtual prefixes, and the map.
func (m *overlap) testPublished(t *testing.T) {
	for _, tt := range []struct {
		node           *testbed.Node
		prefixes, maps string
	}{
		{m.aws.Nodes()[0], "100.64.1.0/24,fd00:64:0:1::/64", "10.4.0.0/16=100.64.0.0/16,fd00:10:4::/48=fd00:64::/48"},
		{m.aws.Nodes()[1], "100.64.2.0/24,fd00:64:0:2::/64", "10.4.0.0/16=100.64.0.0/16,fd00:10:4::/48=fd00:64::/48"},
		{m.gcp.Nodes()[0], "100.65.1.0/24,fd00:65:0:1::/64", "10.4.0.0/16=100.65.0.0/16,fd00:10:4::/48=fd00:65::/48"},
		{m.merit.Nodes()[0], "10.6.1.0/24,fd00:10:6:1::/64", ""},
	} {
		waitPrefixes(t, tt.node, tt.prefixes)
		object, err := tt.node.Object(t.Context())
		must(t, err)
		if got := object.Annotations[config.SubnetMapAnnotation]; got != tt.maps {
			t.Errorf("%s publishes the map %q, want %q", tt.node.Name, got, tt.maps)
		}
		report, err := m.agent(tt.node).Status(t.Context())
		must(t, err)
		if r := report.Translation; (r == nil) != (tt.maps == "") || r != nil && (r.Map != tt.maps || r.State != statuspage.FilterEnforced || !r.OwnPods) {
			t.Errorf("%s reports %+v of the map %q", tt.node.Name, r, tt.maps)
		}
		for _, c := range m.others(tt.node.Cluster) {
			for _, n := range c.Nodes() {
				out, err := n.Run(t.Context(), "wg", "show", "wireguard."+tt.node.Cluster.Name, "allowed-ips")
				must(t, err)
				for _, p := range strings.Split(tt.prefixes, ",") {
					if !slices.Contains(strings.Fields(out), p) {
						t.Errorf("%s: no %s in %s", n.Name, p, out)
					}
				}
			}
		}
	}
}

// testSources checks that servers see the virtual addresses of clients: of pods, and of nodes, the
// clients of which have the address of the node in its pods' subnet.
func (m *overlap) testSources(t *testing.T) {
	check := func(ctx context.Context, client programs.Host, to *testbed.Pod, i int, url string, want netip.Addr) error {
		seen, err := seenBy(ctx, to, client, url)
		if err == nil && seen != want {
			err = fmt.Errorf("%s saw %s over address %d, want %s", to.Name, seen, i, want)
		}
		return err
	}
	m.pairs(t, func(ctx context.Context, from, to *testbed.Pod) error {
		var errs []error
		node := from.Node
		for i, url := range to.VirtualURLs(programs.PodPort) {
			errs = append(errs, check(ctx, from, to, i, url, from.VirtualAddresses()[i]),
				check(ctx, node, to, i, url, node.Cluster.Virtual(node.PodCIDRs[i].Addr().Next())))
		}
		return errors.Join(errs...)
	})
	// A server of a node, such as a pod with hostNetwork, is reached by the same address.
	for _, c := range m.clusters {
		node := c.Nodes()[0]
		for _, from := range m.clients {
			if from.Node.Cluster == c {
				continue
			}
			for _, cidr := range node.PodCIDRs {
				url := "http://" + netip.AddrPortFrom(c.Virtual(cidr.Addr().Next()), hostPort).String()
				eventually(t, repair, from.Name+" to reach "+node.Name, func(ctx context.Context) error {
					ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
					defer cancel()
					_, err := from.Get(ctx, url)
					return err
				})
			}
		}
	}
}

// seenThrough waits until each server sees the virtual address of each client in other clusters
// that asks for a name.
func (m *overlap) seenThrough(t *testing.T, name func(c *testbed.Cluster) string, servers ...*testbed.Pod) {
	t.Helper()
	m.pairs(t, func(ctx context.Context, from, to *testbed.Pod) error {
		if !slices.Contains(servers, to) {
			return nil
		}
		addresses, err := m.addresses(ctx, from, name(to.Node.Cluster))
		if err != nil {
			return err
		}
		if len(addresses) != 2 {
			return fmt.Errorf("%s has %q", name(to.Node.Cluster), addresses)
		}
		for i, a := range addresses {
			seen, err := m.seenAmong(ctx, to, from, "http://"+net.JoinHostPort(a, "8888")+"/")
			if err == nil && seen != from.VirtualAddresses()[i] {
				err = fmt.Errorf("%s saw %s, want %s", to.Name, seen, from.VirtualAddresses()[i])
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// seenAmong is seenBy for a name that other pods answer, too.
func (m *overlap) seenAmong(ctx context.Context, to *testbed.Pod, from programs.Host, url string) (seen netip.Addr, err error) {
	for range 30 {
		if seen, err = seenBy(ctx, to, from, url); err == nil || !strings.Contains(err.Error(), "answered") {
			break
		}
	}
	return seen, err
}

func (m *overlap) testMirrored(t *testing.T) {
	for _, c := range m.clusters {
		putService(t, c, "shop", web(func(s *corev1.Service) { s.Labels = service("web", "mirror-service=true").Labels }), m.servers[c]...)
	}
	name := func(c *testbed.Cluster) string { return "web.shop.svc.cluster." + c.Name }
	for _, c := range m.clusters {
		m.answeredIn(t, name(c), m.others(c), 8888, m.servers[c]...)
	}
	m.seenThrough(t, name, slices.Concat(m.servers[m.aws], m.servers[m.gcp], m.servers[m.merit])...)
}

func (m *overlap) testImported(t *testing.T) {
	const ns = "imported"
	m.in(t, ns, m.clusters...)
	for _, c := range []*testbed.Cluster{m.aws, m.gcp} {
		putService(t, c, ns, web(), m.servers[c]...)
		m.export(t, c, ns)
	}
	m.imported(t, ns, from("aws", "gcp"))
	m.answered(t, ns, 8888, slices.Concat(m.servers[m.aws], m.servers[m.gcp])...)
	m.seenThrough(t, func(*testbed.Cluster) string { return importName(ns) }, slices.Concat(m.servers[m.aws], m.servers[m.gcp])...)
}

// testHeadless checks the addresses of pods' names, which clients use directly.
func (m *overlap) testHeadless(t *testing.T) {
	const ns = "data"
	m.in(t, ns, m.clusters...)
	for _, c := range []*testbed.Cluster{m.aws, m.gcp} {
		putService(t, c, ns, web(headless, func(s *corev1.Service) {
			s.Labels, s.Spec.IPFamilyPolicy = service("web", "mirror-service=true").Labels, nil
		}), m.servers[c]...)
		m.export(t, c, ns)
	}
	m.imported(t, ns, from("aws", "gcp"))
	for _, c := range m.clusters {
		n := &naming{client: m.clients[slices.IndexFunc(m.clients, func(p *testbed.Pod) bool { return p.Node.Cluster == c })], dns: m.dns[c]}
		var all []string
		for _, of := range []*testbed.Cluster{m.aws, m.gcp} {
			for i, pod := range m.servers[of] {
				address := pod.VirtualAddresses()[0]
				if of == c {
					address = pod.Addresses[0]
				}
				name := fmt.Sprintf("web-%d.%s.%s", i, of.Name, importName(ns))
				n.answers(t, name, dnsmessage.TypeA, name+". A "+address.String())
				all = append(all, importName(ns)+". A "+address.String())
				if of != c {
					name = fmt.Sprintf("web-%d.web.%s.svc.cluster.%s", i, ns, of.Name)
					n.answers(t, name, dnsmessage.TypeA, name+". A "+address.String())
				}
			}
		}
		n.answers(t, importName(ns), dnsmessage.TypeA, all...)
	}
	m.answered(t, ns, programs.PodPort, slices.Concat(m.servers[m.aws], m.servers[m.gcp])...)
}

// testNetworkSets admits a pod of gcp to one of aws, and not the pod of aws with the same address.
func (m *overlap) testNetworkSets(t *testing.T) {
	ctx := within(t, 3*time.Minute)
	must(t, m.aws.Apply(ctx, "../../policy/testdata/v3.yaml"))
	must(t, programs.Grant(ctx, programs.Policy, m.aws, m.gcp))
	startPolicy(t, m.aws.Nodes()[0], m.gcp)
	sets := networkSets(t, m.aws)
	fluentd := m.servers[m.aws][1]
	must(t, fluentd.Serve(ctx, fluentdPort, nil))
	first := forwarder(t, m.gcp.Nodes()[0], "forwarder-1")
	twin, err := m.aws.Nodes()[0].AddPod(ctx, testbed.PodConfig{Name: "twin", Addresses: first.Addresses})
	must(t, err)
	await(t, sets, first)
	filter(t, fluentd, sets)
	checkReach(t, first, fluentd, true)
	checkReach(t, twin, fluentd, false)
	checkReach(t, m.clients[0], fluentd, false)
	checkReach(t, m.servers[m.gcp][0], fluentd, false)
	second := forwarder(t, m.gcp.Nodes()[0], "forwarder-2")
	await(t, sets, first, second)
	filter(t, fluentd, sets)
	checkReach(t, second, fluentd, true)
}

// testHairpin requests pods of the own cluster by their virtual addresses. For those the host
// itself has no route.
func (m *overlap) testHairpin(t *testing.T) {
	for _, from := range m.clients {
		for _, to := range m.servers[from.Node.Cluster] {
			must(t, programs.WaitReach(within(t, repair), from, to))
			if from.Node.Cluster == m.merit {
				continue
			}
			for _, url := range to.VirtualURLs(programs.PodPort) {
				if _, err := from.Node.Get(within(t, repair), url); !errors.Is(err, syscall.EHOSTUNREACH) {
					t.Errorf("%s: %s: %v, want that there is no route", from.Node.Name, url, err)
				}
			}
		}
	}
}
