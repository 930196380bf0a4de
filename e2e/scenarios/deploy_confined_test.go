package scenarios_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/pathreport"
)

const (
	mirrorAccount = "semaphore-service-mirror"
	policyAccount = "semaphore-policy"
	// ourService is a name that a mirror can have.
	ourService = "gcp-default-73736d-web"
)

// confined starts a cluster with an account of ours and its admission policies. The account
// gets every right first, so that the policies refuse and not RBAC. Other is an account of
// that name in another namespace, with the same rights: the original tools may have one.
func confined(t *testing.T, folder, account string, definitions ...string) (cluster *testbed.Cluster, token, other string) {
	t.Helper()
	cluster = startCluster(t)
	must(t, cluster.Apply(t.Context(), append(definitions, filepath.Join(deployFolder(t), folder))...))
	for _, namespace := range []string{systemNamespace, "elsewhere"} {
		must(t, cluster.Grant(t.Context(), namespace, account,
			rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"services", "services/status", "events"}, Verbs: []string{"*"}},
			rbacv1.PolicyRule{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: []string{"*"}},
			rbacv1.PolicyRule{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"*"}},
			rbacv1.PolicyRule{APIGroups: []string{"semaphore.uw.io"}, Resources: []string{"wireguardpeers"}, Verbs: []string{"*"}},
			rbacv1.PolicyRule{APIGroups: []string{"projectcalico.org", "crd.projectcalico.org"}, Resources: []string{"globalnetworksets"}, Verbs: []string{"*"}},
		))
	}
	return cluster, accountToken(t, cluster, systemNamespace, account, "aws-1"), accountToken(t, cluster, "elsewhere", account, "aws-1")
}

var (
	dryCreate = metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	dryPatch  = metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}
	dryDelete = metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}
)

// mirrorService is a Service like those of the service mirror, changed.
func mirrorService(name string, change func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name:   name,
			Labels: map[string]string{"mirrored-svc": "true", "mirror-svc-prefix-sync": "gcp"},
			Annotations: map[string]string{
				"mirror.semaphore.uw.io/cluster": "gcp", "mirror.semaphore.uw.io/namespace": "default", "mirror.semaphore.uw.io/name": "web",
			},
		},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}
	if change != nil {
		change(s)
	}
	return s
}

// untilRefused waits until one of our policies refuses a request. API servers enforce new
// policies with a delay, and not all of them at once.
func untilRefused(t *testing.T, act func(context.Context) error) {
	t.Helper()
	eventually(t, time.Minute, "the policy to count", func(ctx context.Context) error {
		err := act(ctx)
		if err == nil {
			return errors.New("it went through")
		}
		if strings.Contains(err.Error(), ofOurPolicy) {
			return nil
		}
		return err
	})
}

