package scenarios_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed/sandbox"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/tools"
)

// clients is a pair with the service mirror in aws, kube-proxy on all nodes, CoreDNS in aws,
// and a service of gcp that aws mirrors.
type clients struct {
	*surgery
	proxies []*sandbox.Process // by node, those of aws first
	mirror  *programs.Program
	web     *corev1.Service
	table   []string
}

func startClients(t *testing.T) *clients {
	t.Helper()
	nstest.Root(t)
	tb := testbed.Start(t, testbed.Config{}, tools.KubeProxy, tools.CoreDNS)
	binary, mirror := program(t, programs.WireGuard), program(t, programs.ServiceMirror)
	binaries, err := tools.Build(t.Context(), t.Output(), tools.CoreDNS)
	must(t, err)
	ctx := within(t, 5*time.Minute)
	p, err := programs.StartPair(ctx, tb, binary, 2, nil)
	must(t, err)
	must(t, p.WaitConnected(within(t, time.Minute)))
	c := &clients{surgery: &surgery{Pair: p, administrator: administered(t, p)}, web: service("web", "mirror-service=true")}
	putService(t, p.GCP, "shop", c.web, p.Pods[2])
	_, err = p.GCP.Client().CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem}}, metav1.CreateOptions{})
	exists(t, err)
	ctx = within(t, 5*time.Minute) // Building took some of the time.
	must(t, programs.Grant(ctx, programs.ServiceMirror, p.AWS, p.GCP))
	c.mirror, err = programs.Prepare(ctx, programs.Config{Name: programs.ServiceMirror, Binary: mirror, Port: 8080}, p.Agents[0].Node, p.GCP)
	must(t, err)
	must(t, c.mirror.Start())
	c.object(t, c.mirror, programs.ServiceMirror, programs.ServiceMirror)
	text := corefile(t, "gcp")
	c.mirrorObjects(t, 2, text)
	file := filepath.Join(t.TempDir(), "Corefile")
	must(t, os.WriteFile(file, []byte(text), 0o644))
	resolver := map[string]string{}
	for _, agent := range p.Agents {
		c.proxies = append(c.proxies, c.proxy(t, agent.Node))
		if resolver[agent.Node.Cluster.Name] == "" {
			resolver[agent.Node.Cluster.Name] = agent.Node.Addresses()[0].String()
		}
		must(t, agent.Node.Masquerade(ctx))
	}
	_, err = programs.StartDNSWith(ctx, binaries[tools.CoreDNS], p.Agents[0].Node, file)
	must(t, err)
	runTemporaryPods(t, resolver, p.AWS, p.GCP)
	return c
}

func (c *clients) proxy(t *testing.T, node *testbed.Node) *sandbox.Process {
	t.Helper()
	process, err := node.StartKubeProxy(t.Context())
	must(t, err)
	return process
}

// well waits until doctor finds no fault, and everything that it asks is answered.
func (c *clients) well(t *testing.T) {
	t.Helper()
	eventually(t, 3*time.Minute, "doctor to find all well", func(ctx context.Context) error {
		var d diagnosis
		code, err := c.diagnose(ctx, &d)
		if err == nil && (code != 0 || d.Verdict != "well") {
			err = fmt.Errorf("code %d: %s", code, causesOf(&d))
		}
		return err
	})
}

// named checks that doctor names a fault, and no other.
func (c *clients) named(t *testing.T, fault, want string, args ...string) {
	t.Helper()
	var last diagnosis
	began := time.Now()
	eventually(t, 2*time.Minute, "doctor to name: "+fault, func(ctx context.Context) error {
		last = diagnosis{}
		code, err := c.diagnose(ctx, &last, args...)
		if err == nil && last.Verdict == "well" {
			t.Errorf("%s: doctor says that all is well", fault)
		}
		if err == nil && (code != 1 || !slices.Equal(last.ids(), strings.Fields(want))) {
			err = fmt.Errorf("code %d: %s", code, causesOf(&last))
		}
		return err
	})
	what := ""
	if len(last.Causes) > 0 {
		what = last.Causes[0].What
	}
	c.table = append(c.table, fmt.Sprintf("%-52s %-26s %.1f s: %s", fault, strings.Join(last.ids(), " "), time.Since(began).Seconds(), what))
}

// TestDoctorAsClients causes faults that only clients of services see, and those that only
// a look at both ends shows, and checks that doctor names them.
func TestDoctorAsClients(t *testing.T) {
	t.Parallel()
	c := startClients(t)
	defer func() {
		for _, line := range c.table {
			t.Log(line)
		}
	}()
	c.well(t)

	c.proxies[0].Kill()
	<-c.proxies[0].Done()
	c.named(t, "kube-proxy stopped on a node, its rules remain", "cluster-ip-unanswered")
	c.proxies[0] = c.proxy(t, c.Agents[0].Node)
	c.well(t)

	c.shell(t, 2, "nft 'table ip denies { chain through { type filter hook forward priority 0; ip saddr 10.2.0.0/16 tcp dport 80 drop; }; }'")
	c.named(t, "a policy that denies the other cluster's pods", "service-denied")
	c.shell(t, 2, "nft delete table ip denies")

	setPods(t, c.GCP, "shop", c.web)
	c.named(t, "an origin without ready endpoints", "origin-without-endpoints")
	var view statusView
	code, err := c.ask(t.Context(), &view, "status", "aws", "gcp")
	must(t, err)
	if code != 1 || !slices.ContainsFunc(view.Wrong, func(line string) bool { return strings.Contains(line, "shop/web of gcp has no ready endpoints") }) {
		t.Errorf("status ends with %d: %q", code, view.Wrong)
	}
	setPods(t, c.GCP, "shop", c.web, c.Pods[2])
	c.well(t)

	c.shell(t, 0, "nft 'table inet denies { chain in { type filter hook input priority 0; udp dport 53 drop; tcp dport 53 drop; }; }'")
	c.named(t, "DNS doesn't answer", "dns-unanswered")
	c.shell(t, 0, "nft delete table inet denies")
	c.well(t)

	c.GCP.StopAPI()
	for _, gcp := range c.Agents[2:] {
		for _, aws := range c.Agents[:2] {
			must(t, c.Testbed.Drop(aws.Node, gcp.Node))
		}
	}
	died := time.Now()
	c.named(t, "a dead cluster, soon after", "cluster-away")
	if rest := time.Until(died.Add(75 * time.Second)); rest > 0 {
		select {
		case <-time.After(rest):
		case <-t.Context().Done():
		}
	}
	c.named(t, "a dead cluster, after 75 s", "cluster-away")
}
