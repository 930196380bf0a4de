package mirror

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kube-semaphore/kube-semaphore/internal/keep"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
)

// count returns how many requests have a verb and a resource, such as "patch services".
func count(api *kubetest.API, of string) (n int) {
	for _, r := range api.Requests() {
		if strings.HasPrefix(r.String(), of+" ") {
			n++
		}
	}
	return n
}

// warnings returns the messages of the Events of a reason.
func warnings(api *kubetest.API, reason string) []string {
	var all []string
	for _, e := range kubetest.All[corev1.Event](api, "events", home) {
		if e.Reason == reason {
			all = append(all, e.InvolvedObject.Name+": "+e.Message)
		}
	}
	return all
}

// TestServiceThatAdmissionChangesIsWrittenOnce has an admission policy that sets a field of
// all Services.
func TestServiceThatAdmissionChangesIsWrittenOnce(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakes) {
		f.gcp.Hook(func(h *kubetest.Hooks) {
			h.Admit = func(r kubetest.Request, o *unstructured.Unstructured) *metav1.Status {
				if r.Resource == "services" {
					must(t, unstructured.SetNestedField(o.Object, "PreferClose", "spec", "trafficDistribution"))
				}
				return nil
			}
		})
		web := svc("web")
		put(t, f.aws, "shop", web, [2]string{"web-1", "10.4.0.1"})
		i := f.start(t, nil)
		leadsTo(t, f.gcp, webName, "10.4.0.1")
		for n := range 20 {
			address := fmt.Sprintf("10.4.1.%d", n+1)
			put(t, f.aws, "shop", web, [2]string{"web-1", address})
			leadsTo(t, f.gcp, webName, address)
		}
		if n := count(f.gcp, "patch services"); n != 0 {
			t.Errorf("%d patches of the Service, want none", n)
		}
		i.listed(t, webName, func(s statuspage.Service) bool { return len(s.Overridden) == 1 })
		if all := warnings(f.gcp, "Overridden"); len(all) != 1 || !strings.Contains(all[0], webName+": service "+webName+": an admission policy or another client changes it after each write") {
			t.Errorf("Events %q", all)
		}
		// Another desired state is written at once.
		put(t, f.aws, "shop", svc("web", ports(corev1.ServicePort{Name: "http", Port: 81, Protocol: corev1.ProtocolTCP})))
		wait(t, "the other port", func() error {
			var s corev1.Service
			if f.gcp.Get("services", home, webName, &s); s.Spec.Ports[0].Port != 81 {
				return fmt.Errorf("port %d", s.Spec.Ports[0].Port)
			}
			return nil
		})
		time.Sleep(keep.LongestWait / 2)
		if n := count(f.gcp, "patch services"); n != 1 {
			t.Errorf("%d patches of the Service, want one", n)
		}
		// The policy ends, which no object shows.
		f.gcp.Hook(func(h *kubetest.Hooks) { h.Admit = nil })
		time.Sleep(keep.LongestWait)
		i.listed(t, webName, func(s statuspage.Service) bool { return s.InOrder() })
		var s corev1.Service
		if f.gcp.Get("services", home, webName, &s); s.Spec.TrafficDistribution != nil || count(f.gcp, "patch services") != 2 {
			t.Errorf("%d patches, trafficDistribution %v", count(f.gcp, "patch services"), s.Spec.TrafficDistribution)
		}
	})
}

// TestObjectsThatAnotherClientChangesWaitLonger has a client that changes a Service and a
// slice after each write.
func TestObjectsThatAnotherClientChangesWaitLonger(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakes) {
		web := svc("web")
		put(t, f.aws, "shop", web, [2]string{"web-1", "10.4.0.1"})
		put(t, f.aws, "shop", svc("other"), [2]string{"other-1", "10.4.2.1"})
		i := f.start(t, nil)
		leadsTo(t, f.gcp, webName, "10.4.0.1")
		slice := kubetest.All[discoveryv1.EndpointSlice](f.gcp, "endpointslices", home)
		name := slice[slices.IndexFunc(slice, func(s discoveryv1.EndpointSlice) bool { return s.Labels[discoveryv1.LabelServiceName] == webName })].Name
		them := func() {
			var s corev1.Service
			if f.gcp.Get("services", home, webName, &s) {
				s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
				f.gcp.Put(t, "services", &s)
			}
			var sl discoveryv1.EndpointSlice
			if f.gcp.Get("endpointslices", home, name, &sl) {
				port := int32(1)
				sl.Ports = []discoveryv1.EndpointPort{{Port: &port}}
				f.gcp.Put(t, "endpointslices", &sl)
			}
		}
		them()
		time.Sleep(time.Second)
		if n, m := count(f.gcp, "patch services"), count(f.gcp, "patch endpointslices"); n != 1 || m != 1 {
			t.Fatalf("%d and %d patches after the first change, want one each", n, m)
		}
		f.gcp.Hook(func(h *kubetest.Hooks) {
			h.Answer = func(r kubetest.Request) {
				if r.Name == webName || r.Name == name {
					them()
				}
			}
		})
		them()
		time.Sleep(20 * time.Second)
		if n, m := count(f.gcp, "patch services"), count(f.gcp, "patch endpointslices"); n > 10 || m > 10 || n < 5 || m < 5 {
			t.Errorf("%d and %d patches in 20 s, want a few", n, m)
		}
		i.listed(t, webName, func(s statuspage.Service) bool { return len(s.Overridden) == 2 })
		if all := warnings(f.gcp, "Overridden"); len(all) < 1 || len(all) > 2 || !strings.Contains(all[len(all)-1], "changes it after each write") {
			t.Errorf("Events %q", all)
		}
		// Endpoints don't wait for that, nor does another service.
		begin := time.Now()
		put(t, f.aws, "shop", web, [2]string{"web-1", "10.4.0.2"})
		leadsTo(t, f.gcp, webName, "10.4.0.2")
		put(t, f.aws, "shop", svc("other"), [2]string{"other-1", "10.4.2.2"})
		leadsTo(t, f.gcp, "aws-shop-73736d-other", "10.4.2.2")
		f.aws.Remove("endpointslices", "shop", "web-1")
		leadsTo(t, f.gcp, webName)
		if took := time.Since(begin); took > time.Second {
			t.Errorf("endpoints took %v", took)
		}
		before := count(f.gcp, "patch services")
		time.Sleep(time.Hour)
		if n := count(f.gcp, "patch services") - before; n > 10 || n < 4 {
			t.Errorf("%d patches in an hour, want one each ten minutes", n)
		}
		// They end, and the objects are as desired after the longest wait. It is over a minute after
		// the next write would have been due.
		f.gcp.Hook(func(h *kubetest.Hooks) { h.Answer = nil })
		time.Sleep(2*keep.LongestWait + keep.Lasting)
		i.listed(t, webName, func(s statuspage.Service) bool { return s.InOrder() })
		var s corev1.Service
		if f.gcp.Get("services", home, webName, &s); s.Spec.SessionAffinity != corev1.ServiceAffinityNone {
			t.Errorf("session affinity %s", s.Spec.SessionAffinity)
		}
	})
}
