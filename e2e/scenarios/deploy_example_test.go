package scenarios_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed/sandbox"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/docstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/tools"
)

// example is the pair of clusters of deploy/example, with different options: Calico in the
// second one has only the older API.
type example struct {
	testbed  *testbed.Testbed
	folder   string // deploy/example
	clusters [2]*testbed.Cluster
	pods     [2]*testbed.Pod // one on the first node of each cluster
	policies [2]*runningPod  // semaphore-policy, once it has been started
	audits   [2]string       // logs of the requests to the API servers
}

// calico are the APIs of Calico of the clusters, by the names of the files in
// policy/testdata.
var calico = [2]schema.GroupVersionResource{
	{Group: "projectcalico.org", Version: "v3", Resource: "globalnetworksets"},
	{Group: "crd.projectcalico.org", Version: "v1", Resource: "globalnetworksets"},
}

// sets is an administrator's client of the network sets of a cluster.
func (e *example) sets(cluster int) dynamic.ResourceInterface {
	return e.clusters[cluster].Dynamic().Resource(calico[cluster])
}

// startExample starts the clusters, with two nodes each, and installs the example as
// documented.
func startExample(t *testing.T) *example {
	t.Helper()
	tb := testbed.Start(t, testbed.Config{})
	e := &example{testbed: tb, folder: filepath.Join(deployFolder(t), "example")}
	var configs []testbed.ClusterConfig
	for i, name := range []string{"aws", "gcp"} {
		e.audits[i] = filepath.Join(t.TempDir(), name+".log")
		configs = append(configs, testbed.ClusterConfig{Name: name, APIServerArgs: auditArgs(t, e.audits[i])})
	}
	clusters, err := tb.StartClusters(within(t, 3*time.Minute), configs...)
	must(t, err)
	e.clusters = [2]*testbed.Cluster(clusters)
	for i, c := range e.clusters {
		// Calico's, which semaphore-policy writes to.
		must(t, c.Apply(t.Context(), filepath.Join(filepath.Dir(deployFolder(t)), "policy", "testdata", calico[i].Version+".yaml")))
		e.kubectl(t, c, "apply", "-k", filepath.Join(e.folder, c.Name))
		publishAuthority(t, c)
		for range 2 {
			_, err := c.AddNode(t.Context(), testbed.NodeConfig{})
			must(t, err)
		}
		e.pods[i], err = c.Nodes()[0].AddPod(t.Context(), testbed.PodConfig{})
		must(t, err)
		must(t, e.pods[i].Serve(t.Context(), programs.PodPort, nil))
	}
	e.handOver(t, "aws", "gcp")
	e.handOver(t, "gcp", "aws")
	return e
}

func (e *example) kubectl(t *testing.T, c *testbed.Cluster, args ...string) string {
	t.Helper()
	out, err := c.Kubectl(t.Context(), args...)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return out
}

// set adds a setting to the ConfigMap that all programs of a cluster read.
func (e *example) set(t *testing.T, c *testbed.Cluster, variable, value string) {
	t.Helper()
	maps := c.Client().CoreV1().ConfigMaps(systemNamespace)
	list, err := maps.List(t.Context(), metav1.ListOptions{})
	must(t, err)
	i := slices.IndexFunc(list.Items, func(m corev1.ConfigMap) bool { return strings.HasPrefix(m.Name, "semaphore-") })
	if i < 0 {
		t.Fatalf("no settings in %s", c.Name)
	}
	list.Items[i].Data[variable] = value
	_, err = maps.Update(t.Context(), &list.Items[i], metav1.UpdateOptions{})
	must(t, err)
}

// shell runs a command in the root of the repository.
func (e *example) shell(t *testing.T, name, command string) (string, error) {
	t.Helper()
	root, err := tools.Root(t.Context())
	must(t, err)
	return shell(t, e.testbed, e.clusters[0].Nodes()[0], program(t, "semaphorectl"), root, name, command)
}

