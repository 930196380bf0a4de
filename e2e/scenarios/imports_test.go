package scenarios_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/tools"
	"github.com/kube-semaphore/kube-semaphore/mirror/mcs"
)

// imports is a mesh of three clusters that semaphorectl has joined, with the Multi-Cluster
// Services API. aws and gcp have two nodes; merit, which exports nothing, has one. kube-proxy is in
// nftables mode on the first node of a cluster, and in iptables mode on the second one.
type imports struct {
	*administrator
	clusters        []*testbed.Cluster // aws, gcp and merit
	aws, gcp, merit *testbed.Cluster
	api             map[*testbed.Cluster]kube.Client
	dns             map[*testbed.Cluster]*programs.DNS
	servers         map[*testbed.Cluster][]*testbed.Pod // one on each node
	clients         []*testbed.Pod                      // one on each node, of all clusters
	audits          []string                            // logs of the requests to the API servers
}

func startImports(t *testing.T) *imports {
	t.Helper()
	tb := testbed.Start(t, testbed.Config{}, tools.KubeProxy, tools.CoreDNS)
	t.Cleanup(func() { soundLogs(t, tb) })
	ctx := within(t, 10*time.Minute)
	var configs []testbed.ClusterConfig
	var audits []string
	for _, name := range []string{"aws", "gcp", "merit"} {
		audits = append(audits, filepath.Join(t.TempDir(), name+".log"))
		configs = append(configs, testbed.ClusterConfig{Name: name, APIServerArgs: auditArgs(t, audits[len(audits)-1])})
	}
	clusters, err := tb.StartClusters(ctx, configs...)
	must(t, err)
	m := &imports{
		administrator: newAdministrator(t, tb), clusters: clusters, aws: clusters[0], gcp: clusters[1], merit: clusters[2],
		api: map[*testbed.Cluster]kube.Client{}, dns: map[*testbed.Cluster]*programs.DNS{}, servers: map[*testbed.Cluster][]*testbed.Pod{}, audits: audits,
	}
	args := []string{"join", "--yes", "--no-probe", "--tools", "wireguard,mirror"}
	for _, c := range clusters {
		must(t, programs.InstallDNS(ctx, c))
		m.api[c] = multiclusterWith(t, c, "")
		modes := []string{"nftables", "iptables"}
		if c == m.merit {
			modes = modes[:1]
		}
		for _, mode := range modes {
			node, err := c.AddNode(ctx, testbed.NodeConfig{})
			must(t, err)
			must(t, node.Masquerade(ctx))
			_, err = node.StartKubeProxy(ctx, "--proxy-mode="+mode)
			must(t, err)
			m.servers[c] = append(m.servers[c], m.pod(t, node))
			client, err := node.AddPod(ctx, testbed.PodConfig{})
			must(t, err)
			m.clients = append(m.clients, client)
		}
		args = append(args, "--pod-subnets", fmt.Sprintf("%s=%s %s", c.Name, c.PodSubnets[0], c.PodSubnets[1]))
	}
	agent := program(t, programs.WireGuard)
	fakeKubelet := programs.StartFakeKubelet(t.Context(), t.TempDir(), map[string]string{
		programs.WireGuard: agent, programs.ServiceMirror: program(t, programs.ServiceMirror), programs.Engine: filepath.Join(filepath.Dir(agent), programs.Engine),
	}, clusters...)
	t.Cleanup(fakeKubelet.Stop)
	out, code, err := m.run(ctx, append(args, "aws", "gcp", "merit")...)
	must(t, err)
	t.Logf("semaphorectl join: exit code %d\n%s", code, out)
	if code != 0 {
		t.Fatal(fakeKubelet.Err())
	}
	binaries, err := tools.Build(ctx, t.Output(), tools.CoreDNS)
	must(t, err)
	for _, c := range clusters {
		m.dns[c], err = programs.StartInstalledDNS(ctx, binaries[tools.CoreDNS], c.Nodes()[0], t.TempDir())
		must(t, err)
	}
	for _, from := range m.clients {
		for _, to := range slices.Concat(m.servers[m.aws], m.servers[m.gcp]) {
			must(t, programs.WaitReach(within(t, patient), from, to))
		}
	}
	return m
}