// TestServiceMirrorWritesOnlyMirrors tests the admission policies of the service mirror's
// account.
func TestServiceMirrorWritesOnlyMirrors(t *testing.T) {
	t.Parallel()
	cluster, token, elsewhere := confined(t, "service-mirror", mirrorAccount)
	own, admin := clientWith(t, cluster, token), cluster.Client()
	services := own.CoreV1().Services(systemNamespace)
	create := func(ctx context.Context, client kubernetes.Interface, s *corev1.Service) error {
		_, err := client.CoreV1().Services(systemNamespace).Create(ctx, s, dryCreate)
		return err
	}
	foreign := mirrorService("foreign", func(s *corev1.Service) { s.Labels, s.Annotations = nil, nil })
	untilRefused(t, func(ctx context.Context) error { return create(ctx, own, foreign) })

	const inTheName, noOtherWay = "must have the label mirrored-svc=true and a mirror's name", "must have type ClusterIP, and no external IPs, load balancer or node port"
	for _, c := range []struct {
		name   string
		change func(*corev1.Service)
		want   string
	}{
		{"as it is", nil, ""},
		{"headless", func(s *corev1.Service) { s.Spec.ClusterIP = corev1.ClusterIPNone }, ""},
		{"global", func(s *corev1.Service) {
			s.Labels["global-svc"], s.Annotations["global-svc-clusters"] = "true", "aws,gcp"
		}, ""},
		{"of a long name", func(s *corev1.Service) { s.Name = "a" + strings.Repeat("b", 51) + "-0123456789" }, ""},
		{"with affinity", func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }, ""},
		{"without a mark", func(s *corev1.Service) { s.Labels = nil }, inTheName},
		{"of another name", func(s *corev1.Service) { s.Name = "kube-dns" }, inTheName},
		{"with external addresses", func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"192.0.2.1"} }, noOtherWay},
		{"on node ports", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeNodePort }, noOtherWay},
		{"behind a load balancer", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeLoadBalancer }, noOtherWay},
		{"with a load balancer's address", func(s *corev1.Service) { s.Spec.LoadBalancerIP = "192.0.2.1" }, noOtherWay},
		{"that is another name", func(s *corev1.Service) {
			s.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com"}
		}, noOtherWay},
		{"with a selector", func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app": "x"} }, "must not have a selector"},
		{"with the annotation that GKE adds to each", func(s *corev1.Service) { s.Annotations["cloud.google.com/neg"] = `{"ingress":true}` }, ""},
		{"with that annotation and something else in it", func(s *corev1.Service) {
			s.Annotations["cloud.google.com/neg"] = `{"exposed_ports":{"80":{}}}`
		}, "may not change the annotation cloud.google.com/neg"},
		{"with an annotation that says who was accepted", func(s *corev1.Service) {
			s.Annotations["mirror.semaphore.uw.io/accepted-remotes"] = "gcp,merit"
		}, ""},
		{"with another annotation", func(s *corev1.Service) { s.Annotations["external-dns.alpha.kubernetes.io/hostname"] = "x.example" },
			"may not change the annotation external-dns"},
		{"with kubectl's annotation", func(s *corev1.Service) { s.Annotations[corev1.LastAppliedConfigAnnotation] = "{}" }, noLastApplied},
		{"with kubectl's annotation, and managed fields", func(s *corev1.Service) {
			s.Annotations[corev1.LastAppliedConfigAnnotation] = "{}"
			s.ManagedFields = []metav1.ManagedFieldsEntry{{
				Manager: "kubectl", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1",
				FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{}}`),
			}}
		}, noLastApplied},
		{"with another label", func(s *corev1.Service) { s.Labels["app"] = "x" }, "may not change the label app"},
		{"with another label, and managed fields", func(s *corev1.Service) {
			s.Labels["app"] = "x"
			s.ManagedFields = []metav1.ManagedFieldsEntry{{
				Manager: "kubectl", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1",
				FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{}}`),
			}}
		}, "may not change the label app"},
		{"with another label, and without managed fields", func(s *corev1.Service) {
			s.Labels["app"] = "x"
			s.ManagedFields = []metav1.ManagedFieldsEntry{{}}
		}, "may not change the label app"},
		{"with a finalizer", func(s *corev1.Service) { s.Finalizers = []string{"example.com/stay"} }, "neither finalizers nor owners"},
		{"with an owner", func(s *corev1.Service) {
			s.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "x", UID: "y"}}
		}, "neither finalizers nor owners"},
	} {
		t.Run("created "+c.name, func(t *testing.T) {
			refused(t, create(t.Context(), own, mirrorService(ourService, c.change)), c.want)
		})
	}

	put := func(s *corev1.Service) {
		t.Helper()
		_, err := admin.CoreV1().Services(systemNamespace).Create(t.Context(), s, metav1.CreateOptions{})
		must(t, err)
	}
	put(foreign)
	put(mirrorService(ourService, func(s *corev1.Service) { s.Labels["team"], s.Annotations["note"] = "a", "b" }))
	bent := mirrorService("gcp-default-73736d-bent", func(s *corev1.Service) {
		s.Labels, s.Spec.Type = nil, corev1.ServiceTypeNodePort
		s.Spec.Selector, s.Spec.ExternalIPs = map[string]string{"app": "x"}, []string{"192.0.2.1"}
	})
	put(bent)
	const original, appliedService = "gl-default-73736d-web", "gcp-default-73736d-applied"
	put(mirrorService(appliedService, func(s *corev1.Service) {
		s.Annotations[corev1.LastAppliedConfigAnnotation] = `{"kind":"Service"}`
	}))
	put(mirrorService(original, func(s *corev1.Service) {
		s.Labels, s.Annotations = map[string]string{"global-svc": "true"}, nil
	}))
	const notOurs = "was not created by the service mirror"
	for _, c := range []struct{ name, service, patch, want string }{
		{"of a foreign one", "foreign", `{"spec":{"sessionAffinity":"ClientIP"}}`, notOurs},
		{"that takes a foreign one over", "foreign", `{"metadata":{"labels":{"mirrored-svc":"true"}}}`, notOurs},
		{"of its own", ourService, `{"spec":{"sessionAffinity":"ClientIP"}}`, ""},
		{"that strips the mark", ourService, `{"metadata":{"labels":{"mirrored-svc":null}}}`, inTheName},
		{"to external addresses", ourService, `{"spec":{"externalIPs":["192.0.2.1"]}}`, noOtherWay},
		{"to node ports", ourService, `{"spec":{"type":"NodePort"}}`, noOtherWay},
		{"to a selector", ourService, `{"spec":{"selector":{"app":"x"}}}`, "must not have a selector"},
		{"of a label of others", ourService, `{"metadata":{"labels":{"team":"c"}}}`, "may not change the label team"},
		{"of another label, with managed fields of its own", ourService, `{"metadata":{"labels":{"app":"x"},"managedFields":[{"manager":"kubectl",` +
			`"operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{}}}]}}`, "may not change the label app"},
		{"of another annotation, without managed fields", ourService,
			`{"metadata":{"annotations":{"external-dns.alpha.kubernetes.io/hostname":"x.example"},"managedFields":[{}]}}`, "may not change the annotation external-dns"},
		{"to kubectl's annotation", ourService, lastApplied("{}"), noLastApplied},
		{"of kubectl's annotation", appliedService, lastApplied("{}"), noLastApplied},
		{"of one with kubectl's annotation", appliedService, `{"spec":{"sessionAffinity":"ClientIP"}}`, ""},
		{"that removes a label of others", ourService, `{"metadata":{"labels":{"team":null}}}`, "may not change the label team"},
		{"of an annotation of others", ourService, `{"metadata":{"annotations":{"note":"c"}}}`, "may not change the annotation note"},
		{"that removes an annotation of others", ourService, `{"metadata":{"annotations":{"note":null}}}`, "may not change the annotation note"},
		{"to a finalizer", ourService, `{"metadata":{"finalizers":["example.com/stay"]}}`, "neither finalizers nor owners"},
		{"that takes one of the original tool over", original,
			`{"metadata":{"labels":{"mirrored-svc":"true","mirror-svc-prefix-sync":"gl"},"annotations":{"global-svc-clusters":"aws,gcp"}}}`, ""},
		{"that repairs one", bent.Name,
			`{"metadata":{"labels":{"mirrored-svc":"true"}},"spec":{"type":"ClusterIP","ports":[{"port":80}],"selector":null,"externalIPs":null}}`, ""},
		{"that repairs a part of one", bent.Name, `{"metadata":{"labels":{"mirrored-svc":"true"}},"spec":{"type":"ClusterIP","ports":[{"port":80}],"selector":null}}`, noOtherWay},
	} {
		t.Run("change "+c.name, func(t *testing.T) {
			_, err := services.Patch(t.Context(), c.service, types.MergePatchType, []byte(c.patch), dryPatch)
			refused(t, err, c.want)
		})
	}
	apply := func(manager, name, annotations string) error {
		force := true
		object := fmt.Sprintf(`{"apiVersion":"v1","kind":"Service","metadata":{"name":%q,"labels":{"mirrored-svc":"true"},"annotations":%s},"spec":{"ports":[{"port":80}]}}`,
			name, annotations)
		_, err := services.Patch(t.Context(), name, types.ApplyPatchType, []byte(object), metav1.PatchOptions{FieldManager: manager, Force: &force, DryRun: []string{metav1.DryRunAll}})
		return err
	}
	for _, name := range []string{ourService, appliedService, "gcp-default-73736d-new"} {
		t.Run("application of kubectl's annotation to "+name, func(t *testing.T) {
			refused(t, apply("x", name, fmt.Sprintf(`{%q:"{}"}`, corev1.LastAppliedConfigAnnotation)), noLastApplied)
		})
	}
	t.Run("application by kubectl, for which the API server sets its annotation", func(t *testing.T) {
		_, err := services.Patch(t.Context(), appliedService, types.MergePatchType, fmt.Appendf(nil, ownFields, "v1"), metav1.PatchOptions{})
		must(t, err)
		refused(t, apply("kubectl", appliedService, "{}"), noLastApplied)
	})
	t.Run("change of a status", func(t *testing.T) {
		_, err := services.Patch(t.Context(), ourService, types.MergePatchType,
			[]byte(`{"metadata":{"annotations":{"mirror.semaphore.uw.io/name":"x"}}}`), dryPatch, "status")
		refused(t, err, "only create, patch and delete services")
	})
	t.Run("deletion of its own", func(t *testing.T) { must(t, services.Delete(t.Context(), ourService, dryDelete)) })
	t.Run("deletion of one of the original tool", func(t *testing.T) { must(t, services.Delete(t.Context(), original, dryDelete)) })
	t.Run("deletion of a foreign one", func(t *testing.T) {
		refused(t, services.Delete(t.Context(), foreign.Name, dryDelete), notOurs)
	})
	t.Run("deletion in another namespace", func(t *testing.T) {
		refused(t, own.CoreV1().Services(metav1.NamespaceDefault).Delete(t.Context(), "kubernetes", dryDelete), notOurs)
	})
	t.Run("endpoints", func(t *testing.T) { mirrorEndpoints(t, own, admin) })
	t.Run("leases and events", func(t *testing.T) { mirrorReplicas(t, own, admin) })
	t.Run("everybody else goes on", func(t *testing.T) {
		other := mirrorService("other", func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"192.0.2.1"} })
		must(t, errors.Join(create(t.Context(), admin, other), create(t.Context(), clientWith(t, cluster, elsewhere), other)))
	})
}

