package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kube-semaphore/kube-semaphore/e2e/guide"
	"github.com/kube-semaphore/kube-semaphore/e2e/mesh"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed/sandbox"
	"github.com/kube-semaphore/kube-semaphore/e2e/tools"
)

// example is the pair of clusters of deploy/example.
type example struct {
	folder   string // deploy/example
	clusters [2]*testbed.Cluster
	pods     [2]*testbed.Pod // one on the first node of each cluster
	audit    string          // log of the requests to the first cluster's API server
}

// startExample starts the clusters, with two nodes each, and does what the
// example tells an operator to do.
func startExample(t *testing.T) *example {
	t.Helper()
	tb := testbed.Start(t, testbed.Config{})
	e := &example{folder: filepath.Join(deployFolder(t), "example"), audit: filepath.Join(t.TempDir(), "audit.log")}
	clusters, err := tb.StartClusters(within(t, 3*time.Minute),
		testbed.ClusterConfig{Name: "aws", APIServerArgs: auditArgs(t, e.audit)}, testbed.ClusterConfig{Name: "gcp"})
	must(t, err)
	e.clusters = [2]*testbed.Cluster(clusters)
	for i, c := range e.clusters {
		// Calico's, which semaphore-policy writes to.
		must(t, c.Apply(t.Context(), filepath.Join(filepath.Dir(deployFolder(t)), "policy", "testdata", "v3.yaml")))
		e.kubectl(t, c, "apply", "-k", filepath.Join(e.folder, c.Name))
		issueTokens(t, c)
		for range 2 {
			_, err := c.AddNode(t.Context(), testbed.NodeConfig{})
			must(t, err)
		}
		e.pods[i], err = c.Nodes()[0].AddPod(t.Context(), testbed.PodConfig{})
		must(t, err)
		must(t, e.pods[i].Serve(t.Context(), mesh.PodPort, nil))
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

// issueTokens does what the token controller of a cluster's controller manager
// does: it fills Secrets that ask for the token of an account.
func issueTokens(t *testing.T, c *testbed.Cluster) {
	t.Helper()
	ca, err := os.ReadFile(c.CAFile())
	must(t, err)
	core := c.Client().CoreV1()
	secrets, err := core.Secrets(systemNamespace).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for i := range secrets.Items {
		secret := &secrets.Items[i]
		if secret.Type != corev1.SecretTypeServiceAccountToken {
			continue
		}
		account := secret.Annotations[corev1.ServiceAccountNameKey]
		token, err := core.ServiceAccounts(systemNamespace).CreateToken(t.Context(), account, &authenticationv1.TokenRequest{
			Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{
				APIVersion: "v1", Kind: "Secret", Name: secret.Name, UID: secret.UID,
			}},
		}, metav1.CreateOptions{})
		must(t, err)
		secret.Data = map[string][]byte{"token": []byte(token.Status.Token), "ca.crt": ca, "namespace": []byte(systemNamespace)}
		_, err = core.Secrets(systemNamespace).Update(t.Context(), secret, metav1.UpdateOptions{})
		must(t, err)
	}
}

// shell runs a command in the root of the repository, with kubectl and a
// kubeconfig that has a context for each of the clusters, the first one by
// default. It returns what the command printed.
func (e *example) shell(t *testing.T, name, command string) (string, error) {
	t.Helper()
	config := clientcmdapi.NewConfig()
	config.CurrentContext = e.clusters[0].Name
	for _, c := range e.clusters {
		admin, err := clientcmd.LoadFromFile(c.AdminKubeconfig())
		must(t, err)
		context := admin.Contexts[admin.CurrentContext]
		config.Clusters[c.Name] = admin.Clusters[context.Cluster]
		config.AuthInfos[c.Name] = admin.AuthInfos[context.AuthInfo]
		config.Contexts[c.Name] = &clientcmdapi.Context{Cluster: c.Name, AuthInfo: c.Name}
	}
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	must(t, clientcmd.WriteToFile(*config, kubeconfig))
	binaries, err := tools.Build(t.Context(), tools.Config{Progress: t.Output()}, tools.Kubectl)
	must(t, err)
	root, err := mesh.Root(t.Context())
	must(t, err)
	process, err := e.clusters[0].Nodes()[0].Start(sandbox.Command{
		Name: name,
		Path: "/bin/bash",
		Args: []string{"-euo", "pipefail", "-c", "cd " + root + "\n" + command},
		Env: []string{
			"PATH=" + filepath.Dir(binaries[tools.Kubectl]) + ":" + os.Getenv("PATH"),
			"KUBECONFIG=" + kubeconfig,
			"HOME=" + dir,
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

// handOver runs deploy/remote/hand-over.
func (e *example) handOver(t *testing.T, from, to string) {
	t.Helper()
	out, err := e.shell(t, "hand-over-"+from, "deploy/remote/hand-over "+from+" "+to)
	if err != nil {
		t.Fatalf("hand-over: %v\n%s", err, out)
	}
	for line := range strings.Lines(out) {
		if !strings.HasSuffix(strings.TrimSpace(line), "serverside-applied") {
			t.Errorf("hand-over prints %q", line)
		}
	}
}

// handOverLess hands over to a neighbour that isn't to run all of the tools.
func (e *example) handOverLess(t *testing.T) {
	command := "deploy/remote/hand-over gcp aws"
	e.kubectl(t, e.clusters[1], "-n", systemNamespace, "delete", "secret", "semaphore-policy-remote-aws")
	if out, err := e.shell(t, "hand-over-less", command); err != nil || !strings.Contains(out, "gcp: no Secret semaphore-policy-remote-aws") ||
		strings.Count(out, "serverside-applied") != 2 {
		t.Errorf("without the Secret of one tool: %v\n%s", err, out)
	}
	e.kubectl(t, e.clusters[1], "-n", systemNamespace, "delete", "secret", "semaphore-wireguard-remote-aws", "semaphore-service-mirror-remote-aws")
	if out, err := e.shell(t, "hand-over-nothing", command); err == nil || !strings.Contains(out, "gcp: there is nothing for aws") {
		t.Errorf("without any Secret: %v\n%s", err, out)
	}
}

// documents runs what the documents tell an operator to run against the API
// servers: kubectl, and hand-over. What takes the example out comes last, in
// takeOut.
func (e *example) documents(t *testing.T) {
	commands, err := guide.Commands(guide.Example)
	must(t, err)
	e.originalDaemonSet(t)
	for i, c := range commands {
		node := e.clusters[0].Nodes()[0].Name
		if regexp.MustCompile(`--context[ =]` + e.clusters[1].Name).MatchString(c.Text) {
			node = e.clusters[1].Nodes()[0].Name
		}
		// What a command hands to another one is text.
		command, _, _ := strings.Cut(strings.NewReplacer("NODE", node, "MIRROR", "aws-default-73736d-fluentd").Replace(c.Text), " | ")
		if strings.Contains(command, "-cleanup") || strings.Contains(command, " delete -k ") {
			continue
		}
		if strings.HasPrefix(command, "kubectl ") {
			// Not for ever, as a delete would without a controller manager.
			command += " --request-timeout=30s"
		}
		if out, err := e.shell(t, fmt.Sprintf("document-%d", i), command); err != nil {
			t.Errorf("%s\n%v\n%s", c, err, out)
		}
	}
}

// originalDaemonSet makes the one that an operator has who moves over from the
// original tool.
func (e *example) originalDaemonSet(t *testing.T) {
	t.Helper()
	labels := map[string]string{"app": "semaphore-wireguard"}
	_, err := e.clusters[0].Client().AppsV1().DaemonSets("kube-system").Create(t.Context(), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "semaphore-wireguard", Labels: labels},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "semaphore-wireguard", Image: "original"}}},
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
		override: map[string]string{mesh.Variable(other.Name, "API_URL"): other.APIURL()},
	}
}

// agents runs the DaemonSet, as the API server has it, on all nodes of a cluster.
func (e *example) agents(t *testing.T, c *testbed.Cluster, name string) []*runningPod {
	t.Helper()
	set, err := c.Client().AppsV1().DaemonSets(systemNamespace).Get(t.Context(), "semaphore-wireguard", metav1.GetOptions{})
	must(t, err)
	var running []*runningPod
	for i := range c.Nodes() {
		running = append(running, e.kubelet(c, i).run(t, name, &set.Spec.Template))
	}
	return running
}

// deployment runs one replica of a Deployment, as the API server has it, on a node.
func (e *example) deployment(t *testing.T, c *testbed.Cluster, name string, node int) *runningPod {
	t.Helper()
	deployment, err := c.Client().AppsV1().Deployments(systemNamespace).Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
	return e.kubelet(c, node).run(t, name, &deployment.Spec.Template)
}

// TestExample installs the example in two clusters, runs what it deploys as it is
// deployed, and takes it out again.
func TestExample(t *testing.T) {
	e := startExample(t)
	var agents, all []*runningPod
	for _, c := range e.clusters {
		agents = append(agents, e.agents(t, c, "agent")...)
		all = append(all, e.deployment(t, c, "semaphore-service-mirror", 0), e.deployment(t, c, "semaphore-policy", 1))
	}
	all = append(all, agents...)
	for _, pod := range all {
		pod.waitReady(t, 2*time.Minute)
	}
	t.Run("pods reach each other", func(t *testing.T) {
		must(t, mesh.WaitReach(within(t, time.Minute), e.pods[0], e.pods[1]))
		must(t, mesh.WaitReach(within(t, time.Minute), e.pods[1], e.pods[0]))
	})
	for i, from := range e.clusters {
		to := e.clusters[1-i]
		t.Run("a service of "+from.Name+" has a name in "+to.Name, func(t *testing.T) { e.mirrors(t, i) })
		t.Run("a pod of "+from.Name+" is in a network set in "+to.Name, func(t *testing.T) { e.guards(t, i) })
	}
	for _, pod := range all {
		if strings.Contains(pod.Log(), "forbidden: User") {
			t.Errorf("%s lacks a right:\n%s", pod.Command().Name, pod.Tail(20))
		}
		must(t, pod.Stop(within(t, 30*time.Second)))
	}
	t.Run("the documents' commands work", e.documents)
	t.Run("a neighbour that gets less, or nothing", e.handOverLess)
	granted := granted(t, e.clusters[0])
	t.Run("taken out, nothing is left", e.takeOut)
	t.Run("every right was needed", func(t *testing.T) { compareRights(t, granted, used(t, e.audit)) })
}

// mirrors makes a service in one of the clusters, waits for it in the other one,
// changes it and deletes it.
func (e *example) mirrors(t *testing.T, from int) {
	remote, local := e.clusters[from].Client(), e.clusters[1-from].Client()
	mirror := e.clusters[from].Name + "-default-73736d-fluentd"
	labels := map[string]string{"mirror.semaphore.uw.io/mirror-service": "true", discoveryv1.LabelServiceName: "fluentd"}
	ready, port, protocol := true, int32(8888), corev1.ProtocolTCP
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "fluentd-1", Labels: labels},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{
			Addresses:  []string{e.pods[from].Addresses[0].String()},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		}},
		Ports: []discoveryv1.EndpointPort{{Port: &port, Protocol: &protocol}},
	}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "fluentd", Labels: labels},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: port}}},
	}
	service, err := remote.CoreV1().Services("default").Create(t.Context(), service, metav1.CreateOptions{})
	must(t, err)
	slice, err = remote.DiscoveryV1().EndpointSlices("default").Create(t.Context(), slice, metav1.CreateOptions{})
	must(t, err)
	mirrored := func(ctx context.Context) error {
		have, err := local.CoreV1().Services(systemNamespace).Get(ctx, mirror, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if have.Spec.Ports[0].Port != port {
			return fmt.Errorf("its port is %d", have.Spec.Ports[0].Port)
		}
		slices, err := local.DiscoveryV1().EndpointSlices(systemNamespace).List(ctx, metav1.ListOptions{
			LabelSelector: discoveryv1.LabelServiceName + "=" + mirror,
		})
		if err == nil && (len(slices.Items) != 1 || *slices.Items[0].Ports[0].Port != port) {
			err = fmt.Errorf("it has the endpoint slices %v", slices.Items)
		}
		return err
	}
	eventually(t, time.Minute, "the mirror", mirrored)

	port = 8889
	service.Spec.Ports[0].Port, slice.Ports[0].Port = port, &port
	_, err = remote.CoreV1().Services("default").Update(t.Context(), service, metav1.UpdateOptions{})
	must(t, err)
	_, err = remote.DiscoveryV1().EndpointSlices("default").Update(t.Context(), slice, metav1.UpdateOptions{})
	must(t, err)
	eventually(t, time.Minute, "the mirror to change", mirrored)

	must(t, remote.DiscoveryV1().EndpointSlices("default").Delete(t.Context(), slice.Name, metav1.DeleteOptions{}))
	must(t, remote.CoreV1().Services("default").Delete(t.Context(), service.Name, metav1.DeleteOptions{}))
	eventually(t, time.Minute, "the mirror to go", func(ctx context.Context) error {
		_, err := local.CoreV1().Services(systemNamespace).Get(ctx, mirror, metav1.GetOptions{})
		return absent(err)
	})
}

