package mirror

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/status"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

// onlyVirtual configures aws with a virtual pod subnet.
func onlyVirtual(cfg *Config) {
	cfg.Remotes[0].PodSubnets = []netip.Prefix{netip.MustParsePrefix("10.200.0.0/15")}
}

const toVirtual, toOther = "10.4.0.0/16=10.200.0.0/16", "10.4.0.0/16=10.201.0.0/16"

// publish creates or replaces a node, with the map that its agent publishes, if any.
func publish(t *testing.T, api *kubetest.API, name, text string) {
	t.Helper()
	annotations := map[string]string{"wireguard.semaphore.uw.io/podCIDRs": "10.4.0.0/24"}
	if text != "" {
		annotations[config.SubnetMapAnnotation] = text
	}
	api.Put(t, "nodes", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}})
}

// failing makes reading a resource fail with a code; 0: it succeeds.
func failing(api *kubetest.API, resource string, code int, reason metav1.StatusReason) {
	api.Hook(func(h *kubetest.Hooks) {
		h.Read = func(of string) *metav1.Status {
			if code == 0 || of != resource {
				return nil
			}
			return kubetest.Failure(code, reason)
		}
	})
}

func (i *instance) mapOf(t *testing.T, cluster, state string) {
	t.Helper()
	wait(t, "the map of "+cluster, func() error {
		for _, c := range i.Status().Clusters {
			if c.Name == cluster && c.PodSubnetsMap != nil && c.PodSubnetsMap.State == state {
				return nil
			}
		}
		return fmt.Errorf("%+v", i.Status().Clusters)
	})
}

// TestMapIsFollowedByEveryKindOfObject has a mirror and a global service while the map of a node
// changes and goes. No write leaves one without addresses.
func TestMapIsFollowedByEveryKindOfObject(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakes) {
		publish(t, f.aws, "node-1", toVirtual)
		put(t, f.aws, "shop", svc("web"), [2]string{"web-1", "10.4.0.1"}, [2]string{"web-2", "10.4.0.2"})
		put(t, f.aws, "shop", svc("all", global), [2]string{"all-1", "10.4.0.3"})
		var empty atomic.Int64
		f.gcp.Hook(func(h *kubetest.Hooks) {
			h.Admit = func(r kubetest.Request, o *unstructured.Unstructured) *metav1.Status {
				if all, _, _ := unstructured.NestedSlice(o.Object, "endpoints"); r.Resource == "endpointslices" && len(all) == 0 {
					empty.Add(1)
				}
				return nil
			}
		})
		i := f.start(t, func(cfg *Config) {
			onlyVirtual(cfg)
			cfg.GlobalSelector = selector(t, globalMark+"=true")
		})
		check := func(network string) {
			t.Helper()
			leadsTo(t, f.gcp, webName, network+".0.1", network+".0.2")
			leadsTo(t, f.gcp, "gl-shop-73736d-all", network+".0.3")
		}
		check("10.200")
		i.mapOf(t, "aws", status.MapKnown)
		time.Sleep(time.Minute)
		before := len(f.gcp.Writes())
		publish(t, f.aws, "node-1", toOther)
		check("10.201")
		synctest.Wait()
		if n := len(f.gcp.Writes()) - before; n != 3 { // the slices
			t.Errorf("%d writes for a changed map: %v", n, f.gcp.Writes()[before:])
		}
		time.Sleep(time.Minute)
		before = len(f.gcp.Writes())
		publish(t, f.aws, "node-1", " "+toOther)
		publish(t, f.aws, "node-2", toOther)
		time.Sleep(time.Minute)
		if n := len(f.gcp.Writes()) - before; n > 0 {
			t.Errorf("%d writes for the same map", n)
		}
		publish(t, f.aws, "node-1", toVirtual)
		check("10.200")
		if n := empty.Load(); n > 0 {
			t.Errorf("%d objects were written without addresses", n)
		}
	})
}