func mirrorEndpoints(t *testing.T, own, admin kubernetes.Interface) {
	port, node := int32(80), "aws-1"
	slice := func(name string, change func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice {
		s := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
				discoveryv1.LabelManagedBy: mirrorAccount, discoveryv1.LabelServiceName: ourService,
			}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.4.0.1"}}},
			Ports:       []discoveryv1.EndpointPort{{Port: &port}},
		}
		if change != nil {
			change(s)
		}
		return s
	}
	untilRefused(t, func(ctx context.Context) error {
		unlabelled := slice(ourService+"-1", func(s *discoveryv1.EndpointSlice) { s.Labels = nil })
		_, err := own.DiscoveryV1().EndpointSlices(systemNamespace).Create(ctx, unlabelled, dryCreate)
		return err
	})
	const labels, noService, addresses, notOurs = "must have its labels", "was not created by the service mirror", "must not refer to nodes or objects", "were not created by the service mirror"
	for _, c := range []struct {
		name   string
		change func(*discoveryv1.EndpointSlice)
		want   string
	}{
		{"as it is", nil, ""},
		{"without endpoints", func(s *discoveryv1.EndpointSlice) { s.Endpoints = nil }, ""},
		{"without a manager", func(s *discoveryv1.EndpointSlice) { delete(s.Labels, discoveryv1.LabelManagedBy) }, labels},
		{"of another manager", func(s *discoveryv1.EndpointSlice) {
			s.Labels[discoveryv1.LabelManagedBy] = "endpointslice-controller.k8s.io"
		}, labels},
		{"for a foreign service", func(s *discoveryv1.EndpointSlice) { s.Labels[discoveryv1.LabelServiceName] = "foreign" }, noService},
		{"for no service", func(s *discoveryv1.EndpointSlice) { delete(s.Labels, discoveryv1.LabelServiceName) }, noService},
		{"of names", func(s *discoveryv1.EndpointSlice) {
			s.AddressType, s.Endpoints[0].Addresses = discoveryv1.AddressTypeFQDN, []string{"example.com"} //nolint:staticcheck // Which is refused.
		}, addresses},
		{"on a node", func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].NodeName = &node }, addresses},
		{"of a pod", func(s *discoveryv1.EndpointSlice) {
			s.Endpoints[0].TargetRef = &corev1.ObjectReference{Kind: "Pod", Name: "x"}
		}, addresses},
		{"with a finalizer", func(s *discoveryv1.EndpointSlice) { s.Finalizers = []string{"example.com/stay"} }, "neither finalizers nor owners"},
	} {
		t.Run("slice created "+c.name, func(t *testing.T) {
			_, err := own.DiscoveryV1().EndpointSlices(systemNamespace).Create(t.Context(), slice(ourService+"-1", c.change), dryCreate)
			refused(t, err, c.want)
		})
	}
	for _, s := range []*discoveryv1.EndpointSlice{
		slice(ourService+"-1", nil),
		slice("foreign", func(s *discoveryv1.EndpointSlice) { delete(s.Labels, discoveryv1.LabelManagedBy) }),
		slice("unmarked", func(s *discoveryv1.EndpointSlice) {
			s.Labels, s.Annotations = nil, map[string]string{"mirror.semaphore.uw.io/cluster": "gcp"}
		}),
	} {
		_, err := admin.DiscoveryV1().EndpointSlices(systemNamespace).Create(t.Context(), s, metav1.CreateOptions{})
		must(t, err)
	}
	for _, c := range []struct{ name, slice, patch, want string }{
		{"of its own", ourService + "-1", `{"endpoints":[{"addresses":["10.4.0.2"]}]}`, ""},
		{"that repairs one", "unmarked", `{"metadata":{"labels":{"endpointslice.kubernetes.io/managed-by":"` + mirrorAccount + `","kubernetes.io/service-name":"` + ourService + `"}}}`, ""},
		{"of a foreign one", "foreign", `{"endpoints":[]}`, notOurs},
		{"that takes a foreign one over", "foreign", `{"metadata":{"labels":{"endpointslice.kubernetes.io/managed-by":"` + mirrorAccount + `"}}}`, notOurs},
		{"that strips the mark", ourService + "-1", `{"metadata":{"labels":{"endpointslice.kubernetes.io/managed-by":null}}}`, labels},
		{"to a foreign service", ourService + "-1", `{"metadata":{"labels":{"kubernetes.io/service-name":"foreign"}}}`, noService},
	} {
		t.Run("change of a slice "+c.name, func(t *testing.T) {
			_, err := own.DiscoveryV1().EndpointSlices(systemNamespace).Patch(t.Context(), c.slice, types.MergePatchType, []byte(c.patch), dryPatch)
			refused(t, err, c.want)
		})
	}
	slices := own.DiscoveryV1().EndpointSlices(systemNamespace)
	must(t, slices.Delete(t.Context(), ourService+"-1", dryDelete))
	t.Run("deletion of all slices", func(t *testing.T) {
		refused(t, slices.DeleteCollection(t.Context(), dryDelete, metav1.ListOptions{}), notOurs)
	})
	t.Run("deletion of a foreign slice", func(t *testing.T) { refused(t, slices.Delete(t.Context(), "foreign", dryDelete), notOurs) })
}