// pod adds a pod that serves.
func (m *imports) pod(t *testing.T, node *testbed.Node) *testbed.Pod {
	t.Helper()
	pod, err := node.AddPod(t.Context(), testbed.PodConfig{})
	must(t, err)
	must(t, pod.Serve(t.Context(), programs.PodPort, nil))
	return pod
}

// web returns a Service web of both families.
func web(adjust ...func(*corev1.Service)) *corev1.Service {
	s := service("web")
	both := corev1.IPFamilyPolicyPreferDualStack
	s.Spec.IPFamilyPolicy = &both
	for _, a := range adjust {
		if a != nil {
			a(s)
		}
	}
	return s
}

func headless(s *corev1.Service) { s.Spec.ClusterIP = corev1.ClusterIPNone }

// port adds a port, or changes that of the same name.
func port(name string, number int32, protocol corev1.Protocol) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.Ports = append(slices.DeleteFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == name }),
			corev1.ServicePort{Name: name, Port: number, Protocol: protocol})
	}
}

// in creates a namespace in clusters.
func (m *imports) in(t *testing.T, ns string, clusters ...*testbed.Cluster) {
	t.Helper()
	for _, c := range clusters {
		_, err := c.Client().CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{})
		must(t, err)
	}
}

func (m *imports) export(t *testing.T, c *testbed.Cluster, ns string, adjust ...func(*v1beta1.ServiceExport)) {
	t.Helper()
	x := &v1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: map[string]string{"private": "export"}}}
	for _, a := range adjust {
		if a != nil {
			a(x)
		}
	}
	_, err := m.api[c].ServiceExports(ns).Create(t.Context(), x, metav1.CreateOptions{})
	must(t, err)
}

func (m *imports) unexport(t *testing.T, c *testbed.Cluster, ns string) {
	t.Helper()
	must(t, m.api[c].ServiceExports(ns).Delete(t.Context(), "web", metav1.DeleteOptions{}))
}

// exported waits for conditions of an export, as in "Valid=True Valid".
func (m *imports) exported(t *testing.T, c *testbed.Cluster, ns string, want ...string) {
	t.Helper()
	eventually(t, patient, "the conditions of the export in "+c.Name, func(ctx context.Context) error {
		x, err := m.api[c].ServiceExports(ns).Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return err
		}
		var got []string
		for _, of := range x.Status.Conditions {
			if of.ObservedGeneration == x.Generation {
				got = append(got, fmt.Sprintf("%s=%s %s", of.Type, of.Status, of.Reason))
			}
		}
		for _, w := range want {
			if !slices.Contains(got, w) {
				return fmt.Errorf("%q, want %q", got, want)
			}
		}
		return nil
	})
}

