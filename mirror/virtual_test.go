package mirror

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/synctest"
)

// withVirtual configures aws with two virtual pod subnets.
func withVirtual(t *testing.T) func(cfg *Config) {
	t.Helper()
	var m config.SubnetMap
	if err := m.Decode("10.4.0.0/16=10.200.0.0/16,10.5.0.0/16=10.100.0.0/16"); err != nil {
		t.Fatal(err)
	}
	return func(cfg *Config) {
		at := slices.IndexFunc(cfg.Remotes, func(r Remote) bool { return r.Name == "aws" })
		cfg.Remotes[at].PodSubnets = []netip.Prefix{netip.MustParsePrefix("10.100.0.0/16"), netip.MustParsePrefix("10.200.0.0/16")}
		cfg.Remotes[at].PodSubnetsMap = m
	}
}

// withMap creates or replaces a node that publishes a map, as agents of earlier versions did.
func withMap(t *testing.T, api *kubetest.API, name, text string) {
	t.Helper()
	api.Put(t, "nodes", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{
		"wireguard.semaphore.uw.io/podCIDRs": "10.4.0.0/24", "wireguard.semaphore.uw.io/podSubnetsMap": text,
	}}})
}

// TestNoNodeDecidesAboutAddresses has a mirror and a global service of a remote with virtual
// subnets, endpoints with and without a node, and a node with another map.
// Addresses depend on the settings alone, and no node of the remote is read.
func TestNoNodeDecidesAboutAddresses(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakes) {
		withMap(t, f.aws, "node-1", "10.4.0.0/16=10.200.0.0/16,10.5.0.0/16=10.100.0.0/16")
		put(t, f.aws, "shop", svc("web"), [2]string{"web-1", "10.4.0.1"}, [2]string{"web-2", "10.5.0.2"}, [2]string{"web-3", "10.200.0.3"}, [2]string{"web-4", "10.6.0.4"})
		nowhere := kubetest.EndpointSlice(svc("web"), "web-5", "10.4.0.5")
		nowhere.Namespace, nowhere.Endpoints[0].NodeName = "shop", nil
		f.aws.Put(t, "endpointslices", nowhere)
		put(t, f.aws, "shop", svc("all", global), [2]string{"all-1", "10.4.0.3"})
		f.aws.Hook(func(h *kubetest.Hooks) {
			h.Read = func(resource string) *metav1.Status {
				if resource == "nodes" {
					t.Error("nodes of the remote are read")
				}
				return nil
			}
		})
		f.start(t, func(cfg *Config) {
			withVirtual(t)(cfg)
			cfg.GlobalSelector = selector(t, globalMark+"=true")
		})
		check := func() {
			t.Helper()
			leadsTo(t, f.gcp, webName, "10.100.0.2", "10.200.0.1", "10.200.0.3", "10.200.0.5")
			leadsTo(t, f.gcp, "gl-shop-73736d-all", "10.200.0.3")
		}
		check()
		before := len(f.gcp.Writes())
		withMap(t, f.aws, "hostile", "10.4.0.0/16=10.201.0.0/16")
		withMap(t, f.aws, "node-1", "10.4.0.0/16=10.100.0.0/16")
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		check()
		if n := f.gcp.Writes()[before:]; len(n) > 0 {
			t.Errorf("nodes caused writes: %v", n)
		}
	})
}

// TestImportsHaveVirtualAddresses exports a service of a cluster with virtual subnets.
func TestImportsHaveVirtualAddresses(t *testing.T) {
	inClusterset(t, func(c *clusterset) {
		c.put(c.aws, svc("web"), "10.4.0.1")
		c.export(c.aws, "web", 10)
		c.put(c.gcp, svc("web"), "10.2.0.1")
		c.export(c.gcp, "web", 20)
		c.start(withVirtual(t))
		c.imported(c.gcp, "web", "aws 10.200.0.1:8080", "gcp 10.2.0.1:8080")
	})
}