// shell runs a command in a folder, with kubectl, a semaphorectl and a kubeconfig that has a
// context for each cluster, the first one by default. It returns what the command printed.
func shell(t *testing.T, tb *testbed.Testbed, node *testbed.Node, semaphorectl, dir, name, command string) (string, error) {
	t.Helper()
	kubeconfig, err := tb.Kubeconfig()
	must(t, err)
	binaries, err := tools.Build(t.Context(), t.Output(), tools.Kubectl)
	must(t, err)
	process, err := node.Start(sandbox.Command{
		Name: name,
		Path: "/bin/bash",
		Args: []string{"-euo", "pipefail", "-c", "cd " + dir + "\n" + command},
		Env: []string{
			"PATH=" + filepath.Dir(binaries[tools.Kubectl]) + ":" + filepath.Dir(semaphorectl) + ":" + os.Getenv("PATH"),
			"KUBECONFIG=" + kubeconfig,
			"HOME=" + t.TempDir(),
		},
	})
	must(t, err)
	select {
	case <-process.Done():
	case <-within(t, time.Minute).Done():
		process.Kill()
	}
	return process.Log(), process.Err()
}

// handOverLess hands over to a neighbour without some of the tools.
func (e *example) handOverLess(t *testing.T) {
	const command = "semaphorectl tokens --from gcp aws gcp"
	e.kubectl(t, e.clusters[1], "-n", systemNamespace, "delete", "secret", "semaphore-policy-remote-aws")
	if out, err := e.shell(t, "hand-over-less", command); err != nil || !strings.Contains(out, "gcp: the Secret semaphore-policy-remote-aws is missing") ||
		!strings.Contains(out, "aws has new tokens for gcp: wireguard, mirror") {
		t.Errorf("without the Secret of one tool: %v\n%s", err, out)
	}
	e.kubectl(t, e.clusters[1], "-n", systemNamespace, "delete", "secret", "semaphore-wireguard-remote-aws", "semaphore-service-mirror-remote-aws")
	if out, err := e.shell(t, "hand-over-nothing", command); err == nil || !strings.Contains(out, "gcp: it has no accounts for aws") {
		t.Errorf("without any Secret: %v\n%s", err, out)
	}
}

// documents runs the documented commands against the API servers: kubectl, and semaphorectl
// tokens. Those that uninstall the example are in takeOut.
func (e *example) documents(t *testing.T) {
	commands, err := docstest.Commands(docstest.Example)
	must(t, err)
	e.originalDaemonSet(t)
	const mirror = "aws-default-73736d-fluentd"
	// Without labels, by which commands before those that read it delete all mirrors.
	e.kubectl(t, e.clusters[0], "-n", systemNamespace, "create", "service", "clusterip", mirror, "--tcp=80")
	defer e.kubectl(t, e.clusters[0], "-n", systemNamespace, "delete", "service", mirror)
	defer e.servePools(t, "remote-gcp", "remote-gcp-2")()
	for i, c := range commands {
		node := e.clusters[0].Nodes()[0].Name
		if regexp.MustCompile(`--context[ =]` + e.clusters[1].Name).MatchString(c.Text) {
			node = e.clusters[1].Nodes()[0].Name
		}
		// Commands in pipelines need other arguments.
		command, _, _ := strings.Cut(strings.NewReplacer("NODE", node, "MIRROR", mirror).Replace(c.Text), " | ")
		if strings.Contains(command, "-cleanup") || strings.Contains(command, " delete -k ") {
			continue
		}
		if strings.HasPrefix(command, "kubectl ") {
			// Without a controller manager a delete waits forever.
			command += " --request-timeout=30s"
		}
		if out, err := e.shell(t, fmt.Sprintf("document-%d", i), command); err != nil {
			t.Errorf("%s\n%v\n%s", c, err, out)
		}
	}
}