// metadata are changes of Leases and Events that no program of ours makes: finalizers,
// owners, labels and annotations.
func metadata() map[string]func(*metav1.ObjectMeta) {
	return map[string]func(*metav1.ObjectMeta){
		"a label":       func(m *metav1.ObjectMeta) { m.Labels = map[string]string{pathreport.Label: pathreport.LabelValue} },
		"an annotation": func(m *metav1.ObjectMeta) { m.Annotations = map[string]string{pathreport.Annotation: "{}"} },
		"a finalizer":   func(m *metav1.ObjectMeta) { m.Finalizers = []string{"example.com/stay"} },
		"an owner": func(m *metav1.ObjectMeta) {
			m.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "another", UID: "another"}}
		},
	}
}

func mirrorReplicas(t *testing.T, own, admin kubernetes.Interface) {
	leases(t, own, admin, mirrorAccount, policyAccount, "only write its own lease")
	const aboutServices, inItsName = "only create events about its services", "only create warnings, in its own name"
	for _, c := range []struct {
		name   string
		change func(*corev1.Event)
		want   string
	}{
		{"about a service of its own", nil, ""},
		{"about a foreign service", func(e *corev1.Event) { e.InvolvedObject.Name, e.Name = "foreign", "foreign.1" }, aboutServices},
		{"about a pod", func(e *corev1.Event) { e.InvolvedObject.Kind = "Pod" }, aboutServices},
		{"about nothing", func(e *corev1.Event) { e.InvolvedObject = corev1.ObjectReference{Namespace: systemNamespace} }, aboutServices},
		{"under the name of another one's", func(e *corev1.Event) { e.Name = "semaphore-wireguard.gcp.all" }, inItsName},
		{"in the name of another program", func(e *corev1.Event) { e.Source.Component = "kubelet" }, inItsName},
		{"that is none to worry about", func(e *corev1.Event) { e.Type = corev1.EventTypeNormal }, inItsName},
	} {
		t.Run("event "+c.name, func(t *testing.T) {
			e := &corev1.Event{
				ObjectMeta:     metav1.ObjectMeta{Name: ourService + ".18a"},
				InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: systemNamespace, Name: ourService, UID: "u"},
				Type:           corev1.EventTypeWarning, Reason: "Conflict", Source: corev1.EventSource{Component: mirrorAccount}, FirstTimestamp: metav1.Now(),
			}
			if c.change != nil {
				c.change(e)
			}
			_, err := own.CoreV1().Events(systemNamespace).Create(t.Context(), e, dryCreate)
			refused(t, err, c.want)
		})
	}
	eventsWith(t, own, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: ourService + ".18a"},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: systemNamespace, Name: ourService, UID: "u"},
		Type:           corev1.EventTypeWarning, Reason: "Conflict", Source: corev1.EventSource{Component: mirrorAccount}, FirstTimestamp: metav1.Now(),
	})
}

