package origin

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// slice returns a slice with ports of these sizes of names and appProtocols.
func slice(ports, name, app int) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for i := range ports {
		text, number := fmt.Sprintf("%0*d", name, i), int32(1+i%65535)
		p := discoveryv1.EndpointPort{Name: &text, Port: &number}
		if app > 0 {
			long := "x.io/" + strings.Repeat("y", app-5)
			p.AppProtocol = &long
		}
		s.Ports = append(s.Ports, p)
	}
	return s
}

// TestBoundsOfSlices: a remote may not make objects of any size.
func TestBoundsOfSlices(t *testing.T) {
	addresses := func(valid, invalid int) *discoveryv1.EndpointSlice {
		s := slice(1, 4, 0)
		for i := range valid {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.4.%d.%d", i>>8, i&255)}})
		}
		for range invalid {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{"x"}})
		}
		return s
	}
	for _, c := range []struct {
		name   string
		slice  *discoveryv1.EndpointSlice
		reject string
	}{
		{"as many ports as a Service may have", slice(1000, 15, 20), ""},
		{"one more", slice(1001, 15, 0), "1001 ports: at most 1000 are copied"},
		{"long names", slice(1000, 63, 0), ""},
		{"long names and appProtocols", slice(1000, 63, 60), "names and appProtocols of 123000 bytes: at most 65536 are copied"},
		{"as many addresses as a slice may have", addresses(999, 1), ""},
		{"one more, which is invalid", addresses(1000, 1), "1001 endpoints: at most 1000 are copied"},
	} {
		got, ok := TrimSlice(c.slice, nil)
		if !ok || got.Reject != c.reject || c.reject != "" && len(got.Ports)+len(got.Endpoints)+len(got.Unreadable) > 0 {
			t.Errorf("%s: kept %v, %q, want %q", c.name, ok, got.Reject, c.reject)
		}
	}
	for _, change := range []func(*discoveryv1.EndpointSlice){
		func(s *discoveryv1.EndpointSlice) { s.Name = strings.Repeat("x", 100_000) },
		func(s *discoveryv1.EndpointSlice) { s.Name = "\x1b[31mweb" },
		func(s *discoveryv1.EndpointSlice) { s.Labels[discoveryv1.LabelServiceName] = strings.Repeat("x", 64) },
		func(s *discoveryv1.EndpointSlice) { s.Namespace = "Shop" },
	} {
		s := slice(1, 4, 0)
		change(s)
		if _, ok := TrimSlice(s, nil); ok {
			t.Errorf("a slice %.20q of %.20q/%.20q is kept", s.Name, s.Namespace, s.Labels[discoveryv1.LabelServiceName])
		}
	}
}

// TestBoundsOfServices: they are those of slices.
func TestBoundsOfServices(t *testing.T) {
	service := func(ports, name, app int) *corev1.Service {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}
		for _, p := range slice(ports, name, app).Ports {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: *p.Name, Port: *p.Port, AppProtocol: p.AppProtocol})
		}
		return s
	}
	for _, c := range []struct {
		service *corev1.Service
		reject  string
	}{
		{service(1000, 15, 20), ""},
		{service(1001, 15, 20), "1001 ports: at most 1000 are copied"},
		{service(1000, 63, 60), "names and appProtocols of 123000 bytes: at most 65536 are copied"},
	} {
		if got := TrimService(c.service, nil); got.Reject != c.reject {
			t.Errorf("%d ports: %q, want %q", len(c.service.Spec.Ports), got.Reject, c.reject)
		}
	}
}