// servePools makes the API server of aws serve Calico's IP pools, with those that the documents name,
// until the returned function is called.
func (e *example) servePools(t *testing.T, names ...string) (end func()) {
	t.Helper()
	aws := e.clusters[0]
	must(t, aws.Apply(t.Context(), filepath.Join(filepath.Dir(deployFolder(t)), "policy", "testdata", "pools.yaml")))
	for i, name := range names {
		must(t, testbed.Wait(within(t, time.Minute), "IP pool "+name, func(ctx context.Context) error {
			_, err := aws.Dynamic().Resource(poolsResource).Create(ctx, &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "projectcalico.org/v3", "kind": "IPPool", "metadata": map[string]any{"name": name},
				"spec": map[string]any{"cidr": fmt.Sprintf("10.%d.0.0/16", 4+i), "disabled": true},
			}}, metav1.CreateOptions{})
			return err
		}))
	}
	return func() {
		e.kubectl(t, aws, "delete", "customresourcedefinition", poolsResource.Resource+"."+poolsResource.Group)
	}
}

// originalDaemonSet creates the DaemonSet of the original tool.
func (e *example) originalDaemonSet(t *testing.T) {
	t.Helper()
	labels := map[string]string{"app": programs.WireGuard}
	_, err := e.clusters[0].Client().AppsV1().DaemonSets("kube-system").Create(t.Context(), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: programs.WireGuard, Labels: labels},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: programs.WireGuard, Image: "original"}}},
			},
		},
	}, metav1.CreateOptions{})
	must(t, err)
}

// kubelet returns one for a node. The address of the other cluster's API server is
// the only thing in the example that the testbed has another value for.
func (e *example) kubelet(c *testbed.Cluster, node int) *kubelet {
	other := e.clusters[0]
	if other == c {
		other = e.clusters[1]
	}
	return &kubelet{
		node:     c.Nodes()[node],
		override: map[string]string{programs.Variable(other.Name, "API_URL"): other.APIURL()},
	}
}

// agents runs the DaemonSet from the API server on all nodes of a cluster.
func (e *example) agents(t *testing.T, c *testbed.Cluster, name string) []*runningPod {
	t.Helper()
	set, err := c.Client().AppsV1().DaemonSets(systemNamespace).Get(t.Context(), programs.WireGuard, metav1.GetOptions{})
	must(t, err)
	var running []*runningPod
	for i := range c.Nodes() {
		running = append(running, e.kubelet(c, i).run(t, name, &set.Spec.Template))
	}
	return running
}

// follow replaces an agent with the DaemonSet's strategy: the next one is ready before the
// old one ends. It returns the next one.
func (e *example) follow(t *testing.T, old *runningPod) *runningPod {
	t.Helper()
	c := old.kubelet.node.Cluster
	set, err := c.Client().AppsV1().DaemonSets(systemNamespace).Get(t.Context(), programs.WireGuard, metav1.GetOptions{})
	must(t, err)
	rolling := set.Spec.UpdateStrategy.RollingUpdate
	if rolling.MaxSurge.IntValue() != 1 || rolling.MaxUnavailable.IntValue() != 0 {
		t.Fatalf("the strategy of %s is %v", set.Name, rolling)
	}
	next := old.kubelet.run(t, "next-agent", &set.Spec.Template)
	next.waitReady(t, time.Minute)
	standsBy := func(ctx context.Context, want bool) error {
		// Its exit code is about the mesh.
		out, err := next.exec(ctx, []string{"/bin/semaphore-wireguard", "status"})
		if strings.Contains(out, "stands by") != want || !strings.Contains(out, "node "+next.kubelet.node.Name) {
			return fmt.Errorf("status: %w\n%s", err, out)
		}
		return nil
	}
	must(t, standsBy(within(t, time.Minute), true))
	must(t, old.Stop(within(t, time.Minute)))
	eventually(t, time.Minute, "the next agent to act", func(ctx context.Context) error { return standsBy(ctx, false) })
	next.waitReady(t, time.Minute)
	return next
}

// deployment runs one replica of a Deployment from the API server on a node.
func (e *example) deployment(t *testing.T, c *testbed.Cluster, name string, node int) *runningPod {
	t.Helper()
	deployment, err := c.Client().AppsV1().Deployments(systemNamespace).Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
	return e.kubelet(c, node).run(t, name, &deployment.Spec.Template)
}

