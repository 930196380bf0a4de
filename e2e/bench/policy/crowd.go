package main

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podsapi "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/bench/measure"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

const (
	podNamespace = "bench"
	podLabel     = "policy.semaphore.uw.io/name"
)

// managedFields is about how many bytes of those a pod has. The crowd's have an
// annotation of that size instead.
const managedFields = 1500

// crowd is the remote's pods. Each address that it gives out is new.
type crowd struct {
	api   podsapi.PodInterface
	pods  []*corev1.Pod // as they were created
	taken uint32

	mu sync.Mutex
	at map[int]netip.Addr // by pod
}

// newCrowd has no pods.
func newCrowd(ctx context.Context, c *testbed.Cluster) (*crowd, error) {
	cfg, err := measure.Client(ctx, c, podNamespace, "crowd", rbacv1.PolicyRule{
		APIGroups: []string{""}, Resources: []string{"pods", "pods/status"}, Verbs: []string{"create", "update"},
	})
	if err != nil {
		return nil, err
	}
	client, err := podsapi.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	return &crowd{api: client.Pods(podNamespace), at: map[int]netip.Addr{}}, nil
}

// count is how many pods there are.
func (c *crowd) count() int { return len(c.pods) }

// address number n of 10.0.0.0/8.
func address(n uint32) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
}

func podName(i int) string { return fmt.Sprintf("pod-%05d", i) }

// grow adds pods until there are count.
func (c *crowd) grow(ctx context.Context, count int) error {
	first, taken := len(c.pods), c.taken
	c.pods, c.taken = append(c.pods, make([]*corev1.Pod, count-first)...), taken+uint32(count-first)
	return testbed.InParallel(ctx, count-first, func(ctx context.Context, n int) error {
		i := first + n
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Name: podName(i), Labels: map[string]string{podLabel: fmt.Sprintf("app-%03d", i%apps)},
				Annotations: map[string]string{"example.com/managed-fields": strings.Repeat("x", managedFields)},
			},
			Spec: corev1.PodSpec{NodeName: "nowhere", Containers: []corev1.Container{{
				Name: "main", Image: "registry.example/app:v1.2.3",
				Env: []corev1.EnvVar{{Name: "A", Value: "some configuration"}, {Name: "B", Value: "some more of it"}},
			}}},
		}
		created, err := c.api.Create(ctx, pod, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("create pod %s: %w", pod.Name, err)
		}
		// Tracking managedFields is a fifth of the work that its API server would have to
		// do, and that shares the machine with what is measured.
		created.ManagedFields = []metav1.ManagedFieldsEntry{{}}
		if created, err = c.api.Update(ctx, created, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("update pod %s: %w", pod.Name, err)
		}
		created.ResourceVersion = ""
		c.pods[i] = created
		return c.move(ctx, i, address(taken+uint32(n)+1))
	})
}

// next is a new address.
func (c *crowd) next() netip.Addr {
	c.taken++
	return address(c.taken + 1)
}

// move gives a pod an address.
func (c *crowd) move(ctx context.Context, i int, ip netip.Addr) error {
	pod := c.pods[i].DeepCopy()
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip.String(), PodIPs: []corev1.PodIP{{IP: ip.String()}}}
	if _, err := c.api.UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update the status of pod %s: %w", pod.Name, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at[i] = ip
	return nil
}

// missing returns how many of the pods' addresses aren't among those given, and
// how many of those aren't a pod's.
func (c *crowd) missing(addrs map[netip.Addr]bool) (missing, foreign int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, ip := range c.at {
		if !addrs[ip] {
			missing++
		}
	}
	return missing, len(addrs) - (len(c.at) - missing)
}
