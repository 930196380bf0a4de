package scenarios_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// networkSet is a network set like those of semaphore-policy, changed.
func networkSet(api int, name string, change func(*unstructured.Unstructured)) *unstructured.Unstructured {
	s := &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"name": name},
		"spec":     map[string]any{"nets": []any{"10.4.0.1/32"}},
	}}
	s.SetGroupVersionKind(calico[api].GroupVersion().WithKind("GlobalNetworkSet"))
	s.SetLabels(map[string]string{
		"managed-by": "semaphore-policy", "policy.semaphore.uw.io/name": "web",
		"policy.semaphore.uw.io/namespace": "default", "policy.semaphore.uw.io/cluster": "gcp",
	})
	if change != nil {
		change(s)
	}
	return s
}

func setsWith(t *testing.T, cluster *testbed.Cluster, token string, api int) dynamic.ResourceInterface {
	t.Helper()
	cfg := rest.AnonymousClientConfig(cluster.RESTConfig())
	cfg.BearerToken = token
	client, err := dynamic.NewForConfig(cfg)
	must(t, err)
	return client.Resource(calico[api])
}

// TestPolicyWritesOnlyItsOwn tests the admission policies of semaphore-policy's account, with
// the custom resources of both of Calico's APIs.
func TestPolicyWritesOnlyItsOwn(t *testing.T) {
	t.Parallel()
	testdata := filepath.Join(filepath.Dir(deployFolder(t)), "policy", "testdata")
	cluster, token, elsewhere := confined(t, "policy", policyAccount, filepath.Join(testdata, "v3.yaml"), filepath.Join(testdata, "v1.yaml"))
	own, admin := clientWith(t, cluster, token), cluster.Client()
	for api, resource := range calico {
		t.Run(resource.GroupVersion().String(), func(t *testing.T) {
			sets, all := setsWith(t, cluster, token, api), cluster.Dynamic().Resource(resource)
			foreign := networkSet(api, "foreign", func(s *unstructured.Unstructured) { s.SetLabels(map[string]string{"role": "db"}) })
			untilRefused(t, func(ctx context.Context) error {
				_, err := sets.Create(ctx, foreign, dryCreate)
				return err
			})
			policySets(t, sets, all, api)
			other := setsWith(t, cluster, elsewhere, api)
			_, err := other.Create(t.Context(), networkSet(api, "other", func(s *unstructured.Unstructured) { s.SetLabels(nil) }), dryCreate)
			must(t, err)
		})
	}
	t.Run("leases", func(t *testing.T) { leases(t, own, admin, policyAccount, mirrorAccount, "only write its own lease") })
	t.Run("leases of the original's flags", func(t *testing.T) {
		leases(t, own, admin, policyAccount+"-gcp", "semaphore-policyx", "only write its own lease")
	})
	t.Run("events", func(t *testing.T) { policyEvents(t, own, admin) })
	t.Run("any number of leases", func(t *testing.T) {
		// Without the rights that only this test gives it.
		must(t, admin.RbacV1().ClusterRoleBindings().Delete(t.Context(), systemNamespace+"-"+policyAccount, metav1.DeleteOptions{}))
		update := authorizationv1.ResourceAttributes{Namespace: systemNamespace, Verb: "update", Group: "coordination.k8s.io", Resource: "leases"}
		must(t, cluster.AwaitRight(t.Context(), systemNamespace, policyAccount, update, false))
		create := func(name string) error {
			_, err := own.CoordinationV1().Leases(systemNamespace).Create(t.Context(),
				&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}, dryCreate)
			return err
		}
		for _, name := range []string{policyAccount + "-gcp", policyAccount + "-" + strings.Repeat("x", 200)} {
			refused(t, create(name), "may not create the lease "+name+", which it has no right to update")
		}
		for _, name := range []string{policyAccount, policyAccount + "-gcp"} { // of the tests above
			must(t, admin.CoordinationV1().Leases(systemNamespace).Delete(t.Context(), name, metav1.DeleteOptions{}))
		}
		must(t, create(policyAccount))
		// As a Role for the original tool's flags gives it.
		_, err := admin.RbacV1().Roles(systemNamespace).Patch(t.Context(), policyAccount, types.JSONPatchType,
			[]byte(`[{"op":"add","path":"/rules/1/resourceNames/-","value":"semaphore-policy-gcp"}]`), metav1.PatchOptions{})
		must(t, err)
		update.Name = policyAccount + "-gcp"
		must(t, cluster.AwaitRight(t.Context(), systemNamespace, policyAccount, update, true))
		must(t, create(update.Name))
	})
}