// TestNothingIsWrittenBeforeNodesAreRead restarts while the nodes of a remote can't be read.
func TestNothingIsWrittenBeforeNodesAreRead(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakes) {
		publish(t, f.aws, "node-1", toVirtual)
		put(t, f.aws, "shop", svc("web"), [2]string{"web-1", "10.4.0.1"})
		first := f.start(t, onlyVirtual)
		leadsTo(t, f.gcp, webName, "10.200.0.1")
		first.stop()
		failing(f.aws, "nodes", http.StatusInternalServerError, metav1.StatusReasonInternalError)
		put(t, f.merit, "shop", svc("web"), [2]string{"web-1", "10.6.0.1"})
		before := len(f.gcp.Writes())
		i := f.start(t, onlyVirtual)
		leadsTo(t, f.gcp, "merit-shop-73736d-web", "10.6.0.1")
		time.Sleep(10 * time.Minute)
		i.mapOf(t, "aws", status.MapUnread)
		leadsTo(t, f.gcp, webName, "10.200.0.1")
		if n := slices.DeleteFunc(f.gcp.Writes()[before:], func(r kubetest.Request) bool {
			return !strings.Contains(r.Name, webName) || strings.HasPrefix(r.Name, "merit")
		}); len(n) > 0 {
			t.Errorf("written before nodes are read: %v", n)
		}
		failing(f.aws, "nodes", 0, "")
		put(t, f.aws, "shop", svc("web"), [2]string{"web-1", "10.4.0.7"})
		leadsTo(t, f.gcp, webName, "10.200.0.7")
	})
}

// TestForbiddenNodesHoldUpNothing has an account that may not read nodes, and then may.
func TestForbiddenNodesHoldUpNothing(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakes) {
		publish(t, f.aws, "node-1", toVirtual)
		failing(f.aws, "nodes", http.StatusForbidden, metav1.StatusReasonForbidden)
		put(t, f.aws, "shop", svc("web"), [2]string{"web-1", "10.4.0.1"})
		i := f.start(t, func(cfg *Config) { cfg.Remotes[0].PodSubnets = nil })
		began := time.Now()
		leadsTo(t, f.gcp, webName, "10.4.0.1")
		if waited := time.Since(began); waited > time.Second {
			t.Errorf("it waited for %v", waited)
		}
		i.mapOf(t, "aws", status.MapForbidden)
		failing(f.aws, "nodes", 0, "")
		leadsTo(t, f.gcp, webName, "10.200.0.1")
		// Rights that are lost don't make maps unknown.
		failing(f.aws, "nodes", http.StatusForbidden, metav1.StatusReasonForbidden)
		i.nodes["aws"].Renew()
		time.Sleep(10 * time.Minute)
		leadsTo(t, f.gcp, webName, "10.200.0.1")
		i.mapOf(t, "aws", status.MapKnown)
	})
}

// TestServerThatStartsDoesntForbidNodes starts while the remote's API server forbids everything,
// as one that has not read its rules yet.
func TestServerThatStartsDoesntForbidNodes(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakes) {
		publish(t, f.aws, "node-1", toVirtual)
		put(t, f.aws, "shop", svc("web"), [2]string{"web-1", "10.4.0.1"})
		first := f.start(t, onlyVirtual)
		leadsTo(t, f.gcp, webName, "10.200.0.1")
		first.stop()
		f.aws.Hook(func(h *kubetest.Hooks) {
			h.Read = func(string) *metav1.Status {
				return kubetest.Failure(http.StatusForbidden, metav1.StatusReasonForbidden)
			}
		})
		before := len(f.gcp.Writes())
		f.start(t, onlyVirtual)
		time.Sleep(65 * time.Second) // between two requests for nodes
		f.aws.Hook(func(h *kubetest.Hooks) { h.Read = nil })
		time.Sleep(5 * time.Minute)
		leadsTo(t, f.gcp, webName, "10.200.0.1")
		if n := f.gcp.Writes()[before:]; len(n) > 0 {
			t.Errorf("written: %v", n)
		}
	})
}

// TestMapThatFlapsCostsFewWrites changes the map of a node with 200 services twenty times a second,
// for ten minutes.
func TestMapThatFlapsCostsFewWrites(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakes) {
		services, length := rounds(200, 20), time.Duration(rounds(600, 60))*time.Second
		publish(t, f.aws, "node-1", toVirtual)
		for n := range services {
			put(t, f.aws, "shop", svc(fmt.Sprint("web-", n)), [2]string{fmt.Sprint("web-", n), fmt.Sprint("10.4.0.", n+1)})
		}
		f.start(t, onlyVirtual)
		wait(t, "all mirrors", func() error {
			if n := len(kubetest.All[discoveryv1.EndpointSlice](f.gcp, "endpointslices", home)); n < services {
				return fmt.Errorf("%d slices", n)
			}
			return nil
		})
		put(t, f.merit, "shop", svc("web"), [2]string{"web-1", "10.6.0.1"})
		leadsTo(t, f.gcp, "merit-shop-73736d-web", "10.6.0.1")
		before := len(f.gcp.Writes())
		last := ""
		for n := range int(length / (50 * time.Millisecond)) {
			last = []string{toOther, toVirtual}[n%2]
			publish(t, f.aws, "node-1", last)
			time.Sleep(50 * time.Millisecond)
		}
		// After 0, 10, 30, 70, 150, 310 s.
		if n := len(f.gcp.Writes()) - before; n > 7*services {
			t.Errorf("%d writes for %d services", n, services)
		}
		time.Sleep(15 * time.Minute)
		leadsTo(t, f.gcp, "aws-shop-73736d-web-0", "10.200.0.1")
	})
}

