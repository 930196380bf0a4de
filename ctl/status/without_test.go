package status

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
)

// service returns a Service of the mirror; origin is empty for a global service.
func service(object, namespace, name, origin string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: cli.Namespace, Name: object, Labels: map[string]string{"mirrored-svc": "true"},
		Annotations: map[string]string{
			"mirror.semaphore.uw.io/namespace": namespace, "mirror.semaphore.uw.io/name": name, "mirror.semaphore.uw.io/cluster": origin,
		},
	}}
}

// slice returns a slice of a cluster's endpoints, each with a port named http.
func slice(name, service, from string, family discoveryv1.AddressType, ready ...bool) *discoveryv1.EndpointSlice {
	port, http := int32(8080), "http"
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: cli.Namespace, Name: name,
			Labels:      map[string]string{"endpointslice.kubernetes.io/managed-by": "semaphore-service-mirror", "kubernetes.io/service-name": service},
			Annotations: map[string]string{"mirror.semaphore.uw.io/cluster": from},
		},
		AddressType: family, Ports: []discoveryv1.EndpointPort{{Name: &http, Port: &port}},
	}
	for i := range ready {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Conditions: discoveryv1.EndpointConditions{Ready: &ready[i]}})
	}
	return s
}

// imported returns a slice of an import in the namespace shop.
func imported(name, service, from string, ready ...bool) *discoveryv1.EndpointSlice {
	s := slice(name, "derived-"+service, from, discoveryv1.AddressTypeIPv4, ready...)
	s.Namespace, s.Annotations = "shop", nil
	s.Labels["multicluster.kubernetes.io/service-name"], s.Labels["multicluster.kubernetes.io/source-cluster"] = service, from
	return s
}

// TestWithout asks three clusters what they lose without gcp.
func TestWithout(t *testing.T) {
	v4, v6 := discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6
	at := func(name string, objects ...runtime.Object) *cli.Cluster {
		return &cli.Cluster{Name: name, Client: fake.NewClientset(objects...)}
	}
	aws := at("aws",
		service("gcp-web", "shop", "web", "gcp"), slice("a", "gcp-web", "gcp", v4, true, false),
		service("gcp-idle", "shop", "idle", "gcp"), slice("b", "gcp-idle", "gcp", v4, false),
		service("merit-web", "shop", "web", "merit"), slice("c", "merit-web", "merit", v4, true),
		service("all", "shop", "all", ""), slice("d", "all", "gcp", v4, true), slice("e", "all", "aws", v4, true),
		slice("f", "all", "gcp", v6, true), slice("g", "all", "merit", v6, false),
		imported("h", "cart", "gcp", true), imported("i", "cart", "merit", false), imported("j", "kept", "gcp", true), imported("k", "kept", "aws", true),
		slice("l", "deleted", "gcp", v4, true),
	)
	merit := at("merit", imported("h", "cart", "gcp", true), imported("i", "cart", "merit", true), service("all", "shop", "all", ""), slice("f", "all", "gcp", v6, true))
	gcp := at("gcp", service("aws-x", "shop", "x", "aws"), slice("x", "aws-x", "aws", v4, true))
	got, err := without(t.Context(), []*cli.Cluster{aws, gcp, merit}, "gcp")
	if err != nil {
		t.Fatal(err)
	}
	want := []Lost{
		{"all.shop.svc.cluster.global", "http 8080/TCP", "IPv6", []string{"aws", "merit"}},
		{"cart.shop.svc.clusterset.local", "http 8080/TCP", "IPv4", []string{"aws"}},
		{"web.shop.svc.cluster.gcp", "http 8080/TCP", "IPv4", []string{"aws"}},
	}
	if diff := cmp.Diff(want, got.Lost); diff != "" || len(got.Unknown) > 0 {
		t.Errorf("unknown %q, lost (-want +got):\n%s", got.Unknown, diff)
	}
	if text := got.Text(); !strings.Contains(text, "all.shop.svc.cluster.global     http 8080/TCP  IPv6    aws, merit\n") {
		t.Error(text)
	}
	if got, err := without(t.Context(), []*cli.Cluster{aws, merit}, "mars"); err == nil || !strings.Contains(err.Error(), "--without mars: it isn't among the arguments") {
		t.Errorf("%v, %v", got, err)
	}
	broken := at("broken")
	broken.Client.(*fake.Clientset).PrependReactor("list", "endpointslices", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("no\x1b[2Jrights")
	})
	if got, err := without(t.Context(), []*cli.Cluster{gcp, broken}, "gcp"); err != nil || len(got.Unknown) != 1 || strings.Contains(got.Text(), "\x1b") {
		t.Errorf("%v, %v", got, err)
	}
	forged := at("forged", service("gcp-web", "shop", "-x y", "gcp"))
	if got, err := without(t.Context(), []*cli.Cluster{gcp, forged}, "gcp"); err != nil || len(got.Unknown) != 1 {
		t.Errorf("%v, %v", got, err)
	}
}

// TestWithoutArguments checks arguments.
func TestWithoutArguments(t *testing.T) {
	for _, args := range [][]string{{"--without", "a b", "aws"}, {"--without", "gcp", "-o", "html", "aws"}, {"--without", "gcp", "-w", "aws"}} {
		var out bytes.Buffer
		s := cli.NewSession(strings.NewReader(""), &out, &out, func(string) (string, bool) { return "", false })
		cmd := Command(s)
		cmd.SetArgs(args)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "--without") {
			t.Errorf("%q: %v", args, err)
		}
	}
}