const noLastApplied = "may not change the annotation " + corev1.LastAppliedConfigAnnotation

// lastApplied is a patch of the annotation in which kubectl stores what it has applied.
func lastApplied(value string) string {
	return fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, corev1.LastAppliedConfigAnnotation, value)
}

// ownFields is a patch of the managed fields, with a version of an API.
const ownFields = `{"metadata":{"managedFields":[{"manager":"x","operation":"Update","apiVersion":"%s","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{}}}]}}`

func policySets(t *testing.T, sets, all dynamic.ResourceInterface, api int) {
	const noMark, mark = "is not one of semaphore-policy's", "may not mark a network set"
	label := func(key, value string) func(*unstructured.Unstructured) {
		return func(s *unstructured.Unstructured) {
			labels := s.GetLabels()
			labels[key] = value
			s.SetLabels(labels)
		}
	}
	for _, c := range []struct {
		name   string
		change func(*unstructured.Unstructured)
		want   string
	}{
		{"as it is", nil, ""},
		{"without a mark", func(s *unstructured.Unstructured) { s.SetLabels(nil) }, mark},
		{"with another one's mark", label("managed-by", "other"), mark},
		{"with another label", label("role", "db"), "may not change the labels"},
		{"with a label of another domain", label("app.kubernetes.io/name", "db"), "may not change the labels"},
		{"with an annotation", func(s *unstructured.Unstructured) {
			s.SetAnnotations(map[string]string{"projectcalico.org/metadata": `{"labels":{"role":"db"}}`})
		}, "may not change the annotation projectcalico.org/metadata"},
		{"with another label, and without managed fields", func(s *unstructured.Unstructured) {
			label("role", "db")(s)
			s.SetManagedFields([]metav1.ManagedFieldsEntry{{}})
		}, "may not change the labels"},
		{"with another label, and managed fields", func(s *unstructured.Unstructured) {
			label("role", "db")(s)
			s.SetManagedFields([]metav1.ManagedFieldsEntry{{
				Manager: "kubectl", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: s.GetAPIVersion(),
				FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{}}`),
			}})
		}, "may not change the labels"},
		{"with kubectl's annotation", func(s *unstructured.Unstructured) {
			s.SetAnnotations(map[string]string{corev1.LastAppliedConfigAnnotation: "{}"})
		}, noLastApplied},
		{"with kubectl's annotation, and managed fields", func(s *unstructured.Unstructured) {
			s.SetAnnotations(map[string]string{corev1.LastAppliedConfigAnnotation: "{}"})
			s.SetManagedFields([]metav1.ManagedFieldsEntry{{
				Manager: "kubectl", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: s.GetAPIVersion(),
				FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{}}`),
			}})
		}, noLastApplied},
		{"with a finalizer", func(s *unstructured.Unstructured) { s.SetFinalizers([]string{"example.com/stay"}) }, "neither finalizers nor owners"},
	} {
		t.Run("created "+c.name, func(t *testing.T) {
			_, err := sets.Create(t.Context(), networkSet(api, "gcp-default-web", c.change), dryCreate)
			refused(t, err, c.want)
		})
	}
	for _, s := range []*unstructured.Unstructured{
		networkSet(api, "gcp-default-web", label("team", "a")),
		networkSet(api, "foreign", func(s *unstructured.Unstructured) { s.SetLabels(map[string]string{"role": "db"}) }),
		networkSet(api, "applied", func(s *unstructured.Unstructured) {
			s.SetAnnotations(map[string]string{corev1.LastAppliedConfigAnnotation: `{"kind":"GlobalNetworkSet"}`})
		}),
		networkSet(api, "older", func(s *unstructured.Unstructured) {
			s.SetLabels(nil)
			s.SetAnnotations(map[string]string{"projectcalico.org/metadata": `{"uid":"u","labels":{"managed-by":"semaphore-policy"}}`})
		}),
	} {
		_, err := all.Create(t.Context(), s, metav1.CreateOptions{})
		must(t, err)
	}
	for _, c := range []struct{ name, set, patch, want string }{
		{"of its own", "gcp-default-web", `{"spec":{"nets":["10.4.0.2/32"]}}`, ""},
		{"of a foreign one", "foreign", `{"spec":{"nets":["0.0.0.0/0"]}}`, noMark},
		{"that takes a foreign one over", "foreign", `{"metadata":{"labels":{"managed-by":"semaphore-policy"}}}`, noMark},
		{"that strips the mark", "gcp-default-web", `{"metadata":{"labels":{"managed-by":null}}}`, mark},
		{"to another label", "gcp-default-web", `{"metadata":{"labels":{"role":"db"}}}`, "may not change the labels role"},
		{"to another label, with managed fields of its own", "gcp-default-web", `{"metadata":{"labels":{"role":"db"},"managedFields":[{"manager":"kubectl","operation":"Update",` +
			`"apiVersion":"` + calico[api].GroupVersion().String() + `","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{}}}]}}`, "may not change the labels role"},
		{"to another label, without managed fields", "gcp-default-web", `{"metadata":{"labels":{"role":"db"},"managedFields":[{}]}}`, "may not change the labels role"},
		{"to kubectl's annotation", "gcp-default-web", lastApplied("{}"), noLastApplied},
		{"of kubectl's annotation", "applied", lastApplied("{}"), noLastApplied},
		{"of one with kubectl's annotation", "applied", `{"spec":{"nets":["10.4.0.2/32"]}}`, ""},
		{"that removes a label of others", "gcp-default-web", `{"metadata":{"labels":{"team":null}}}`, "may not change the labels team"},
		{"that takes one of an older Calico over", "older", `{"metadata":{"labels":{"managed-by":"semaphore-policy","policy.semaphore.uw.io/name":"x"},` +
			`"annotations":{"projectcalico.org/metadata":"{\"uid\":\"u\",\"labels\":{\"managed-by\":\"semaphore-policy\",\"policy.semaphore.uw.io/name\":\"x\"}}"}}}`, ""},
	} {
		t.Run("change "+c.name, func(t *testing.T) {
			_, err := sets.Patch(t.Context(), c.set, types.MergePatchType, []byte(c.patch), dryPatch)
			refused(t, err, c.want)
		})
	}
	t.Run("application of another label", func(t *testing.T) {
		applied := networkSet(api, "gcp-default-web", label("role", "db"))
		_, err := sets.Apply(t.Context(), applied.GetName(), applied, metav1.ApplyOptions{FieldManager: "x", Force: true, DryRun: []string{metav1.DryRunAll}})
		refused(t, err, "may not change the labels role")
	})
	for _, name := range []string{"gcp-default-web", "applied", "new"} {
		t.Run("application of kubectl's annotation to "+name, func(t *testing.T) {
			applied := networkSet(api, name, func(s *unstructured.Unstructured) {
				s.SetAnnotations(map[string]string{corev1.LastAppliedConfigAnnotation: "{}"})
			})
			_, err := sets.Apply(t.Context(), name, applied, metav1.ApplyOptions{FieldManager: "x", Force: true, DryRun: []string{metav1.DryRunAll}})
			refused(t, err, noLastApplied)
		})
	}
	t.Run("application by kubectl, for which the API server sets its annotation", func(t *testing.T) {
		// None of the managed fields is the annotation.
		_, err := sets.Patch(t.Context(), "applied", types.MergePatchType, fmt.Appendf(nil, ownFields, calico[api].GroupVersion()), metav1.PatchOptions{})
		must(t, err)
		_, err = sets.Apply(t.Context(), "applied", networkSet(api, "applied", func(s *unstructured.Unstructured) {
			_ = unstructured.SetNestedStringSlice(s.Object, []string{"10.4.0.9/32"}, "spec", "nets")
		}), metav1.ApplyOptions{FieldManager: "kubectl", Force: true, DryRun: []string{metav1.DryRunAll}})
		refused(t, err, noLastApplied)
	})
	// On an object without managed fields.
	_, err := all.Patch(t.Context(), "gcp-default-web", types.MergePatchType, []byte(`{"metadata":{"managedFields":[{}]}}`), metav1.PatchOptions{})
	must(t, err)
	for name, fields := range map[string]string{
		"without managed fields": "",
		"with its own": `,"managedFields":[{"manager":"kubectl","operation":"Update","apiVersion":"` + calico[api].GroupVersion().String() +
			`","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{}}}]`,
	} {
		t.Run("change of an untracked one "+name, func(t *testing.T) {
			patch := `{"metadata":{"labels":{"role":"db"}` + fields + `}}`
			_, err := sets.Patch(t.Context(), "gcp-default-web", types.MergePatchType, []byte(patch), dryPatch)
			refused(t, err, "may not change the labels role")
		})
	}
	t.Run("deletion of its own", func(t *testing.T) { must(t, sets.Delete(t.Context(), "gcp-default-web", dryDelete)) })
	t.Run("deletion of one of an older Calico", func(t *testing.T) { must(t, sets.Delete(t.Context(), "older", dryDelete)) })
	t.Run("deletion of a foreign one", func(t *testing.T) { refused(t, sets.Delete(t.Context(), "foreign", dryDelete), noMark) })
	t.Run("deletion of all", func(t *testing.T) {
		refused(t, sets.DeleteCollection(t.Context(), dryDelete, metav1.ListOptions{}), noMark)
	})
}