// TestChangedMapDoesntDelayOthers changes the map of a node that more services have endpoints on
// than a pass recomputes.
func TestChangedMapDoesntDelayOthers(t *testing.T) {
	w := newWorld()
	const services = 3*remapped + 1
	for i := range services {
		k := origin.Key{Namespace: "shop", Name: fmt.Sprint("web-", i)}
		w.slice(setID{"aws", mirrored}, nil, &origin.Slice{Name: k.Name, Service: k, Family: discoveryv1.AddressTypeIPv4, Endpoints: []origin.Endpoint{
			{Address: netip.MustParseAddr("10.0.0.1"), Node: "a1"}, {Address: netip.MustParseAddr("10.0.0.2")},
		}})
	}
	w.remap("aws", "a2")
	if w.takeRemapped(); len(w.remapping) > 0 {
		t.Errorf("%d services for a node without endpoints", len(w.remapping))
	}
	for _, node := range []string{"a1", ""} {
		w.seen()
		w.remap("aws", node)
		left := services
		for more := true; more; {
			w.seen()
			more = w.takeRemapped()
			if n := len(w.origins); n != min(left, remapped) {
				t.Fatalf("a pass recomputes %d services of %d", n, left)
			}
			left -= len(w.origins)
		}
		if left > 0 {
			t.Errorf("%d services are left", left)
		}
	}
}

// TestNothingOfGoneEndpointsIsRemembered adds and removes endpoints without nodes, and on nodes
// that aren't known.
func TestNothingOfGoneEndpointsIsRemembered(t *testing.T) {
	w := newWorld()
	k := origin.Key{Namespace: "shop", Name: "web"}
	var before *origin.Slice
	for i := range 100 {
		after := &origin.Slice{Name: "web", Service: k, Family: discoveryv1.AddressTypeIPv4, Endpoints: []origin.Endpoint{
			{Address: netip.MustParseAddr("10.0.0.1"), Node: fmt.Sprint("n-", i)}, {Address: netip.MustParseAddr("10.0.0.2")},
			{Address: netip.MustParseAddr("10.0.0.3"), Node: fmt.Sprint("n-", i)}, {Address: netip.MustParseAddr("10.0.0.4")},
		}}
		w.slice(setID{"aws", mirrored}, before, after)
		before = after
	}
	of := w.unplaced["aws"]
	if len(of.nodes) != 1 || len(of.origins) != 1 {
		t.Errorf("nodes %v, services %v", of.nodes, of.origins)
	}
	w.slice(setID{"aws", mirrored}, before, nil)
	if len(of.nodes)+len(of.origins) > 0 {
		t.Errorf("nodes %v, services %v are left", of.nodes, of.origins)
	}
}

// TestImportsFollowAMap exports a service of a cluster with a map.
func TestImportsFollowAMap(t *testing.T) {
	inClusterset(t, func(c *clusterset) {
		publish(t, c.aws, "node-1", toVirtual)
		c.put(c.aws, svc("web"), "10.4.0.1")
		c.export(c.aws, "web", 10)
		c.put(c.gcp, svc("web"), "10.2.0.1")
		c.export(c.gcp, "web", 20)
		c.start(func(cfg *Config) {
			at := slices.IndexFunc(cfg.Remotes, func(r Remote) bool { return r.Name == "aws" })
			cfg.Remotes[at].PodSubnets = []netip.Prefix{netip.MustParsePrefix("10.200.0.0/15")}
		})
		c.imported(c.gcp, "web", "aws 10.200.0.1:8080", "gcp 10.2.0.1:8080")
		publish(t, c.aws, "node-1", toOther)
		c.imported(c.gcp, "web", "aws 10.201.0.1:8080", "gcp 10.2.0.1:8080")
	})
}
