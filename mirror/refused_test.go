package mirror

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
	"github.com/kube-semaphore/kube-semaphore/mirror/mcs"
)

// refuseObjects makes gcp refuse objects of a resource as older API servers do, or admission
// policies.
func (c *clusterset) refuseObjects(resource string, code int, refused func(o map[string]any) bool) {
	c.gcp.Hook(func(h *kubetest.Hooks) {
		h.Admit = func(r kubetest.Request, o *unstructured.Unstructured) *metav1.Status {
			if r.Resource != resource || !refused(o.Object) {
				return nil
			}
			reason := metav1.StatusReasonForbidden
			if code == http.StatusUnprocessableEntity {
				reason = metav1.StatusReasonInvalid
			}
			return kubetest.Failure(code, reason)
		}
	})
}

// ready waits for the Ready condition of an import of gcp, as in "True Ready" and part of its message.
func (c *clusterset) ready(name, want, message string) {
	c.t.Helper()
	wait(c.t, "the condition of the import "+name, func() error {
		var i v1beta1.ServiceImport
		c.gcp.Get("serviceimports", "shop", name, &i)
		for _, of := range i.Status.Conditions {
			if got := fmt.Sprint(of.Status, " ", of.Reason); of.Type == "Ready" && got == want && strings.Contains(of.Message, message) && (message != "" || of.Message == "") {
				return nil
			}
		}
		return fmt.Errorf("%+v", i.Status.Conditions)
	})
}

func spec(o map[string]any, fields ...string) any {
	value, _, _ := unstructured.NestedFieldNoCopy(o, append([]string{"spec"}, fields...)...)
	return value
}

// newer is a Service with what an older importing cluster doesn't know, or may refuse.
func newer(s *corev1.Service) {
	near, app, seconds, local := corev1.ServiceTrafficDistributionPreferSameZone, "kubernetes.io/h2c", int32(10), corev1.ServiceInternalTrafficPolicyLocal
	s.Spec.TrafficDistribution, s.Spec.Ports[0].AppProtocol, s.Spec.InternalTrafficPolicy = &near, &app, &local
	s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
}

// Whatever the importing cluster refuses, an import gets its addresses and endpoints, and a running
// one gets another port, and the condition says what it has instead.
func TestRefusedFields(t *testing.T) {
	portsHave := func(ports any, field string) bool {
		all, _ := ports.([]any)
		for _, p := range all {
			if p.(map[string]any)[field] != nil {
				return true
			}
		}
		return false
	}
	for _, c := range []struct {
		name, resource string
		code           int
		refused        func(o map[string]any) bool
		message        string
	}{
		{
			"a value of a later release", "services", 422,
			func(o map[string]any) bool { return spec(o, "trafficDistribution") == "PreferSameZone" },
			"derived service: trafficDistribution PreferSameZone as PreferClose",
		},
		{
			"a field of a later release", "services", 422,
			func(o map[string]any) bool { return spec(o, "trafficDistribution") != nil },
			"derived service: no trafficDistribution PreferSameZone",
		},
		{
			"session affinity", "services", 403,
			func(o map[string]any) bool { return spec(o, "sessionAffinity") == "ClientIP" },
			"derived service: no sessionAffinity of 10 s",
		},
		{
			"requests that stay on a node", "services", 403,
			func(o map[string]any) bool { return spec(o, "internalTrafficPolicy") == "Local" },
			"derived service: no internalTrafficPolicy Local",
		},
		{
			"appProtocol of a Service", "services", 422,
			func(o map[string]any) bool { return portsHave(spec(o, "ports"), "appProtocol") },
			"derived service: no appProtocol of ports",
		},
		{
			"appProtocol of endpoints", "endpointslices", 403,
			func(o map[string]any) bool { return portsHave(o["ports"], "appProtocol") },
			"endpointslice: no appProtocol of ports",
		},
		{
			"labels", "serviceimports", 403,
			func(o map[string]any) bool { return (&unstructured.Unstructured{Object: o}).GetLabels()["team"] != "" },
			"serviceimport: no exported labels",
		},
		{
			"a field of imports", "serviceimports", 422,
			func(o map[string]any) bool { return spec(o, "trafficDistribution") != nil },
			"serviceimport: no trafficDistribution PreferSameZone",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			inClusterset(t, func(cs *clusterset) {
				cs.refuseObjects(c.resource, c.code, c.refused)
				running := cs.start()
				cs.put(cs.aws, svc("web", newer), "10.4.0.1")
				cs.export(cs.aws, "web", 10, func(x *v1beta1.ServiceExport) {
					x.Spec.ExportedLabels, x.Spec.ExportedAnnotations = map[string]string{"team": "a"}, map[string]string{"note": "b"}
				})
				i := cs.imported(cs.gcp, "web", "aws 10.4.0.1:8080")
				cs.ready("web", "True Ready", c.message)
				if len(i.Spec.IPs) == 0 || i.Annotations["note"] != "b" || i.Labels["team"] == "" != (c.resource == "serviceimports" && c.code == 403) {
					t.Errorf("%+v %+v", i.ObjectMeta, i.Spec)
				}
				// Other fields of a running one change, and nothing is written again and again.
				more := svc("web", newer, func(s *corev1.Service) {
					s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "more", Port: 81, Protocol: corev1.ProtocolTCP})
				})
				cs.put(cs.aws, more)
				sl := kubetest.EndpointSlice(more, "web-10-4-0-1", "10.4.0.1")
				sl.Namespace = "shop"
				cs.aws.Put(t, "endpointslices", sl)
				cs.imported(cs.gcp, "web", "aws 10.4.0.1:8080", "aws 10.4.0.1:8081")
				derived := func(want int) {
					t.Helper()
					wait(t, "the ports", func() error {
						var i v1beta1.ServiceImport
						var s corev1.Service
						cs.gcp.Get("serviceimports", "shop", "web", &i)
						cs.gcp.Get("services", "shop", mcs.DerivedName("shop", "web"), &s)
						if len(i.Spec.Ports) != want || len(s.Spec.Ports) != want {
							return fmt.Errorf("import %v, Service %v", i.Spec.Ports, s.Spec.Ports)
						}
						return nil
					})
				}
				derived(2)
				cs.ready("web", "True Ready", c.message)
				before := len(cs.gcp.Writes())
				time.Sleep(time.Hour)
				if writes := len(cs.gcp.Writes()) - before; writes > 100 {
					t.Errorf("%d writes in an hour", writes)
				}
				// A restart refuses nothing that is there.
				running.stop()
				cs.start()
				cs.ready("web", "True Ready", c.message)
				// Later the cluster knows them.
				cs.gcp.Hook(func(h *kubetest.Hooks) { h.Admit = nil })
				time.Sleep(15 * time.Minute)
				cs.ready("web", "True Ready", "")
				derived(2)
			})
		})
	}
}

