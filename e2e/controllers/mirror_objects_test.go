package controllers_test

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
)

// svc returns a service to mirror.
func svc(name string, adjust ...func(*corev1.Service)) *corev1.Service {
	return kubetest.Service(name, map[string]string{mirrorMark: "true"}, adjust...)
}

func global(s *corev1.Service) { s.Labels = map[string]string{globalMark: "true"} }

func localFirst(s *corev1.Service) { s.Labels[firstMark] = "local-first" }

func headless(s *corev1.Service) { s.Spec.ClusterIP = corev1.ClusterIPNone }

func ports(list ...corev1.ServicePort) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.Ports = list }
}

// slice returns a slice of a service, as Kubernetes' controller writes it.
func slice(of *corev1.Service, name string, ips ...string) *discoveryv1.EndpointSlice {
	return kubetest.EndpointSlice(of, name, ips...)
}

// putService creates or replaces a service and its slices.
func putService(ctx context.Context, c *testbed.Cluster, namespace string, s *corev1.Service, all ...*discoveryv1.EndpointSlice) error {
	_, err := c.Client().CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	_, err = c.Client().CoreV1().Services(namespace).Create(ctx, s, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = c.Client().CoreV1().Services(namespace).Update(ctx, s, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("put service %s/%s of %s: %w", namespace, s.Name, c.Name, err)
	}
	for _, sl := range all {
		if err := putSlice(ctx, c, namespace, sl); err != nil {
			return err
		}
	}
	return nil
}

func putSlice(ctx context.Context, c *testbed.Cluster, namespace string, sl *discoveryv1.EndpointSlice) error {
	_, err := c.Client().DiscoveryV1().EndpointSlices(namespace).Create(ctx, sl, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = c.Client().DiscoveryV1().EndpointSlices(namespace).Update(ctx, sl, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("put slice %s/%s of %s: %w", namespace, sl.Name, c.Name, err)
	}
	return nil
}

// removeService deletes a service and all of its slices.
func removeService(ctx context.Context, c *testbed.Cluster, namespace, name string) error {
	err := c.Client().CoreV1().Services(namespace).Delete(ctx, name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return c.Client().DiscoveryV1().EndpointSlices(namespace).DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + name})
}

// patchService changes a service of a cluster with a JSON merge patch.
func patchService(t *testing.T, c *testbed.Cluster, namespace, name, body string) {
	t.Helper()
	_, err := c.Client().CoreV1().Services(namespace).Patch(t.Context(), name, types.MergePatchType, []byte(body), metav1.PatchOptions{})
	must(t, err)
}