// absent is nil for the error of reading an object that isn't there.
func absent(err error) error {
	switch {
	case err == nil:
		return errors.New("it is still there")
	case apierrors.IsNotFound(err):
		return nil
	default:
		return err
	}
}

// calicoSets is the resource that semaphore-policy writes where Calico serves v3.
var calicoSets = schema.GroupVersionResource{Group: "projectcalico.org", Version: "v3", Resource: "globalnetworksets"}

// guards makes labelled pods in one of the clusters, waits for their network set in
// the other one, and deletes them.
func (e *example) guards(t *testing.T, from int) {
	sets := e.clusters[1-from].Dynamic().Resource(calicoSets)
	name := e.clusters[from].Name + "-default-forwarder"
	holds := func(n int) func(context.Context) error {
		return func(ctx context.Context) error {
			set, err := sets.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			nets, _, err := unstructured.NestedStringSlice(set.Object, "spec", "nets")
			if err == nil && len(nets) != n {
				err = fmt.Errorf("it holds %v", nets)
			}
			return err
		}
	}
	var pods []string
	for i := range 2 {
		pod := fmt.Sprintf("forwarder-%d", i)
		_, err := e.clusters[from].Nodes()[0].AddPod(t.Context(), testbed.PodConfig{Name: pod, Object: &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"policy.semaphore.uw.io/name": "forwarder"}},
		}})
		must(t, err)
		pods = append(pods, pod)
		eventually(t, time.Minute, "the network set", holds(2*len(pods))) // an address of each family
	}
	now := int64(0)
	for _, pod := range pods {
		must(t, e.clusters[from].Client().CoreV1().Pods("default").Delete(t.Context(), pod, metav1.DeleteOptions{GracePeriodSeconds: &now}))
	}
	eventually(t, time.Minute, "the network set to go", func(ctx context.Context) error {
		_, err := sets.Get(ctx, name, metav1.GetOptions{})
		return absent(err)
	})
}

