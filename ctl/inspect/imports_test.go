package inspect

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
)

// TestClusterSetServices asks imports that have addresses, endpoints and a port of TCP, by
// names that are valid.
func TestClusterSetServices(t *testing.T) {
	one := func(name string, ports ...string) statuspage.Import {
		return statuspage.Import{Name: name, Type: "ClusterSetIP", IPs: []string{"10.102.0.1", "x"}, Ports: ports, Endpoints: map[string]int{"gcp": 1, "aws": 1}}
	}
	idle, headless := one("shop/idle", "http 80/TCP"), one("shop/headless", "80/TCP")
	idle.Endpoints, headless.IPs = nil, nil
	c := &Cluster{Mirrors: []Reported[statuspage.Mirror]{{Fact: Fact[*statuspage.Mirror]{Value: &statuspage.Mirror{Leading: true, MultiCluster: &statuspage.MultiCluster{Imports: []statuspage.Import{
		one("shop/web", "dns 53/UDP", "metrics 9090/TCP", "http 80/TCP"), one("shop/udp", "53/UDP"), idle, headless,
		one("shop/../x", "80/TCP"), one("--all/x", "80/TCP"), one("sys-semaphore/x", "80/TCP"), one("shop/large", "99999/TCP"),
	}}}}}}}
	var got []string
	for _, s := range c.ClusterSetServices() {
		got = append(got, s.DNS())
		if s.Port != 80 || !s.HTTP || s.Ready != 2 || len(s.ClusterIPs) != 1 {
			t.Errorf("%+v", s)
		}
	}
	if diff := cmp.Diff([]string{"web.shop.svc.clusterset.local"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
