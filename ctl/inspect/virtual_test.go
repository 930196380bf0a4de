package inspect

import (
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
)

// TestExportsAreVirtual compares a service of a cluster with virtual subnets, whose endpoints
// have real addresses there, with its mirror, which has virtual ones.
func TestExportsAreVirtual(t *testing.T) {
	port, name := int32(80), ""
	service := func(namespace, object, address string) []any {
		return []any{
			&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: object, Labels: map[string]string{"mirror.semaphore.uw.io/mirror-service": "true", "mirrored-svc": map[bool]string{true: "true", false: "no"}[namespace == cli.Namespace]},
				Annotations: map[string]string{mark + "cluster": map[bool]string{true: "gcp", false: ""}[namespace == cli.Namespace], mark + "namespace": "shop", mark + "name": "web"}},
				Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}},
			&discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: object, Labels: map[string]string{discoveryv1.LabelServiceName: object, "mirror.semaphore.uw.io/mirror-service": "true", "mirrored-svc": "true"}},
				Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port}}, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address}}}},
		}
	}
	read := func(get func(*collector) ([]KubeService, error), objects []any) KubeService {
		t.Helper()
		client := fake.NewClientset(objects[0].(*corev1.Service), objects[1].(*discoveryv1.EndpointSlice))
		c := &collector{Cluster: &Cluster{}, client: client}
		c.Settings.Value = map[string]string{PodSubnetsMap: "10.0.0.0/16=100.78.0.0/16"}
		found, err := get(c)
		if err != nil || len(found) != 1 {
			t.Fatalf("found %+v, %v", found, err)
		}
		return found[0]
	}
	origin := read(func(c *collector) ([]KubeService, error) { return c.exports(MirrorSelector)(t.Context()) }, service("shop", "web", "10.0.1.9"))
	mirror := read(func(c *collector) ([]KubeService, error) { return c.imports(t.Context()) }, service(cli.Namespace, "gcp-shop-73736d-web", "100.78.1.9"))
	if origin.Digest != mirror.Digest || len(origin.Sample) != 1 || origin.Sample[0] != netip.MustParseAddrPort("100.78.1.9:80") {
		t.Errorf("%+v, and its mirror %+v", origin, mirror)
	}
}

// TestSubnetMap compares the map in the settings with what nodes publish.
func TestSubnetMap(t *testing.T) {
	const one, other = "10.0.0.0/16=100.77.0.0/16", "10.0.0.0/16=100.99.0.0/16"
	for name, c := range map[string]struct {
		setting, want string
		maps          []string // "-": no agent
		others        string
	}{
		"none":                        {"", "", []string{"", ""}, ""},
		"all":                         {one, one, []string{one, one, "-"}, ""},
		"a node with another one":     {one, one, []string{one, other, one}, "1"},
		"a node without":              {one, one, []string{one, "", one}, "1"},
		"all nodes have another one":  {one, one, []string{other, other}, "01"},
		"nodes have one":              {"", "", []string{one, ""}, "0"},
		"of a hostile cluster":        {strings.Repeat("x,", 1<<20), "", []string{strings.Repeat(one+",", 100)}, "0"},
		"settings that can't be read": {"?", "", []string{one, other}, ""},
	} {
		cluster := &Cluster{}
		if c.setting != "?" {
			cluster.Settings.Value = map[string]string{PodSubnetsMap: c.setting}
		}
		for i, text := range c.maps {
			n := Node{Name: string(rune('0' + i)), Annotations: map[string]string{AnnotationGroup + "/podCIDRs": "10.0.1.0/24"}, Map: text}
			if text == "-" {
				n.Annotations, n.Map = nil, ""
			}
			cluster.Nodes.Value = append(cluster.Nodes.Value, n)
		}
		m, others := cluster.SubnetMap()
		var names string
		for _, n := range others {
			names += n.Name
		}
		if m.String() != c.want || names != c.others {
			t.Errorf("%s: %s, others %s", name, m, names)
		}
	}
	one1, other1 := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("10.4.0.0/16")}, []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("10.4.7.0/24"), netip.MustParsePrefix("fd00::/48")}
	if a, b, overlap := Overlapping(one1, other1); !overlap || a != one1[1] || b != other1[1] {
		t.Errorf("%s and %s, %t", a, b, overlap)
	}
	if _, _, overlap := Overlapping(one1, other1[:1]); overlap {
		t.Error("they don't overlap")
	}
}
