package mirror

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/internal/pace"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
)

// TestRemovalDoesntWaitForABackOff takes endpoints away from a global service whose Service can't be
// patched, and which is therefore in back-off. Additions don't shorten it.
func TestRemovalDoesntWaitForABackOff(t *testing.T) {
	s := kubetest.Service("web", nil, global)
	set := func(t *testing.T, f *fakes, ready bool, ips ...string) {
		sl := kubetest.EndpointSlice(s, "web-1", ips...)
		sl.Namespace, sl.Endpoints[0].Conditions.Ready = "shop", &ready
		f.aws.Put(t, "endpointslices", sl)
	}
	for name, c := range map[string]struct {
		remove func(t *testing.T, f *fakes)
		want   string // ready ones of the cluster
	}{
		"an endpoint leaves": {func(t *testing.T, f *fakes) { set(t, f, true, "10.4.0.1") }, "[10.4.0.1]"},
		"one is not ready":   {func(t *testing.T, f *fakes) { set(t, f, false, "10.4.0.1", "10.4.0.2") }, "[10.4.0.2]"},
		"a slice leaves":     {func(_ *testing.T, f *fakes) { f.aws.Remove("endpointslices", "shop", "web-1") }, "[]"},
		"a service leaves":   {func(_ *testing.T, f *fakes) { f.aws.Remove("services", "shop", "web") }, "[]"},
		"a cluster is drained": {func(t *testing.T, f *fakes) {
			f.aws.Put(t, "services", &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", Annotations: map[string]string{annotDrained: "true"}}})
		}, "[]"},
		"a cluster is stale": {func(_ *testing.T, f *fakes) { f.aws.Stop() }, "[]"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, f *fakes) {
				put(t, f.aws, "shop", s)
				set(t, f, true, "10.4.0.1", "10.4.0.2")
				put(t, f.merit, "shop", s, [2]string{"web-1", "10.6.0.1"})
				f.start(t, func(cfg *Config) {
					cfg.GlobalSelector, cfg.Remotes[0].StaleAfter = selector(t, globalMark+"=true"), 3*time.Second
				})
				leadsTo(t, f.gcp, globalName, "10.4.0.1", "10.4.0.2", "10.6.0.1")
				refuse(f.gcp, "patch services")
				for _, api := range []*kubetest.API{f.aws, f.merit} {
					put(t, api, "shop", kubetest.Service("web", nil, global, ports(corev1.ServicePort{Name: "http", Port: 81, Protocol: corev1.ProtocolTCP})))
				}
				time.Sleep(5 * time.Minute)
				before := len(f.gcp.Writes())
				more := kubetest.EndpointSlice(s, "web-2")
				more.Namespace = "shop"
				for n := range 50 {
					more.Endpoints = append(more.Endpoints, kubetest.Endpoints(fmt.Sprintf("10.6.1.%d", n))...)
					f.merit.Put(t, "endpointslices", more)
					time.Sleep(100 * time.Millisecond)
				}
				if n := len(f.gcp.Writes()) - before; n > 10 {
					t.Errorf("%d writes in 5 s, want a few", n)
				}
				c.remove(t, f)
				time.Sleep(5 * time.Second)
				var ready []string
				for _, sl := range kubetest.All[discoveryv1.EndpointSlice](f.gcp, "endpointslices", home) {
					for _, e := range sl.Endpoints {
						if strings.HasPrefix(e.Addresses[0], "10.4.") && *e.Conditions.Ready {
							ready = append(ready, e.Addresses[0])
						}
					}
				}
				if got := fmt.Sprint(ready); got != c.want {
					t.Errorf("after 5 s %s are ready, want %s", got, c.want)
				}
			})
		})
	}
}

// TestTurnOfARemovalDoesntWaitForABackOff takes away an endpoint of a cluster for which too much was
// written before. The Service is written for another cluster.
func TestTurnOfARemovalDoesntWaitForABackOff(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakes) {
		s := kubetest.Service("web", nil, global)
		slice := func(s *corev1.Service, ips ...string) *discoveryv1.EndpointSlice {
			sl := kubetest.EndpointSlice(s, s.Name+"-1", ips...)
			sl.Namespace = "shop"
			return sl
		}
		c := f.controller(t, func(cfg *Config) { cfg.GlobalSelector = selector(t, globalMark+"=true") })
		c.apply.pace = pace.New(pace.Config[string]{
			Cluster: pace.Limit{Rate: 1 << 10, Burst: 8 << 10}, Total: pace.Limit{Rate: 1 << 20, Burst: 1 << 20}, Ready: c.turn,
		})
		kubetest.Run(t, c.Tasks(), c.Lead)
		put(t, f.aws, "shop", s, [2]string{"web-1", "10.4.0.1"})
		leadsTo(t, f.gcp, globalName, "10.4.0.1")
		put(t, f.merit, "shop", s)
		f.merit.Put(t, "endpointslices", slice(s, "10.6.0.1", "10.6.0.2"))
		leadsTo(t, f.gcp, globalName, "10.4.0.1", "10.6.0.1", "10.6.0.2")
		refuse(f.gcp, "patch services "+globalName)
		for _, api := range []*kubetest.API{f.aws, f.merit} {
			put(t, api, "shop", kubetest.Service("web", nil, global, ports(corev1.ServicePort{Name: "http", Port: 81, Protocol: corev1.ProtocolTCP})))
		}
		time.Sleep(5 * time.Minute)
		for n := range 2 {
			large := svc(fmt.Sprint("large-", n))
			put(t, f.merit, "shop", large)
			f.merit.Put(t, "endpointslices", manyPorts(slice(large, "10.6.0.9"), n))
		}
		for n := range 2 {
			leadsTo(t, f.gcp, fmt.Sprint("merit-shop-73736d-large-", n), "10.6.0.9")
		}
		f.merit.Put(t, "endpointslices", slice(s, "10.6.0.1"))
		time.Sleep(2 * time.Second)
		began := time.Now()
		leadsTo(t, f.gcp, globalName, "10.4.0.1", "10.6.0.1", "10.6.0.2")
		time.Sleep(13 * time.Second) // what was written before is about 10 s above the limit
		leadsTo(t, f.gcp, globalName, "10.4.0.1", "10.6.0.1")
		if took := time.Since(began); took > 15*time.Second {
			t.Errorf("it left after %v", took)
		}
	})
}
