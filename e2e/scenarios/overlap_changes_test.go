package scenarios_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/routes"
)

// restartWith ends a program and starts it with other settings; empty ones are unset.
func restartWith(t *testing.T, p *programs.Program, settings map[string]string) {
	t.Helper()
	must(t, p.Stop(within(t, repair)))
	for name, value := range settings {
		if p.Env[name] = value; value == "" {
			delete(p.Env, name)
		}
	}
	must(t, p.Start())
	eventually(t, time.Minute, p.Name+" to be ready", p.Ready)
}

// know gives the agents, mirrors and the relay of all others the pod subnets of a cluster, and its
// map.
func (m *overlap) know(t *testing.T, of *testbed.Cluster, subnets ...[]netip.Prefix) {
	t.Helper()
	var texts []string
	for _, s := range slices.Concat(subnets...) {
		texts = append(texts, s.String())
	}
	settings := map[string]string{
		programs.Variable(of.Name, "POD_SUBNETS"):     strings.Join(texts, ","),
		programs.Variable(of.Name, "POD_SUBNETS_MAP"): programs.SubnetMap(of),
	}
	for _, a := range m.agents {
		if a.Node.Cluster != of {
			restartWith(t, a.Program, settings)
		}
	}
	for _, c := range m.others(of) {
		restartWith(t, m.mirrors[c], settings)
	}
	if of != m.merit {
		restartWith(t, m.relay, settings)
	}
}

// testRestarts restarts and kills agents while datagrams are sent.
func (m *overlap) testRestarts(t *testing.T) {
	there := datagrams(t, m.clients[0], m.servers[m.gcp][0])
	back := datagrams(t, m.servers[m.gcp][0], m.servers[m.merit][0])
	for _, a := range m.agents {
		restartWith(t, a.Program, nil)
		a.Kill()
		must(t, a.Start())
		eventually(t, time.Minute, "the agent to be ready", a.Ready)
	}
	there()
	back()
}

// testFlushed removes the agent's rules, as other programs do, while datagrams are sent.
func (m *overlap) testFlushed(t *testing.T) {
	a := m.agent(m.gcp.Nodes()[0])
	node := a.Node
	sent := []flow{sendWithoutPause(t, m.servers[m.gcp][0], m.servers[m.aws][0]), sendWithoutPause(t, m.servers[m.aws][0], m.servers[m.gcp][0])}
	for _, command := range []string{"delete table inet " + routes.FilterTable, "flush table inet " + routes.FilterTable, "flush ruleset"} {
		t.Run(command, func(t *testing.T) {
			for _, killed := range []bool{false, true} {
				if killed {
					a.Kill()
				}
				if out, err := node.Run(t.Context(), "nft", command); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
				m.watchTunnels(t)
				for _, s := range sent {
					s.wait(t, 200)
				}
				if command == "flush ruleset" {
					must(t, node.Masquerade(t.Context()))
				}
				m.hidden(t)
				if killed {
					must(t, a.Start())
				}
				m.connected(t)
				eventually(t, repair, "the table", func(ctx context.Context) error {
					_, err := node.Run(ctx, "nft", "list", "table", "inet", routes.FilterTable)
					return err
				})
			}
		})
	}
	// kube-proxy has lost its rules, too.
	m.answeredIn(t, "web.shop.svc.cluster.aws", []*testbed.Cluster{m.gcp}, 8888, m.servers[m.aws]...)
}