// takeOut does what the example and the documentation tell an operator to do who
// wants to be rid of it.
func (e *example) takeOut(t *testing.T) {
	for _, c := range e.clusters {
		e.kubectl(t, c, "apply", "-k", filepath.Join(e.folder, c.Name+"-cleanup"))
		for _, pod := range e.agents(t, c, "cleanup") {
			select {
			case <-pod.Done():
			case <-within(t, time.Minute).Done():
				pod.Kill()
			}
			if pod.Err() != nil {
				t.Fatalf("clean-up: %v\n%s", pod.Err(), pod.Tail(20))
			}
		}
		if out := e.kubectl(t, c, "get", "nodes", "-o", "yaml"); strings.Contains(out, "wireguard.semaphore.uw.io") {
			t.Errorf("a node of %s still carries our annotations:\n%s", c.Name, out)
		}
		for _, node := range c.Nodes() {
			must(t, clean(t, node))
		}
		e.kubectl(t, c, "delete", "globalnetworksets.projectcalico.org", "-l", "managed-by=semaphore-policy")
		// Without a controller manager the namespace would wait for ever.
		e.kubectl(t, c, "delete", "--wait=false", "-k", filepath.Join(e.folder, c.Name))
		e.gone(t, c)
	}
}

// clean reports what the agent left on a node, but for its keys.
func clean(t *testing.T, node *testbed.Node) error {
	t.Helper()
	var errs []error
	for what, command := range map[string][]string{
		"links":             {"sh", "-c", "ip -o link | grep -e wireguard -e 'semaphore ' || true"},
		"IPv4 routes":       {"sh", "-c", "ip -4 route show table all proto 115"},
		"IPv6 routes":       {"sh", "-c", "ip -6 route show table all proto 115"},
		"policy rules":      {"sh", "-c", "ip -4 rule | grep -v -e ^0: -e ^32766: -e ^32767: || true; ip -6 rule | grep -v -e ^0: -e ^32766: || true"},
		"sockets":           {"sh", "-c", "ls /var/run/wireguard"},
		"files beside keys": {"sh", "-c", "ls /var/lib/semaphore-wireguard | grep -v '[.]key$' || true"},
	} {
		out, err := node.Run(t.Context(), command[0], command[1:]...)
		if err == nil && strings.TrimSpace(out) != "" {
			err = fmt.Errorf("%s of %s: %s", what, node.Name, out)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// gone checks that no object of ours is left in a cluster, but for what goes with
// the namespace.
func (e *example) gone(t *testing.T, c *testbed.Cluster) {
	t.Helper()
	namespace, err := c.Client().CoreV1().Namespaces().Get(t.Context(), systemNamespace, metav1.GetOptions{})
	if err == nil && namespace.DeletionTimestamp == nil {
		t.Errorf("the namespace of %s isn't deleted", c.Name)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		t.Error(err)
	}
	kinds := e.kubectl(t, c, "api-resources", "--namespaced=false", "--verbs=list", "-o", "name")
	for kind := range strings.Lines(kinds) {
		kind = strings.TrimSpace(kind)
		if kind == "namespaces" {
			continue
		}
		if out := e.kubectl(t, c, "get", kind, "-o", "name"); strings.Contains(out, "semaphore") {
			t.Errorf("left in %s: %s", c.Name, out)
		}
	}
}
