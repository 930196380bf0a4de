package scenarios_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed/sandbox"
)

// temporaryPods runs the temporary pods of semaphorectl on the nodes of a testbed, in place
// of kubelets: in network namespaces of pods, with a resolver, and without the host's files.
type temporaryPods struct {
	t      *testing.T
	binary string            // semaphore-wireguard
	dns    map[string]string // the address of the resolver, by cluster
	dir    string
	loops  sync.WaitGroup
}

// runTemporaryPods runs such pods until the test ends.
func runTemporaryPods(t *testing.T, dns map[string]string, clusters ...*testbed.Cluster) {
	t.Helper()
	p := &temporaryPods{t: t, binary: program(t, programs.WireGuard), dns: dns, dir: t.TempDir()}
	ctx, cancel := context.WithCancel(t.Context())
	for _, c := range clusters {
		p.loops.Go(func() { p.watch(ctx, c) })
	}
	t.Cleanup(func() {
		cancel()
		p.loops.Wait()
	})
}

// watch starts new pods, and ends deleted ones.
func (p *temporaryPods) watch(ctx context.Context, c *testbed.Cluster) {
	running := map[string]context.CancelFunc{}
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for ctx.Err() == nil {
		list, err := c.Client().CoreV1().Pods(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{LabelSelector: "semaphore.uw.io/temporary=true"})
		if err == nil {
			have := map[string]bool{}
			for i := range list.Items {
				pod := &list.Items[i]
				have[pod.Name] = true
				if running[pod.Name] == nil {
					life, end := context.WithCancel(ctx)
					running[pod.Name] = end
					p.loops.Go(func() { p.run(life, c, pod) })
				}
			}
			for name, end := range running {
				if !have[name] {
					end()
					delete(running, name)
				}
			}
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
	for _, end := range running {
		end()
	}
}

// run runs a pod until it ends or is deleted.
func (p *temporaryPods) run(ctx context.Context, c *testbed.Cluster, pod *corev1.Pod) {
	if err := p.start(ctx, c, pod); err != nil && ctx.Err() == nil {
		p.t.Logf("the temporary pod %s on %s: %v", pod.Name, pod.Spec.NodeName, err)
	}
}

func (p *temporaryPods) start(ctx context.Context, c *testbed.Cluster, pod *corev1.Pod) (err error) {
	var node *testbed.Node
	for _, n := range c.Nodes() {
		if n.Name == pod.Spec.NodeName {
			node = n
		}
	}
	if node == nil {
		return errors.New("no such node")
	}
	host, err := node.AddPod(ctx, testbed.PodConfig{Name: pod.Name})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, host.Remove()) }()
	dir := filepath.Join(p.dir, c.Name, pod.Name)
	dev, etc := filepath.Join(dir, "dev"), filepath.Join(dir, "etc")
	resolver := "search default.svc.cluster.local svc.cluster.local cluster.local\nnameserver " + p.dns[c.Name] + "\noptions ndots:5 timeout:1 attempts:2\n"
	if err := errors.Join(os.MkdirAll(dev, 0o755), os.MkdirAll(filepath.Join(etc, "upper"), 0o755),
		os.WriteFile(filepath.Join(etc, "upper", "resolv.conf"), []byte(resolver), 0o644)); err != nil {
		return err
	}
	command := pod.Spec.Containers[0].Command
	process, err := host.Start(sandbox.Command{
		Name: "reach", Path: p.binary, Args: command[1:], Mounts: []sandbox.Mount{sandbox.Overlay("/etc", etc), sandbox.Overlay("/dev", dev)},
	})
	if err != nil {
		return err
	}
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: host.Addresses[0].String()}
	for _, address := range host.Addresses {
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: address.String()})
	}
	began := metav1.Now()
	container := corev1.ContainerStatus{Name: "reach", Image: "none", ImageID: "none", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: began}}}
	if pod, err = p.report(ctx, c, pod, container); err != nil {
		process.Kill()
		return err
	}
	select {
	case <-ctx.Done():
		process.Kill()
		return nil
	case <-process.Done():
	}
	message, err := os.ReadFile(filepath.Join(dev, "upper", "termination-log"))
	if err != nil {
		message = []byte(process.Tail(3))
	}
	container.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: string(message[:min(len(message), 4096)])}}
	pod.Status.Phase = corev1.PodSucceeded
	_, err = p.report(ctx, c, pod, container)
	return err
}

func (p *temporaryPods) report(ctx context.Context, c *testbed.Cluster, pod *corev1.Pod, container corev1.ContainerStatus) (*corev1.Pod, error) {
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{container}
	now, err := c.Client().CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return pod, nil // It was deleted meanwhile.
	}
	return now, err
}

// corefile is the configuration of CoreDNS with the server blocks of deploy/coredns for a
// remote whose service prefix is its name.
func corefile(t *testing.T, remote string) string {
	t.Helper()
	blocks, err := os.ReadFile("../../deploy/coredns/Corefile")
	must(t, err)
	text := strings.NewReplacer("cluster.aws", "cluster."+remote, `cluster\.aws`, `cluster\.`+remote, "aws-", remote+"-").Replace(string(blocks))
	return text + "\n.:53 {\n    errors\n    kubernetes cluster.local\n    cache 5\n}\n"
}

// diagnose runs doctor with temporary pods.
func (a *administrator) diagnose(ctx context.Context, d *diagnosis, args ...string) (int, error) {
	out, code, err := a.run(ctx, append([]string{"doctor", "aws", "gcp", "--image", "none", "-o", "json"}, args...)...)
	if err == nil {
		// Before it, it says that pods are started.
		err = json.Unmarshal([]byte(out[max(0, strings.Index(out, "{")):]), d)
	}
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return code, err
}

// causesOf formats a diagnosis for messages.
func causesOf(d *diagnosis) string {
	body, err := json.Marshal(d)
	if err != nil {
		return err.Error()
	}
	return string(body)
}