// imported waits until the import is ready and as checked in all clusters, and returns them.
func (m *imports) imported(t *testing.T, ns string, check func(*v1beta1.ServiceImport) error) (all []*v1beta1.ServiceImport) {
	t.Helper()
	for _, c := range m.clusters {
		eventually(t, patient, "the import in "+c.Name, func(ctx context.Context) error {
			i, err := m.api[c].ServiceImports(ns).Get(ctx, "web", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if len(i.Status.Conditions) != 1 || i.Status.Conditions[0].Status != metav1.ConditionTrue || i.Status.Conditions[0].ObservedGeneration != i.Generation {
				return fmt.Errorf("conditions %v", i.Status.Conditions)
			}
			if err := check(i); err != nil {
				return err
			}
			all = append(all, i)
			return nil
		})
	}
	return all
}

// from checks which clusters an import is of.
func from(clusters ...string) func(*v1beta1.ServiceImport) error {
	return func(i *v1beta1.ServiceImport) error {
		var got []string
		for _, c := range i.Status.Clusters {
			got = append(got, c.Cluster)
		}
		if slices.Sort(got); !slices.Equal(got, clusters) {
			return fmt.Errorf("of %v, want %v", got, clusters)
		}
		return nil
	}
}

func (m *imports) slices(ctx context.Context, c *testbed.Cluster, ns string) ([]discoveryv1.EndpointSlice, error) {
	list, err := c.Client().DiscoveryV1().EndpointSlices(ns).List(ctx, metav1.ListOptions{LabelSelector: mcs.LabelServiceName + "=web," + mcs.LabelSourceCluster})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// gone waits until nothing of an import is left in clusters, nor its name.
func (m *imports) gone(t *testing.T, ns string, clusters ...*testbed.Cluster) {
	t.Helper()
	for _, c := range clusters {
		eventually(t, patient, "the end of the import in "+c.Name, func(ctx context.Context) error {
			_, err := m.api[c].ServiceImports(ns).Get(ctx, "web", metav1.GetOptions{})
			if !apierrors.IsNotFound(err) {
				return fmt.Errorf("import: %w", cmpErr(err))
			}
			_, err = c.Client().CoreV1().Services(ns).Get(ctx, mcs.DerivedName(ns, "web"), metav1.GetOptions{})
			if !apierrors.IsNotFound(err) {
				return fmt.Errorf("derived Service: %w", cmpErr(err))
			}
			if left, err := m.slices(ctx, c, ns); err != nil || len(left) > 0 {
				return fmt.Errorf("%d slices: %w", len(left), err)
			}
			return nil
		})
	}
	m.unnamed(t, ns, clusters...)
}

func cmpErr(err error) error {
	if err == nil {
		return errors.New("it exists")
	}
	return err
}

func importName(ns string) string { return "web." + ns + ".svc.clusterset.local" }

// unnamed waits until the name of an import doesn't exist.
func (m *imports) unnamed(t *testing.T, ns string, clusters ...*testbed.Cluster) {
	t.Helper()
	for _, from := range m.clients {
		if !slices.Contains(clusters, from.Node.Cluster) {
			continue
		}
		eventually(t, patient, "no name", func(ctx context.Context) error {
			got, err := m.dns[from.Node.Cluster].Ask(ctx, from, importName(ns), dnsmessage.TypeA)
			if err == nil || err.Error() != dnsmessage.RCodeNameError.String() {
				return fmt.Errorf("%s: %q, %w", from.Name, got, err)
			}
			return nil
		})
	}
}

// named waits until a name has exactly these records in all clusters.
func (m *imports) named(t *testing.T, name string, kind dnsmessage.Type, want ...string) {
	t.Helper()
	for _, c := range m.clusters {
		n := &naming{client: m.clients[slices.IndexFunc(m.clients, func(p *testbed.Pod) bool { return p.Node.Cluster == c })], dns: m.dns[c]}
		n.answers(t, name, kind, want...)
	}
}

// answered waits until requests to an import by name, from each node of all clusters and over all
// addresses, are answered by exactly these pods.
func (m *imports) answered(t *testing.T, ns string, port int, by ...*testbed.Pod) {
	t.Helper()
	m.answeredIn(t, importName(ns), m.clusters, port, by...)
}

// answeredIn is answered for a name in some clusters.
func (m *imports) answeredIn(t *testing.T, name string, clusters []*testbed.Cluster, port int, by ...*testbed.Pod) {
	t.Helper()
	must(t, testbed.InParallel(within(t, patient), len(m.clients), func(ctx context.Context, i int) error {
		if !slices.Contains(clusters, m.clients[i].Node.Cluster) {
			return nil
		}
		return testbed.Wait(ctx, name+" to be answered", func(ctx context.Context) error {
			return m.ask(ctx, m.clients[i], name, port, by)
		})
	}))
}

// addresses resolves the name of an import.
func (m *imports) addresses(ctx context.Context, from *testbed.Pod, name string) (all []string, err error) {
	for _, kind := range []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA} {
		records, err := m.dns[from.Node.Cluster].Ask(ctx, from, name, kind)
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", from.Name, name, err)
		}
		for _, r := range records {
			all = append(all, strings.Fields(r)[2])
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s: %s: no address", from.Name, name)
	}
	return all, nil
}

func (m *imports) ask(ctx context.Context, from *testbed.Pod, name string, port int, by []*testbed.Pod) error {
	addresses, err := m.addresses(ctx, from, name)
	if err != nil {
		return err
	}
	got, want := map[string]bool{}, map[string]bool{}
	for _, pod := range by {
		want[pod.Name] = true
	}
	for i := range 10 * len(addresses) {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		answer, err := from.Get(ctx, "http://"+net.JoinHostPort(addresses[i%len(addresses)], strconv.Itoa(port))+"/")
		cancel()
		if err != nil {
			return err
		}
		pod, _, _ := strings.Cut(answer, " ")
		got[pod] = true
	}
	if !maps.Equal(got, want) {
		return fmt.Errorf("%s: answered by %v, want %v", from.Name, got, want)
	}
	return nil
}

// unanswered checks that requests from each node are not answered.
func (m *imports) unanswered(t *testing.T, ns string, clusters []*testbed.Cluster, port int) {
	t.Helper()
	for _, from := range m.clients {
		if !slices.Contains(clusters, from.Node.Cluster) {
			continue
		}
		addresses, err := m.addresses(t.Context(), from, importName(ns))
		must(t, err)
		for _, a := range addresses {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			answer, err := from.Get(ctx, "http://"+net.JoinHostPort(a, strconv.Itoa(port))+"/")
			cancel()
			if err == nil {
				t.Errorf("%s: port %d of %s answers %q", from.Name, port, a, answer)
			}
		}
	}
}

// sightings are the events of an import, by cluster.
type sightings struct {
	mu  sync.Mutex
	all map[string][]watch.Event
}

func (m *imports) watch(t *testing.T, ns string) *sightings {
	t.Helper()
	s := &sightings{all: map[string][]watch.Event{}}
	for _, c := range m.clusters {
		w, err := m.api[c].ServiceImports(ns).Watch(t.Context(), metav1.ListOptions{})
		must(t, err)
		var done sync.WaitGroup
		done.Go(func() {
			for e := range w.ResultChan() {
				s.mu.Lock()
				s.all[c.Name] = append(s.all[c.Name], e)
				s.mu.Unlock()
			}
		})
		t.Cleanup(func() {
			w.Stop()
			done.Wait()
		})
	}
	return s
}

// complete fails unless imports were first seen with their type and so many ports, and weren't
// deleted since.
func (s *sightings) complete(t *testing.T, kind v1beta1.ServiceImportType, ports int) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) != 3 {
		t.Errorf("seen in %d clusters", len(s.all))
	}
	for cluster, events := range s.all {
		if i, is := events[0].Object.(*v1beta1.ServiceImport); !is || i.Spec.Type != kind || len(i.Spec.Ports) != ports {
			t.Errorf("%s: first seen as %+v", cluster, events[0].Object)
		}
		if slices.ContainsFunc(events, func(e watch.Event) bool { return e.Type == watch.Deleted }) {
			t.Errorf("%s: the import was deleted meanwhile", cluster)
		}
	}
}

