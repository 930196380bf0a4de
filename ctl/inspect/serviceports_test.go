package inspect

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
)

// TestServicePorts counts ready endpoints of mirrors, global services and imports.
func TestServicePorts(t *testing.T) {
	service := func(object, name, origin string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{
			Namespace: cli.Namespace, Name: object, Labels: map[string]string{"mirrored-svc": "true"},
			Annotations: map[string]string{mark + "namespace": "shop", mark + "name": name, mark + "cluster": origin},
		}}
	}
	slice := func(service, from string, family discoveryv1.AddressType, ready ...bool) *discoveryv1.EndpointSlice {
		port, http := int32(8080), "http"
		s := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: cli.Namespace, Name: fmt.Sprint(service, from, family),
				Labels:      map[string]string{discoveryv1.LabelManagedBy: ServiceMirror, discoveryv1.LabelServiceName: service},
				Annotations: map[string]string{mark + "cluster": from},
			},
			AddressType: family, Ports: []discoveryv1.EndpointPort{{Name: &http, Port: &port}},
		}
		for i := range ready {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Conditions: discoveryv1.EndpointConditions{Ready: &ready[i]}})
		}
		return s
	}
	imported := slice("derived-cart", "", discoveryv1.AddressTypeIPv4, true, true)
	imported.Namespace = "shop"
	imported.Labels[v1beta1.LabelServiceName], imported.Labels[v1beta1.LabelSourceCluster] = "cart", "gcp"
	client := fake.NewClientset(
		service("gcp-web", "web", "gcp"), slice("gcp-web", "gcp", discoveryv1.AddressTypeIPv4, true, false),
		service("all", "all", ""), slice("all", "gcp", discoveryv1.AddressTypeIPv4, true), slice("all", "aws", discoveryv1.AddressTypeIPv4, false),
		slice("all", "gcp", discoveryv1.AddressTypeIPv6, true), slice("deleted", "gcp", discoveryv1.AddressTypeIPv4, true), imported,
	)
	ports, err := ReadServicePorts(t.Context(), &cli.Cluster{Name: "aws", Client: client})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for i := range ports {
		got = append(got, fmt.Sprint(ports[i].key(), " ", ports[i].Ready))
	}
	want := []string{
		"all.shop.svc.cluster.global http 8080/TCP IPv4 map[aws:0 gcp:1]",
		"all.shop.svc.cluster.global http 8080/TCP IPv6 map[gcp:1]",
		"cart.shop.svc.clusterset.local http 8080/TCP IPv4 map[gcp:2]",
		"web.shop.svc.cluster.gcp http 8080/TCP IPv4 map[gcp:1]",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	client = fake.NewClientset(service("gcp-web", "web", "gcp"), slice("gcp-web", "-x y", discoveryv1.AddressTypeIPv4, true))
	if _, err := ReadServicePorts(t.Context(), &cli.Cluster{Name: "aws", Client: client}); err == nil || !strings.Contains(err.Error(), "the cluster of EndpointSlice") {
		t.Errorf("a name that no cluster has: %v", err)
	}
}