func policyEvents(t *testing.T, own, admin kubernetes.Interface) {
	pod, err := admin.CoreV1().Pods(systemNamespace).Get(t.Context(), policyAccount+"-aws-1", metav1.GetOptions{})
	must(t, err)
	const aboutItself, inItsName = "only create events about its own pod", "only create warnings, in its own name"
	for _, c := range []struct {
		name   string
		change func(*corev1.Event)
		want   string
	}{
		{"about itself", nil, ""},
		{"about another pod", func(e *corev1.Event) { e.InvolvedObject.Name = "other" }, aboutItself},
		{"about another pod of its name", func(e *corev1.Event) { e.InvolvedObject.UID = "other" }, aboutItself},
		{"about a service", func(e *corev1.Event) { e.InvolvedObject.Kind = "Service" }, aboutItself},
		{"under the name of another one's", func(e *corev1.Event) { e.Name = "semaphore-wireguard.gcp.all" }, inItsName},
		{"in the name of another program", func(e *corev1.Event) { e.Source.Component = "kubelet" }, inItsName},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := &corev1.Event{
				ObjectMeta:     metav1.ObjectMeta{Name: "semaphore-policy.gcp.0123456789abcdef"},
				InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: systemNamespace, Name: pod.Name, UID: pod.UID},
				Type:           corev1.EventTypeWarning, Reason: "NameTaken", Source: corev1.EventSource{Component: policyAccount}, FirstTimestamp: metav1.Now(),
			}
			if c.change != nil {
				c.change(e)
			}
			_, err := own.CoreV1().Events(systemNamespace).Create(t.Context(), e, dryCreate)
			refused(t, err, c.want)
		})
	}
	eventsWith(t, own, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: "semaphore-policy.gcp.0123456789abcdef"},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: systemNamespace, Name: pod.Name, UID: pod.UID},
		Type:           corev1.EventTypeWarning, Reason: "NameTaken", Source: corev1.EventSource{Component: policyAccount}, FirstTimestamp: metav1.Now(),
	})
}
