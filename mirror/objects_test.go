package mirror

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// svc is a service as a test wants it to be.
func svc(name string, adjust ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{mirrorMark: "true"}},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": name},
			Ports:    []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
	for _, f := range adjust {
		f(s)
	}
	return s
}

func global(s *corev1.Service) { s.Labels = map[string]string{globalMark: "true"} }

func localFirst(s *corev1.Service) { s.Labels[firstMark] = "local-first" }

func headless(s *corev1.Service) { s.Spec.ClusterIP = corev1.ClusterIPNone }

func ports(list ...corev1.ServicePort) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.Ports = list }
}

// slice is an endpoint slice of a service, as Kubernetes' controller makes it:
// with the service's labels, and all that must not be taken over.
func slice(of *corev1.Service, name string, ips ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: maps.Clone(of.Labels)},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	s.Labels[discoveryv1.LabelServiceName] = of.Name
	s.Labels[discoveryv1.LabelManagedBy] = "endpointslice-controller.k8s.io"
	for _, p := range of.Spec.Ports {
		port := p.Port + 8000
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &p.Name, Protocol: &p.Protocol, Port: &port, AppProtocol: p.AppProtocol})
	}
	s.Endpoints = endpoints(ips...)
	if len(ips) > 0 && netip.MustParseAddr(ips[0]).Is6() {
		s.AddressType = discoveryv1.AddressTypeIPv6
	}
	return s
}

func endpoints(ips ...string) []discoveryv1.Endpoint {
	var all []discoveryv1.Endpoint
	yes, no, node, zone := true, false, "node-1", "zone-1"
	for _, ip := range ips {
		all = append(all, discoveryv1.Endpoint{
			Addresses:  []string{ip},
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
			NodeName:   &node, Zone: &zone,
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "pod-" + strings.ReplaceAll(ip, ":", "-")},
			Hints:     &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}},
		})
	}
	return all
}

// put creates or replaces a service and its slices.
func put(ctx context.Context, c *testbed.Cluster, namespace string, s *corev1.Service, all ...*discoveryv1.EndpointSlice) error {
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

// remove deletes a service and all of its slices.
func remove(ctx context.Context, c *testbed.Cluster, namespace, name string) error {
	err := c.Client().CoreV1().Services(namespace).Delete(ctx, name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return c.Client().DiscoveryV1().EndpointSlices(namespace).DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + name})
}

// patch changes a service of a cluster with a JSON merge patch.
func patch(t *testing.T, c *testbed.Cluster, namespace, name, body string) {
	t.Helper()
	_, err := c.Client().CoreV1().Services(namespace).Patch(t.Context(), name, types.MergePatchType, []byte(body), metav1.PatchOptions{})
	must(t, err)
}
