package scenarios_test

import (
	"net"
	"slices"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// requesting starts clients of a name on each node of some clusters.
func (m *imports) requesting(t *testing.T, name string, clusters ...*testbed.Cluster) (all []*asking) {
	t.Helper()
	for _, from := range m.clients {
		if !slices.Contains(clusters, from.Node.Cluster) {
			continue
		}
		addresses, err := m.addresses(within(t, repair), from, name)
		must(t, err)
		all = append(all, ask(t, from, "http://"+net.JoinHostPort(addresses[0], "8888")+"/"))
	}
	return all
}

// control starts a client of a pod itself: when it fails, this machine is busy.
func (m *imports) control(t *testing.T) *asking {
	t.Helper()
	return ask(t, m.clients[len(m.clients)-1], m.servers[m.aws][0].URL(programs.PodPort))
}

// none fails if requests of clients since a time have failed, and those of the control haven't.
func none(t *testing.T, what string, since time.Time, control *asking, clients ...*asking) {
	t.Helper()
	sent, lost := 0, 0
	busy, _ := control.Failed(since)
	for _, c := range clients {
		failed, _ := c.Failed(since)
		sent, lost = sent+len(c.Since(since)), lost+failed
		if failed > 0 && busy == 0 {
			t.Errorf("%s: %s", what, failures(since, c.Since(since)))
		}
	}
	t.Logf("FIGURE %s: %d of %d requests failed, and %d of the control", what, lost, sent, busy)
}

// exportedByBoth exports a Service web with pods of aws and gcp.
func (m *imports) exportedByBoth(t *testing.T, ns string, aws, gcp []*testbed.Pod) {
	t.Helper()
	m.in(t, ns, m.clusters...)
	for c, pods := range map[*testbed.Cluster][]*testbed.Pod{m.aws: aws, m.gcp: gcp} {
		putService(t, c, ns, web(), pods...)
		m.export(t, c, ns)
	}
	m.answered(t, ns, 8888, slices.Concat(aws, gcp)...)
}

// podDeleted deletes a pod of aws as Kubernetes does: it serves until requests no longer arrive.
func (m *imports) podDeleted(t *testing.T) {
	const ns = "draining"
	stays, leaves := m.servers[m.aws][0], m.pod(t, m.aws.Nodes()[1])
	m.exportedByBoth(t, ns, []*testbed.Pod{stays, leaves}, nil)
	began, control := time.Now(), m.control(t)
	clients := m.requesting(t, importName(ns), m.clusters...)
	for _, c := range clients {
		c.settled(t, began, 2, stays, leaves)
	}
	at := time.Now()
	api := m.aws.Client().DiscoveryV1().EndpointSlices(ns)
	list, err := api.List(t.Context(), metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=web"})
	must(t, err)
	for i := range list.Items {
		yes, no := true, false
		list.Items[i].Endpoints[1].Conditions = discoveryv1.EndpointConditions{Ready: &no, Serving: &yes, Terminating: &yes}
		_, err := api.Update(t.Context(), &list.Items[i], metav1.UpdateOptions{})
		must(t, err)
	}
	for _, c := range clients {
		c.settled(t, at, 2, stays)
	}
	setPods(t, m.aws, ns, web(), stays)
	must(t, leaves.Remove())
	at = time.Now()
	for _, c := range clients {
		c.settled(t, at, 3, stays)
	}
	none(t, "a pod is deleted", began, control, clients...)
}

// clusterFails cuts off the nodes and the API server of aws.
func (m *imports) clusterFails(t *testing.T) {
	const ns = "failing"
	aws, gcp := m.servers[m.aws], m.servers[m.gcp]
	m.exportedByBoth(t, ns, aws, gcp)
	each := func(do func(a, b *testbed.Node) error) {
		for _, b := range m.aws.Nodes() {
			for _, a := range slices.Concat(m.gcp.Nodes(), m.merit.Nodes()) {
				must(t, do(a, b))
			}
		}
	}
	began := time.Now()
	clients := m.requesting(t, importName(ns), m.gcp, m.merit)
	for _, c := range clients {
		c.settled(t, began, 2, slices.Concat(aws, gcp)...)
	}
	at := time.Now()
	each(m.testbed.Drop)
	must(t, m.aws.CutAPI())
	for n, who := range []string{"gcp, nftables", "gcp, iptables", "merit, nftables"} {
		failed, last := clients[n].settled(t, at, 5, gcp...)
		t.Logf("FIGURE a cluster fails, %s: %d requests of 10 a second failed, the last one after %s", who, failed, seconds(at, last))
	}
	m.answeredIn(t, importName(ns), []*testbed.Cluster{m.gcp, m.merit}, 8888, gcp...)
	at = time.Now()
	must(t, m.aws.RestoreAPI())
	each(m.testbed.Restore)
	for _, c := range clients {
		failed, last := c.settled(t, at, 3, slices.Concat(aws, gcp)...)
		t.Logf("FIGURE it is back: used evenly after %s; %d requests failed, the last one after %s",
			seconds(at, c.even(at, slices.Concat(aws, gcp)...)), failed, seconds(at, last))
	}
	m.answered(t, ns, 8888, slices.Concat(aws, gcp)...)
}
