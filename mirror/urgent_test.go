package mirror

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kube-semaphore/kube-semaphore/internal/status"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

// TestWhatMustGoIsUrgent changes the endpoints of a global service, which has Endpoints as well.
func TestWhatMustGoIsUrgent(t *testing.T) {
	web := origin.Key{Namespace: "shop", Name: "web"}
	for _, c := range []struct {
		name          string
		before, after []string
		urgent        bool
	}{
		{"another address", []string{"http 10.4.0.1"}, []string{"http 10.4.0.1 10.4.0.2"}, false},
		{"another port", []string{"http 10.4.0.1"}, []string{"http,metrics 10.4.0.1"}, false},
		{"one becomes ready", []string{"http 10.4.0.1 !10.4.0.2"}, []string{"http 10.4.0.1 10.4.0.2"}, false},
		{"one that isn't ready leaves", []string{"http 10.4.0.1 !10.4.0.2"}, []string{"http 10.4.0.1"}, true},
		{"an address leaves", []string{"http 10.4.0.1 10.4.0.2"}, []string{"http 10.4.0.1"}, true},
		{"one leaves, another comes", []string{"http 10.4.0.1 10.4.0.2"}, []string{"http 10.4.0.1 10.4.0.3"}, true},
		{"all leave", []string{"http 10.4.0.1 10.4.0.2"}, []string{"http"}, true},
		{"one is no longer ready", []string{"http 10.4.0.1 10.4.0.2"}, []string{"http 10.4.0.1 !10.4.0.2"}, true},
		{"a port leaves", []string{"http,metrics 10.4.0.1"}, []string{"http 10.4.0.1"}, true},
		{"a protocol leaves", []string{"http 10.4.0.1"}, []string{"http/UDP 10.4.0.1"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld()
			w.legacy = true
			o := newOrigin(web, 1, 80, origin.Traits{})
			o.Spec.Ports = append(o.Spec.Ports, tcp("metrics", 9090))
			w.hears(setID{"aws", merged}, o)
			w.offers("aws", web, c.before...)
			w.settle(t)
			w.offers("aws", web, c.after...)
			Desired(w.Snapshot, w.memo)
			want, have := w.want(w.memo, globalName)
			urgent := map[string]bool{}
			changes := Diff(have, want)
			for i := range changes {
				w := changes[i].write(&have, &want)
				urgent[strings.Fields(w.Object)[0]] = w.Urgent
			}
			if diff := cmp.Diff(map[string]bool{aSlice: c.urgent, anEndpoint: c.urgent}, urgent); diff != "" {
				t.Errorf("urgent (-want +got):\n%s", diff)
			}
		})
	}
}

// TestAddressesThatAnotherClientPutsBackIntoEndpoints has a client that puts back an address each
// time.
func TestAddressesThatAnotherClientPutsBackIntoEndpoints(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakes) {
		put(t, f.aws, "shop", svc("web"), [2]string{"web-1", "10.4.0.1"})
		f.start(t, func(cfg *Config) { cfg.LegacyEndpoints = true })
		leadsTo(t, f.gcp, webName, "10.4.0.1")
		them := func() {
			var e corev1.Endpoints //nolint:staticcheck // See observedEndpoints.
			if f.gcp.Get("endpoints", home, webName, &e) && len(e.Subsets[0].Addresses) == 1 {
				e.Subsets[0].Addresses = append(e.Subsets[0].Addresses, corev1.EndpointAddress{IP: "10.4.0.9"}) //nolint:staticcheck // See observedEndpoints.
				f.gcp.Put(t, "endpoints", &e)
			}
		}
		time.Sleep(time.Second)
		f.gcp.Hook(func(h *kubetest.Hooks) {
			h.Answer = func(r kubetest.Request) {
				if r.Resource == "endpoints" {
					them()
				}
			}
		})
		them()
		time.Sleep(time.Hour)
		before := count(f.gcp, "update endpoints")
		time.Sleep(time.Minute)
		if n := count(f.gcp, "update endpoints") - before; n < 5 || n > 8 {
			t.Errorf("%d updates in a minute, want one each ten seconds", n)
		}
	})
}

// TestAddressesLeaveEndpointsWhileAnotherIsRefused has an admission webhook that refuses one.
func TestAddressesLeaveEndpointsWhileAnotherIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakes) {
		web := svc("web")
		offer := func(addresses ...string) {
			sl := kubetest.EndpointSlice(web, "web-1", addresses...)
			sl.Namespace = "shop"
			f.aws.Put(t, "endpointslices", sl)
		}
		put(t, f.aws, "shop", web)
		offer("10.4.0.1", "10.4.0.2")
		i := f.start(t, func(cfg *Config) { cfg.LegacyEndpoints = true })
		leadsTo(t, f.gcp, webName, "10.4.0.1", "10.4.0.2")
		var refusing bool
		f.gcp.Hook(func(h *kubetest.Hooks) {
			h.Admit = func(r kubetest.Request, o *unstructured.Unstructured) *metav1.Status {
				text, _ := o.MarshalJSON()
				if r.Resource == "endpoints" && refusing && strings.Contains(string(text), "10.4.0.3") {
					return kubetest.Failure(http.StatusForbidden, metav1.StatusReasonForbidden)
				}
				return nil
			}
		})
		has := func(want ...string) {
			t.Helper()
			wait(t, "the Endpoints", func() error {
				var e corev1.Endpoints //nolint:staticcheck // See observedEndpoints.
				got := map[string]bool{}
				f.gcp.Get("endpoints", home, webName, &e)
				for _, s := range e.Subsets {
					for _, a := range s.Addresses {
						got[a.IP] = true
					}
				}
				if all := slices.Sorted(maps.Keys(got)); !slices.Equal(all, want) {
					return fmt.Errorf("it has %v, want %v", all, want)
				}
				return nil
			})
		}
		has("10.4.0.1", "10.4.0.2")
		refusing = true
		offer("10.4.0.1", "10.4.0.3")
		has("10.4.0.1")
		i.listed(t, webName, func(s status.Service) bool { return strings.Contains(s.Error, "update endpoints") })
		refusing = false
		has("10.4.0.1", "10.4.0.3")
	})
}
