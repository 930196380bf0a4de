package testbed_test

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/tools"
)

func TestKubeProxyMakesClusterIPsWork(t *testing.T) {
	ctx := deadline(t, 3*time.Minute)
	tb := testbed.Start(t, testbed.Config{}, tools.KubeProxy)
	c, err := tb.StartCluster(ctx, testbed.ClusterConfig{Name: "aws"})
	if err != nil {
		t.Fatal(err)
	}
	client, server := addPod(t, c), addPod(t, c)
	both := corev1.IPFamilyPolicyRequireDualStack
	service, err := c.Client().CoreV1().Services("default").Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.ServiceSpec{IPFamilyPolicy: &both, Ports: []corev1.ServicePort{{Name: "http", Port: 8080}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	name, port := "http", int32(80)
	for i, family := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
		_, err := c.Client().DiscoveryV1().EndpointSlices("default").Create(ctx, &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Name:   "web-" + strings.ToLower(string(family)),
				Labels: map[string]string{discoveryv1.LabelServiceName: service.Name},
			},
			AddressType: family,
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{server.Addresses[i].String()}}},
			Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := client.Node.StartKubeProxy(ctx); err != nil {
		t.Fatal(err)
	}
	for _, clusterIP := range service.Spec.ClusterIPs {
		url := "http://" + clusterIP + ":8080"
		if strings.Contains(clusterIP, ":") {
			url = "http://[" + clusterIP + "]:8080"
		}
		err := testbed.Wait(deadline(t, 2*time.Minute), url, func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			_, err := client.Get(ctx, url)
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}