// TestExample installs the example in two clusters, runs its pods, and uninstalls it.
func TestExample(t *testing.T) {
	t.Parallel()
	e := startExample(t)
	var agents, all []*runningPod
	for i, c := range e.clusters {
		agents = append(agents, e.agents(t, c, "agent")...)
		e.policies[i] = e.deployment(t, c, programs.Policy, 1)
		all = append(all, e.deployment(t, c, programs.ServiceMirror, 0), e.policies[i])
	}
	all = append(all, agents...)
	for _, pod := range all {
		pod.waitReady(t, 2*time.Minute)
	}
	t.Run("pods reach each other", func(t *testing.T) {
		must(t, programs.WaitReach(within(t, time.Minute), e.pods[0], e.pods[1]))
		must(t, programs.WaitReach(within(t, time.Minute), e.pods[1], e.pods[0]))
	})
	for i, from := range e.clusters {
		to := e.clusters[1-i]
		t.Run("a service of "+from.Name+" has a name in "+to.Name, func(t *testing.T) { e.mirrors(t, i) })
		t.Run("a pod of "+from.Name+" is in a network set in "+to.Name, func(t *testing.T) { e.guards(t, i) })
		t.Run("another writer changes that set in "+to.Name, func(t *testing.T) { e.contested(t, i) })
	}
	t.Run("Events inform operators", e.events)
	t.Run("agents are rolled out", func(t *testing.T) {
		for i, old := range agents {
			next := e.follow(t, old)
			all[slices.Index(all, old)], agents[i] = next, next
		}
		must(t, programs.WaitReach(within(t, time.Minute), e.pods[0], e.pods[1]))
		must(t, programs.WaitReach(within(t, time.Minute), e.pods[1], e.pods[0]))
	})
	t.Run("paths that are down are reported", e.reports)
	t.Run("tokens are renewed", func(t *testing.T) {
		for _, c := range e.clusters {
			must(t, e.renew(t, c, "tokens", "-all"))
		}
	})
	for _, pod := range all {
		if strings.Contains(pod.Log(), "forbidden: User") {
			t.Errorf("%s lacks a right:\n%s", pod.Command().Name, pod.Tail(20))
		}
		must(t, pod.Stop(within(t, time.Minute)))
	}
	if _, err := onlyEvent(t.Context(), e.clusters[0], "NodeRejected"); err != nil {
		t.Errorf("both agents report one node: %v", err)
	}
	t.Run("the documents' commands work", e.documents)
	t.Run("a neighbour that gets less, or nothing", e.handOverLess)
	granted := granted(t, e.clusters[:]...)
	maps.DeleteFunc(granted, func(r right, _ bool) bool { return r.forImports() })
	t.Run("taken out, nothing is left", e.takeOut)
	t.Run("every right was needed", func(t *testing.T) { compareRights(t, granted, used(t, e.audits[:]...)) })
}

// reports breaks all paths between the clusters, node by node, so that each has to update its
// report, and repairs them.
func (e *example) reports(t *testing.T) {
	each := func(do func(a, b *testbed.Node) error, chosen func(i, j int) bool) {
		for i, a := range e.clusters[0].Nodes() {
			for j, b := range e.clusters[1].Nodes() {
				if chosen(i, j) {
					must(t, do(a, b))
				}
			}
		}
	}
	each(e.testbed.Drop, func(i, j int) bool { return i == j })
	for _, c := range e.clusters {
		waitReports(t, c, len(c.Nodes()))
	}
	each(e.testbed.Drop, func(i, j int) bool { return i != j })
	for i, c := range e.clusters {
		remote := e.clusters[1-i]
		eventually(t, repair, "all of "+c.Name+" report all of "+remote.Name, func(ctx context.Context) error {
			all, err := programs.Reports(ctx, c)
			for _, r := range all {
				down := r.Remotes[remote.Name]
				for _, n := range remote.Nodes() {
					if !down.Has(n.Name) {
						err = errors.Join(err, fmt.Errorf("%s doesn't report %s", r.Node, n.Name))
					}
				}
			}
			return err
		})
	}
	each(e.testbed.Restore, func(int, int) bool { return true })
	for _, c := range e.clusters {
		waitReports(t, c, 0)
	}
}
