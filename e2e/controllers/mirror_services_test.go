package controllers_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
	"github.com/kube-semaphore/kube-semaphore/mirror"
	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

func (b *mirrorBed) testRefusals(t *testing.T) {
	i := b.start(t, nil)
	named := svc("elsewhere", func(s *corev1.Service) {
		s.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.org"}
	})
	must(t, putService(t.Context(), b.aws, "web", named))
	hostile := svc("hostile")
	names := slice(hostile, "names")
	names.AddressType = discoveryv1.AddressTypeFQDN
	names.Endpoints = kubetest.Endpoints("db.example.org")
	must(t, putService(t.Context(), b.aws, "web", hostile, names, slice(hostile, "mixed",
		"10.4.1.1", // the only one that is a pod of aws
		"10.2.0.1", "10.6.0.1", "10.102.0.1", "192.0.2.1", "8.8.8.8",
	)))
	must(t, putService(t.Context(), b.aws, "web", svc("good"), slice(svc("good"), "good", "10.4.1.2")))
	b.leadsTo(t, "aws-web-73736d-good", "10.4.1.2")
	b.leadsTo(t, "aws-web-73736d-hostile", "10.4.1.1")
	i.listed(t, "aws-web-73736d-hostile", func(s statuspage.Service) bool { return s.Refused["aws"] != "" })
	report := i.Status()
	if diff := cmp.Diff([]statuspage.RejectedOrigin{{Origin: "aws/web/elsewhere", Reason: "type ExternalName: it has a name elsewhere, and no endpoints"}}, report.Rejected); diff != "" {
		t.Errorf("rejected (-want +got):\n%s", diff)
	}
	for _, c := range report.Clusters {
		if c.Name == "aws" && (c.Refused != 6 || c.Endpoints != 2 || c.Services != 2) {
			t.Errorf("aws: %+v", c)
		}
	}
}

func (b *mirrorBed) testNames(t *testing.T) {
	// Prefix and namespace make one name: "c1" and "x-y", "c1-x" and "y".
	prefixes := func(cfg *mirror.Config) { cfg.Remotes[0].Prefix, cfg.Remotes[1].Prefix = "c1", "c1-x" }
	i := b.start(t, prefixes)
	must(t, putService(t.Context(), b.aws, "x-y", svc("n"), slice(svc("n"), "n", "10.4.0.1")))
	b.leadsTo(t, "c1-x-y-73736d-n", "10.4.0.1")
	must(t, putService(t.Context(), b.merit, "y", svc("n"), slice(svc("n"), "n", "10.6.0.1")))
	wait(t, "the second to be refused", func() error {
		for _, r := range i.Status().Rejected {
			if r.Origin == "merit/y/n" && strings.Contains(r.Reason, "aws/x-y/n") {
				return nil
			}
		}
		return fmt.Errorf("%+v", i.Status().Rejected)
	})
	b.leadsTo(t, "c1-x-y-73736d-n", "10.4.0.1")
	b.quiet(t, i)
	// Without the first, the name is free.
	must(t, removeService(t.Context(), b.aws, "x-y", "n"))
	b.leadsTo(t, "c1-x-y-73736d-n", "10.6.0.1")
	b.settled(t, i)

	long := svc(strings.Repeat("n", 63))
	namespace := strings.Repeat("s", 63)
	must(t, putService(t.Context(), b.aws, namespace, long, slice(long, "long", "10.4.0.9")))
	name := mirror.Name("c1", origin.Key{Namespace: namespace, Name: long.Name})
	if len(name) != 63 {
		t.Errorf("%s has %d characters", name, len(name))
	}
	b.leadsTo(t, name, "10.4.0.9")
	b.settled(t, i)
}