// testAnotherMap gives aws other virtual subnets, node by node, while clients in the other clusters
// request its Service by name. Requests to nodes that have the new map fail until the mirrors have
// it, too. Then the endpoints are replaced, and none is missing meanwhile.
func (m *overlap) testAnotherMap(t *testing.T) {
	was, is := m.aws.VirtualSubnets, prefixes("100.66.0.0/16", "fd00:6a::/48")
	since := time.Now()
	clients := map[string]*asking{}
	for _, from := range m.clients {
		if from.Node.Cluster == m.aws {
			continue
		}
		addresses, err := m.addresses(within(t, repair), from, "web.shop.svc.cluster.aws")
		must(t, err)
		for _, a := range addresses {
			clients[from.Name+" to "+a] = ask(t, from, "http://"+net.JoinHostPort(a, "8888")+"/")
		}
	}
	complete := m.neverMissing(t, len(m.servers[m.aws]))
	m.know(t, m.aws, was, is)
	m.aws.VirtualSubnets = is
	moved := programs.SubnetMap(m.aws)
	for _, node := range m.aws.Nodes() {
		at := time.Now()
		restartWith(t, m.agent(node).Program, map[string]string{"SEMAPHORE_POD_SUBNETS_MAP": moved})
		t.Logf("%s has its map after %s", node.Name, seconds(since, at))
	}
	m.connected(t)
	m.know(t, m.aws, is)
	for name, c := range clients {
		c.settled(t, time.Now(), 2, m.servers[m.aws]...)
		failed, _ := c.Failed(since)
		t.Logf("%s: %d of %d requests failed: %s", name, failed, len(c.Since(since)), failures(since, c.Since(since)))
		c.Stop()
	}
	complete()
	m.recapture(t)
	m.testSources(t)
}

// neverMissing watches the endpoints of aws' Service in the other clusters until the function that
// it returns is called, which fails if one of so many was missing.
func (m *overlap) neverMissing(t *testing.T, endpoints int) (end func()) {
	t.Helper()
	var all sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	for _, c := range m.others(m.aws) {
		w, err := c.Client().DiscoveryV1().EndpointSlices(programs.Namespace).Watch(ctx, metav1.ListOptions{
			LabelSelector: discoveryv1.LabelServiceName + "=aws-shop-73736d-web",
		})
		must(t, err)
		all.Go(func() {
			for e := range w.ResultChan() {
				if s, is := e.Object.(*discoveryv1.EndpointSlice); is && len(s.Endpoints) != endpoints {
					t.Errorf("%s: %s: slice %s has %d endpoints", c.Name, e.Type, s.Name, len(s.Endpoints))
				}
			}
		})
	}
	return func() {
		cancel()
		all.Wait()
	}
}

// recapture captures with the current virtual addresses.
func (m *overlap) recapture(t *testing.T) {
	t.Helper()
	m.hidden(t)
	must(t, m.capture.Close())
	var err error
	m.capture, err = m.tb.Capture()
	must(t, err)
	m.connected(t)
}

// testComesAndGoes moves merit to virtual addresses and back.
func (m *overlap) testComesAndGoes(t *testing.T) {
	node, own, virtual := m.merit.Nodes()[0], m.merit.PodSubnets, prefixes("100.68.0.0/16", "fd00:6c::/48")
	for _, is := range [][]netip.Prefix{virtual, own} {
		m.merit.VirtualSubnets = is
		text := programs.SubnetMap(m.merit)
		restartWith(t, m.agent(node).Program, map[string]string{"SEMAPHORE_POD_SUBNETS_MAP": text})
		eventually(t, repair, "the map to be published", func(ctx context.Context) error {
			object, err := node.Object(ctx)
			if err == nil && object.Annotations[config.SubnetMapAnnotation] != text {
				err = fmt.Errorf("%q", object.Annotations)
			}
			return err
		})
		m.know(t, m.merit, is)
		m.connected(t)
		m.recapture(t)
		m.testSources(t)
		for _, c := range m.others(m.merit) {
			m.answeredIn(t, "web.shop.svc.cluster.merit", []*testbed.Cluster{c}, 8888, m.servers[m.merit]...)
		}
	}
	// Its virtual subnets are refused for a time, as all that were removed.
	report, err := m.agent(node).Status(t.Context())
	must(t, err)
	if report.Translation != nil {
		t.Errorf("%s translates without a map: %+v", node.Name, report.Translation)
	}
}
