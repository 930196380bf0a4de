package scenarios_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// mirrors creates a service in one cluster, waits for its mirror in the other one, changes it
// and deletes it.
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

// absent returns nil for a NotFound error.
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

// holds checks that a network set has so many nets.
func holds(sets dynamic.ResourceInterface, name string, n int) func(context.Context) error {
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

// guards creates labelled pods in one cluster, waits for their network set in the other one,
// and deletes them.
func (e *example) guards(t *testing.T, from int) {
	sets, name := e.sets(1-from), e.clusters[from].Name+"-default-forwarder"
	var pods []string
	for i := range 2 {
		pod := fmt.Sprintf("forwarder-%d", i)
		_, err := e.clusters[from].Nodes()[0].AddPod(t.Context(), testbed.PodConfig{Name: pod, Object: &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"policy.semaphore.uw.io/name": "forwarder"}},
		}})
		must(t, err)
		pods = append(pods, pod)
		eventually(t, time.Minute, "the network set", holds(sets, name, 2*len(pods))) // an address of each family
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