func (b *mirrorBed) testDrift(t *testing.T) {
	i := b.start(t, nil)
	s := svc("web")
	must(t, putService(t.Context(), b.aws, "shop", s, slice(s, "web-1", "10.4.0.1")))
	const name = "aws-shop-73736d-web"
	b.leadsTo(t, name, "10.4.0.1")
	api := b.gcp.Client().DiscoveryV1().EndpointSlices(home)
	// Each of these changes a Service of its own: changes of one that follow each other are
	// repaired at a growing distance.
	for n, c := range []struct{ what, body string }{
		{"a port more", `{"spec":{"ports":[{"name":"http","port":80},{"name":"more","port":81}]}}`},
		{"another port", `{"spec":{"ports":[{"name":"http","port":8080}]}}`},
		{"a selector", `{"spec":{"selector":{"app":"other"}}}`},
		{"another type", `{"spec":{"type":"NodePort"}}`},
		{"external addresses", `{"spec":{"externalIPs":["192.0.2.1"]}}`},
		{"affinity", `{"spec":{"sessionAffinity":"ClientIP"}}`},
		{"local traffic only", `{"spec":{"internalTrafficPolicy":"Local"}}`},
		{"no label", `{"metadata":{"labels":{"mirrored-svc":null}}}`},
		{"no labels", `{"metadata":{"labels":null}}`},
		{"another origin", `{"metadata":{"annotations":{"mirror.semaphore.uw.io/name":"other"}}}`},
		{"one family", `{"spec":{"ipFamilyPolicy":"SingleStack"}}`},
	} {
		origin := svc(fmt.Sprintf("web-%d", n))
		name := "aws-shop-73736d-" + origin.Name
		must(t, putService(t.Context(), b.aws, "shop", origin, slice(origin, origin.Name+"-1", "10.4.0.7")))
		b.leadsTo(t, name, "10.4.0.7")
		made := b.service(t, name)
		patchService(t, b.gcp, home, name, c.body)
		b.settled(t, i)
		if got := b.service(t, name); got.UID != made.UID || got.Spec.ClusterIP != made.Spec.ClusterIP {
			t.Errorf("%s: replaced instead of repaired", c.what)
		}
	}
	for _, body := range []string{
		`{"endpoints":[]}`,
		`{"endpoints":[{"addresses":["10.4.0.1"],"nodeName":"local"}]}`,
		`{"ports":[{"name":"http","port":1}]}`,
		`{"metadata":{"labels":{"kubernetes.io/service-name":"other"}}}`,
		`{"metadata":{"labels":{"endpointslice.kubernetes.io/managed-by":null}}}`,
	} {
		if all := b.slices(t, name); len(all) == 1 {
			_, err := api.Patch(t.Context(), all[0].Name, types.MergePatchType, []byte(body), metav1.PatchOptions{})
			must(t, err)
		} else {
			t.Fatalf("%d slices", len(all))
		}
		b.settled(t, i)
	}
	// A slice with our marks that another client created is removed.
	planted := slice(s, "planted", "10.4.0.66")
	planted.Labels = map[string]string{discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: programs.ServiceMirror}
	_, err := api.Create(t.Context(), planted, metav1.CreateOptions{})
	must(t, err)
	b.settled(t, i)
	b.leadsTo(t, name, "10.4.0.1")

	must(t, api.Delete(t.Context(), b.slices(t, name)[0].Name, metav1.DeleteOptions{}))
	b.settled(t, i)
	must(t, b.gcp.Client().CoreV1().Services(home).Delete(t.Context(), name, metav1.DeleteOptions{}))
	b.settled(t, i)
	// Objects that only we write have no managed fields.
	const other = "aws-shop-73736d-other"
	o := svc("other")
	must(t, putService(t.Context(), b.aws, "shop", o, slice(o, "other-1", "10.4.0.2")))
	b.leadsTo(t, other, "10.4.0.2")
	must(t, putService(t.Context(), b.aws, "shop", o, slice(o, "other-1", "10.4.0.3")))
	b.leadsTo(t, other, "10.4.0.3")
	if all := b.slices(t, other); len(all) != 1 || len(all[0].ManagedFields) > 0 {
		t.Errorf("slices that are ours alone, with managed fields: %v", all)
	}
	// Labels and annotations of others stay.
	patchService(t, b.gcp, home, name, `{"metadata":{"labels":{"team":"a"},"annotations":{"note":"b"}},"spec":{"selector":{"app":"other"}}}`)
	b.settled(t, i)
	if got := b.service(t, name); got.Labels["team"] != "a" || got.Annotations["note"] != "b" {
		t.Errorf("labels %v, annotations %v", got.Labels, got.Annotations)
	}
}

func (b *mirrorBed) testForeign(t *testing.T) {
	const name = "aws-shop-73736d-web"
	mine := svc(name, func(s *corev1.Service) { s.Labels = nil })
	must(t, putService(t.Context(), b.gcp, home, mine))
	other := svc("other", func(s *corev1.Service) { s.Labels = map[string]string{"app": "other"} })
	must(t, putService(t.Context(), b.gcp, home, other, slice(other, "other-1", "10.2.0.1")))
	before := b.service(t, name)

	i := b.start(t, nil)
	s := svc("web")
	must(t, putService(t.Context(), b.aws, "shop", s, slice(s, "web-1", "10.4.0.1")))
	must(t, putService(t.Context(), b.aws, "shop", svc("fine"), slice(svc("fine"), "fine-1", "10.4.0.2")))
	b.leadsTo(t, "aws-shop-73736d-fine", "10.4.0.2")
	i.listed(t, name, func(s statuspage.Service) bool { return strings.Contains(s.Error, "in the way and not ours") })
	must(t, removeService(t.Context(), b.aws, "shop", "web"))
	wait(t, "no more error", func() error {
		for _, s := range i.Status().Services {
			if s.Name == name {
				return fmt.Errorf("%+v", s)
			}
		}
		return nil
	})
	if diff := cmp.Diff(before, b.service(t, name)); diff != "" {
		t.Errorf("the foreign service (-before +after):\n%s", diff)
	}
	b.leadsTo(t, "other", "10.2.0.1")

	// Without the foreign service, ours takes its place.
	must(t, putService(t.Context(), b.aws, "shop", s, slice(s, "web-1", "10.4.0.1")))
	i.listed(t, name, func(s statuspage.Service) bool { return s.Error != "" })
	must(t, removeService(t.Context(), b.gcp, home, name))
	b.leadsTo(t, name, "10.4.0.1")

	// Endpoints that another client adds to a service of ours are reported, and stay.
	planted := slice(s, "planted", "10.2.0.66")
	planted.Labels[discoveryv1.LabelServiceName] = name
	must(t, putSlice(t.Context(), b.gcp, home, planted))
	i.listed(t, name, func(s statuspage.Service) bool { return slices.Equal(s.Foreign, []string{"planted"}) })
	b.recorded(t, name, "ForeignEndpoints")
	b.leadsTo(t, name, "10.2.0.66", "10.4.0.1")
}

// recorded waits for an Event about a local service.
func (b *mirrorBed) recorded(t *testing.T, name, reason string) {
	t.Helper()
	wait(t, "event "+reason+" of "+name, func() error {
		all := eventsAbout(t, b.gcp, name)
		if !slices.ContainsFunc(all, func(e corev1.Event) bool { return e.Reason == reason }) {
			return fmt.Errorf("%d others", len(all))
		}
		return nil
	})
}
