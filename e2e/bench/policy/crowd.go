package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

const (
	podNamespace = "bench"
	podLabel     = "policy.semaphore.uw.io/name"
)

// crowd is the remote's pods. Each address that it gives out is new.
type crowd struct {
	cluster *testbed.Cluster
	count   int // pods there are
	taken   uint32
}

func createNamespace(ctx context.Context, c *testbed.Cluster, name string) error {
	_, err := c.Client().CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create namespace %s: %w", name, err)
	}
	return nil
}

// address number n of 10.0.0.0/8.
func address(n uint32) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
}

func podName(i int) string { return fmt.Sprintf("pod-%05d", i) }

// grow adds pods until there are so many.
func (c *crowd) grow(ctx context.Context, count int) error {
	first, taken := c.count, c.taken
	c.count, c.taken = count, taken+uint32(count-first)
	return testbed.InParallel(ctx, count-first, func(ctx context.Context, n int) error {
		i := first + n
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: podName(i), Labels: map[string]string{podLabel: fmt.Sprintf("app-%03d", i%apps)}},
			Spec: corev1.PodSpec{NodeName: "nowhere", Containers: []corev1.Container{{
				Name: "main", Image: "registry.example/app:v1.2.3",
				Env: []corev1.EnvVar{{Name: "A", Value: "some configuration"}, {Name: "B", Value: "some more of it"}},
			}}},
		}
		if _, err := c.cluster.Client().CoreV1().Pods(podNamespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create pod %s: %w", pod.Name, err)
		}
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
	status := corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip.String(), PodIPs: []corev1.PodIP{{IP: ip.String()}}}
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return err
	}
	_, err = c.cluster.Client().CoreV1().Pods(podNamespace).Patch(ctx, podName(i), types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("patch the status of pod %s: %w", podName(i), err)
	}
	return nil
}