// The same of mirrors, whose status says so.
func TestRefusedFieldsOfMirrors(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakes) {
		(&clusterset{f, t}).refuseObjects("services", 422, func(o map[string]any) bool { return spec(o, "sessionAffinity") == "ClientIP" })
		i := f.start(t, nil)
		put(t, f.aws, "shop", svc("web", newer), [2]string{"web-1", "10.4.0.1"})
		s := leadsTo(t, f.gcp, webName, "10.4.0.1")
		if s.Spec.SessionAffinity != corev1.ServiceAffinityNone || *s.Spec.Ports[0].AppProtocol != "kubernetes.io/h2c" {
			t.Errorf("%+v", s.Spec)
		}
		i.listed(t, webName, func(s statuspage.Service) bool { return len(s.Overridden) == 1 && s.Error == "" })
	})
}

// A quota of the namespace refuses objects of imports: the condition has its words, and ends with it.
func TestQuotasOfNamespaces(t *testing.T) {
	for resource, want := range map[string]string{"services": "its Service has no addresses yet: ", "endpointslices": ""} {
		t.Run(resource, func(t *testing.T) {
			inClusterset(t, func(c *clusterset) {
				c.gcp.Hook(func(h *kubetest.Hooks) {
					h.Fail = func(r kubetest.Request) *metav1.Status {
						if r.Resource != resource || r.Verb != kubetest.Create || r.Namespace != "shop" {
							return nil
						}
						st := kubetest.Failure(http.StatusForbidden, metav1.StatusReasonForbidden)
						st.Message = "exceeded quota: few"
						return st
					}
				})
				c.start()
				c.put(c.aws, svc("web"), "10.4.0.1")
				c.export(c.aws, "web", 10)
				c.ready("web", "False Pending", want+"exceeded quota: few")
				before := len(c.gcp.Writes())
				time.Sleep(time.Hour)
				if writes := len(c.gcp.Writes()) - before; writes > 200 {
					t.Errorf("%d writes in an hour", writes)
				}
				c.gcp.Hook(func(h *kubetest.Hooks) { h.Fail = nil })
				time.Sleep(time.Minute)
				c.imported(c.gcp, "web", "aws 10.4.0.1:8080")
				c.ready("web", "True Ready", "")
			})
		})
	}
}