const tooLong = "at most 320"

const onlyData = "may change neither labels, annotations, finalizers nor owners"

// eventsWith checks that Events with further metadata are refused.
func eventsWith(t *testing.T, own kubernetes.Interface, event *corev1.Event) {
	t.Helper()
	for name, change := range metadata() {
		t.Run("event with "+name, func(t *testing.T) {
			e := event.DeepCopy()
			change(&e.ObjectMeta)
			_, err := own.CoreV1().Events(systemNamespace).Create(t.Context(), e, dryCreate)
			refused(t, err, onlyData)
		})
	}
}

// leases checks that an account can write its own Lease and not another one's.
func leases(t *testing.T, own, admin kubernetes.Interface, name, another, want string) {
	t.Helper()
	api := own.CoordinationV1().Leases(systemNamespace)
	lease := func(name string) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: systemNamespace}}
	}
	create := func(name string) error {
		_, err := api.Create(t.Context(), lease(name), metav1.CreateOptions{})
		return err
	}
	untilRefused(t, func(ctx context.Context) error {
		_, err := api.Create(ctx, lease(another), dryCreate)
		return err
	})
	refused(t, create(another), want)
	for what, change := range metadata() {
		t.Run("lease created with "+what, func(t *testing.T) {
			l := lease(name)
			change(&l.ObjectMeta)
			_, err := api.Create(t.Context(), l, dryCreate)
			refused(t, err, onlyData)
		})
	}
	long := strings.Repeat("x", 321)
	l := lease(name)
	l.Spec.HolderIdentity = &long
	_, err := api.Create(t.Context(), l, dryCreate)
	refused(t, err, tooLong)
	refused(t, create(name), "")
	taken, err := admin.CoordinationV1().Leases(systemNamespace).Create(t.Context(), lease(another), metav1.CreateOptions{})
	must(t, err)
	holder := strings.Repeat("x", 320)
	taken.Spec.HolderIdentity = &holder
	_, err = api.Update(t.Context(), taken, metav1.UpdateOptions{})
	refused(t, err, want)
	refused(t, api.Delete(t.Context(), another, metav1.DeleteOptions{}), want)
	refused(t, api.Delete(t.Context(), name, metav1.DeleteOptions{}), want)
	mine, err := api.Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
	mine.Spec.HolderIdentity = &holder
	_, err = api.Update(t.Context(), mine, metav1.UpdateOptions{})
	must(t, err)
	mine, err = api.Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
	mine.Spec.HolderIdentity = &long
	_, err = api.Update(t.Context(), mine, metav1.UpdateOptions{})
	refused(t, err, tooLong)
	for what, change := range metadata() {
		t.Run("lease changed with "+what, func(t *testing.T) {
			mine, err := api.Get(t.Context(), name, metav1.GetOptions{})
			must(t, err)
			change(&mine.ObjectMeta)
			_, err = api.Update(t.Context(), mine, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
			refused(t, err, onlyData)
		})
	}
	// Metadata of other writers is kept, and isn't refused.
	_, err = admin.CoordinationV1().Leases(systemNamespace).Patch(t.Context(), name, types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"a":"b"},"annotations":{"c":"d"}}}`), metav1.PatchOptions{})
	must(t, err)
	mine, err = api.Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
	next := "another"
	mine.Spec.HolderIdentity = &next
	_, err = api.Update(t.Context(), mine, metav1.UpdateOptions{})
	must(t, err)
}