// TestImports exports services among three clusters. Each part has a namespace of its name.
func TestImports(t *testing.T) {
	t.Parallel()
	m := startImports(t)
	t.Run("at once", func(t *testing.T) {
		for _, part := range []struct {
			ns   string
			test func(*imports, *testing.T, string)
		}{
			{"one-export", (*imports).oneExport},
			{"headless", (*imports).headlessExport},
			{"union-of-ports", (*imports).unionOfPorts},
			{"conflicts", (*imports).conflicts},
			{"invalid", (*imports).invalid},
			{"namespaces", (*imports).namespaces},
			{"on-the-node", (*imports).onTheNode},
		} {
			t.Run(part.ns, func(t *testing.T) {
				t.Parallel()
				part.test(m, t, part.ns)
			})
		}
	})
	t.Run("a pod is deleted", m.podDeleted)
	t.Run("a cluster fails", m.clusterFails)
	t.Run("moving", m.moving)
	t.Run("moving from another implementation", m.movingFromAnother)
	t.Run("every right was needed", m.rights)
}

// rights compares the rights for imports with those that were used: all of the API, and those in
// all namespaces.
func (m *imports) rights(t *testing.T) {
	others := func(r right, _ bool) bool {
		return !strings.HasPrefix(r.account, programs.ServiceMirror) || r.namespace == systemNamespace || strings.Contains(r.resource, "reviews.")
	}
	granted, used := granted(t, m.clusters...), used(t, m.audits...)
	maps.DeleteFunc(granted, others)
	maps.DeleteFunc(used, others)
	compareRights(t, granted, used)
}
