package scenarios_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// administrator runs semaphorectl with all rights in the clusters of a testbed.
type administrator struct {
	testbed            *testbed.Testbed
	binary, kubeconfig string
}

// startTwo starts the API servers of aws and gcp, with a node each, without our programs.
func startTwo(t *testing.T) (*testbed.Testbed, []*testbed.Cluster) {
	t.Helper()
	tb := testbed.Start(t, testbed.Config{})
	clusters, err := tb.StartClusters(within(t, 3*time.Minute), testbed.ClusterConfig{Name: "aws"}, testbed.ClusterConfig{Name: "gcp"})
	must(t, err)
	for _, c := range clusters {
		_, err := c.AddNode(t.Context(), testbed.NodeConfig{})
		must(t, err)
	}
	return tb, clusters
}

func newAdministrator(t *testing.T, tb *testbed.Testbed) *administrator {
	t.Helper()
	kubeconfig, err := tb.Kubeconfig()
	must(t, err)
	// Without the race detector, which makes the build take minutes.
	binary, err := programs.Build(t.Context(), "semaphorectl", t.TempDir())
	must(t, err)
	return &administrator{tb, binary, kubeconfig}
}

// run returns what a command prints, and its exit code.
func (a *administrator) run(ctx context.Context, args ...string) (out string, code int, err error) {
	out, err = a.testbed.Run(ctx, a.binary, append(args, "--kubeconfig", a.kubeconfig)...)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return out, exit.ExitCode(), nil
	}
	return out, 0, err
}

// ask runs a command with -o json and decodes its output.
func (a *administrator) ask(ctx context.Context, into any, args ...string) (code int, err error) {
	out, code, err := a.run(ctx, append(args, "-o", "json")...)
	if err == nil {
		err = json.Unmarshal([]byte(out), into)
	}
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return code, err
}

// object creates the pod of a program of the testbed, as in a cluster with kubelets, so that
// the program can be reached through the API server.
func (a *administrator) object(t *testing.T, p *programs.Program, name, app string) {
	t.Helper()
	pods := p.Node.Cluster.Client().CoreV1().Pods(programs.Namespace)
	pod, err := pods.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app.kubernetes.io/name": app}},
		Spec:       corev1.PodSpec{NodeName: p.Node.Name, HostNetwork: true, Containers: []corev1.Container{{Name: "agent", Image: "none"}}},
	}, metav1.CreateOptions{})
	must(t, err)
	ip := p.Node.Addresses()[0].String()
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, HostIP: ip, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
	}
	_, err = pods.UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
	must(t, err)
}

// daemonSet makes the agents' DaemonSet, all of whose pods are ready.
func (a *administrator) daemonSet(t *testing.T, c *testbed.Cluster) {
	t.Helper()
	labels := map[string]string{"app.kubernetes.io/name": programs.WireGuard, "app.kubernetes.io/part-of": "kube-semaphore"}
	sets := c.Client().AppsV1().DaemonSets(programs.Namespace)
	set, err := sets.Create(t.Context(), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: programs.WireGuard, Labels: labels},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template(labels),
		},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return
	}
	must(t, err)
	nodes := int32(len(c.Nodes()))
	set.Status.DesiredNumberScheduled, set.Status.NumberReady = nodes, nodes
	_, err = sets.UpdateStatus(t.Context(), set, metav1.UpdateOptions{})
	must(t, err)
}

func template(labels map[string]string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec:       corev1.PodSpec{HostNetwork: true, Containers: []corev1.Container{{Name: "agent", Image: "none"}}},
	}
}

// administered creates the objects that kubelets and controllers would create for a pair.
func administered(t *testing.T, p *programs.Pair) *administrator {
	t.Helper()
	a := newAdministrator(t, p.Testbed)
	for _, c := range p.Testbed.Clusters() {
		a.daemonSet(t, c)
	}
	for _, agent := range p.Agents {
		a.object(t, agent.Program, programs.PodName(agent.Node), programs.WireGuard)
	}
	return a
}

// statusView is part of the output of "semaphorectl status -o json".
type statusView struct {
	Meshes []struct {
		From, To string
		Counts   struct{ Up, Down, Unknown int }
		Paths    [][]struct{ RTT float64 }
	}
	Wrong, Unknown []string
}

// counts formats the paths between the clusters, by direction.
func (v *statusView) counts() string {
	var b strings.Builder
	for _, m := range v.Meshes {
		body, _ := json.Marshal(m.Counts)
		b.WriteString(m.From + ">" + m.To + string(body) + " ")
	}
	return b.String()
}

// unmeasured counts the paths without latency.
func (v *statusView) unmeasured() (n int) {
	for _, m := range v.Meshes {
		for _, row := range m.Paths {
			for _, path := range row {
				if path.RTT <= 0 {
					n++
				}
			}
		}
	}
	return n
}
