package kubelet_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/kubelet/meter"
	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// kubectl runs kubectl as the administrator of a cluster.
func (l *lab) kubectl(t *testing.T, cluster int, args ...string) string {
	t.Helper()
	out, err := l.clusters[cluster].Kubectl(t.Context(), args...)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return out
}

// edit replaces text in the operator's copy of a cluster's kustomization, where it
// must be.
func (l *lab) edit(t *testing.T, cluster int, before, after string) {
	t.Helper()
	file := filepath.Join(l.example(cluster, ""), "kustomization.yaml")
	content, err := os.ReadFile(file)
	must(t, err)
	if !strings.Contains(string(content), before) {
		t.Fatalf("%s has no %q", file, before)
	}
	must(t, os.WriteFile(file, []byte(strings.ReplaceAll(string(content), before, after)), 0o644))
}

// example is a folder of the operator's copy of deploy/example: the cluster's own,
// with a suffix.
func (l *lab) example(cluster int, suffix string) string {
	return filepath.Join(l.deploy[cluster], "example", l.clusters[cluster].Name+suffix)
}

// apply applies one of those.
func (l *lab) apply(t *testing.T, cluster int, suffix string) {
	t.Helper()
	l.kubectl(t, cluster, "apply", "-k", l.example(cluster, suffix))
}

// install installs the product in both clusters as in the README.
func (l *lab) install(t *testing.T, version string) {
	t.Helper()
	for i, c := range l.clusters {
		must(t, c.Apply(t.Context(), filepath.Join(l.root, "policy", "testdata", "v3.yaml"))) // Calico's.
		l.configure(t, i, version)
		l.apply(t, i, "")
	}
	l.ctl(t, "tokens", "aws", "gcp")
}

// configure sets the operator's values in the copy of a cluster's kustomization.
func (l *lab) configure(t *testing.T, cluster int, version string) {
	t.Helper()
	other := l.clusters[1-cluster]
	l.edit(t, cluster, "https://api."+other.Name+".example:6443", other.APIURL())
	l.edit(t, cluster, "newTag: v0.1.0", "newTag: "+version)
}

// agentPods are the pods of the DaemonSet in a cluster.
func (l *lab) agentPods(ctx context.Context, cluster int) ([]corev1.Pod, error) {
	list, err := l.clusters[cluster].Client().CoreV1().Pods(programs.Namespace).
		List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + programs.WireGuard})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// agentPod is the one pod of the DaemonSet in a cluster when there is one, and it is
// ready.
func (l *lab) agentPod(ctx context.Context, cluster int) (*corev1.Pod, error) {
	pods, err := l.agentPods(ctx, cluster)
	if err != nil {
		return nil, err
	}
	if len(pods) != 1 {
		return nil, fmt.Errorf("%d pods of the agent", len(pods))
	}
	return &pods[0], podReady(&pods[0])
}

// waitRolledOut waits until the DaemonSet's pod is of its newest generation, ready
// and the only one.
func (l *lab) waitRolledOut(t *testing.T, cluster int) *corev1.Pod {
	t.Helper()
	c := l.clusters[cluster]
	var pod *corev1.Pod
	must(t, testbed.Wait(within(t, 3*time.Minute), "the agent's rollout in "+c.Name, func(ctx context.Context) error {
		set, err := c.Client().AppsV1().DaemonSets(programs.Namespace).Get(ctx, programs.WireGuard, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if s := set.Status; s.ObservedGeneration != set.Generation || s.UpdatedNumberScheduled != 1 || s.NumberReady != 1 {
			return fmt.Errorf("the DaemonSet is at %+v", s)
		}
		pod, err = l.agentPod(ctx, cluster)
		return err
	}))
	return pod
}

// reach sends a request from a pod of one cluster to a pod of the other.
func (l *lab) reach(ctx context.Context, from, to int) error {
	target := fmt.Sprintf("http://%s:%d/", l.meters[to].Status.PodIP, meter.HTTPPort)
	answer, err := l.ask(ctx, from, "/get?url="+url.QueryEscape(target))
	if err == nil && !strings.Contains(answer, "asked by "+l.meters[from].Status.PodIP+":") {
		err = errors.New("unexpected answer: " + answer)
	}
	return err
}

// waitReach waits until pods of both clusters answer each other.
func (l *lab) waitReach(t *testing.T) {
	t.Helper()
	must(t, testbed.Wait(within(t, 5*time.Minute), "pods of both clusters to reach each other", func(ctx context.Context) error {
		return errors.Join(l.reach(ctx, 0, 1), l.reach(ctx, 1, 0))
	}))
}

// hasEngine reports whether the manifests have a container that serves devices past
// the agent's life.
func (l *lab) hasEngine(t *testing.T) bool {
	t.Helper()
	set, err := l.clusters[0].Client().AppsV1().DaemonSets(programs.Namespace).Get(t.Context(), programs.WireGuard, metav1.GetOptions{})
	must(t, err)
	for _, container := range set.Spec.Template.Spec.InitContainers {
		if container.Name == "engine" {
			return true
		}
	}
	return false
}

// engineStarted returns when the engine of a cluster's agent has started last, as it
// has logged.
func (l *lab) engineStarted(cluster int) (last time.Time, err error) {
	files, err := l.kubelets[cluster].Logs(programs.Namespace)
	if err != nil {
		return last, err
	}
	for _, file := range files {
		if filepath.Base(filepath.Dir(file)) != "engine" {
			continue
		}
		content, err := os.ReadFile(file)
		if err != nil {
			continue // Its pod has just gone.
		}
		for line := range strings.Lines(string(content)) {
			when, text, _ := strings.Cut(line, " ")
			at, err := time.Parse(time.RFC3339Nano, when)
			if err == nil && strings.Contains(text, `"msg":"starting"`) && at.After(last) {
				last = at
			}
		}
	}
	if last.IsZero() {
		return last, errors.New("no engine has logged that it started")
	}
	return last, nil
}

func decode(t *testing.T, text string, into any) {
	t.Helper()
	must(t, json.Unmarshal([]byte(text), into))
}
