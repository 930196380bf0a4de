package scenarios_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/mcs-api/config/crd"
	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
)

const (
	importedLabel = "mirror.semaphore.uw.io/imported"
	derivedName   = "derived-0123456789"
)

// withImports returns a folder with deploy/service-mirror and its component mcs.
func withImports(t *testing.T) string {
	t.Helper()
	// Beside the others, where kustomize finds them by relative paths.
	root := t.TempDir()
	must(t, os.CopyFS(root, os.DirFS(deployFolder(t))))
	folder := filepath.Join(root, "own")
	must(t, os.Mkdir(folder, 0o755))
	must(t, os.WriteFile(filepath.Join(folder, "kustomization.yaml"), []byte("resources:\n  - ../service-mirror\ncomponents:\n  - ../service-mirror/mcs\n"), 0o600))
	return folder
}

// multiclusterCRDs returns files with the CRDs of the Multi-Cluster Services API.
func multiclusterCRDs(t *testing.T) []string {
	t.Helper()
	folder := t.TempDir()
	files := []string{filepath.Join(folder, "exports.yaml"), filepath.Join(folder, "imports.yaml")}
	must(t, errors.Join(os.WriteFile(files[0], crd.ServiceExportCRD, 0o600), os.WriteFile(files[1], crd.ServiceImportCRD, 0o600)))
	return files
}

// multiclusterWith returns a client for imports and exports with a token; empty: the
// administrator's.
func multiclusterWith(t *testing.T, cluster *testbed.Cluster, token string) kube.Client {
	t.Helper()
	cfg := cluster.RESTConfig()
	if token != "" {
		cfg = rest.AnonymousClientConfig(cfg)
		cfg.BearerToken = token
	}
	client, err := kube.NewClient(cfg)
	must(t, err)
	return client
}

func ownerOf(name string, uid types.UID) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: v1beta1.GroupVersion.String(), Kind: "ServiceImport", Name: name, UID: uid}}
}

// TestServiceMirrorWritesOnlyImports tests the admission policies of deploy/service-mirror/mcs.
func TestServiceMirrorWritesOnlyImports(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	must(t, cluster.Apply(t.Context(), append(multiclusterCRDs(t), withImports(t))...))
	// Every right, so that the policies refuse and not RBAC.
	must(t, cluster.Grant(t.Context(), systemNamespace, mirrorAccount,
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"services", "services/status"}, Verbs: []string{"*"}},
		rbacv1.PolicyRule{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: []string{"*"}},
		rbacv1.PolicyRule{APIGroups: []string{v1beta1.GroupName}, Resources: []string{"*"}, Verbs: []string{"*"}},
	))
	token := accountToken(t, cluster, systemNamespace, mirrorAccount, "")
	own, ownAPI := clientWith(t, cluster, token), multiclusterWith(t, cluster, token)
	admin, adminAPI := cluster.Client(), multiclusterWith(t, cluster, "")
	_, err := admin.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, metav1.CreateOptions{})
	must(t, err)

	untilRefused(t, func(ctx context.Context) error {
		_, err := own.CoreV1().Services("shop").Create(ctx, derivedService("x", func(s *corev1.Service) { s.Labels = nil }), dryCreate)
		return err
	})
	i := &v1beta1.ServiceImport{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", Labels: map[string]string{importedLabel: "true", "team": "a"}},
		Spec:       v1beta1.ServiceImportSpec{Type: v1beta1.ClusterSetIP, Ports: []v1beta1.ServicePort{}},
	}
	untilRefused(t, func(ctx context.Context) error {
		foreign := i.DeepCopy()
		foreign.Labels = nil
		_, err := ownAPI.ServiceImports("shop").Create(ctx, foreign, dryCreate)
		return err
	})
	untilRefused(t, func(ctx context.Context) error {
		_, err := adminAPI.ServiceImports("shop").Create(ctx, i, dryCreate)
		return err
	})
	made, err := ownAPI.ServiceImports("shop").Create(t.Context(), i, metav1.CreateOptions{})
	must(t, err)

	t.Run("services", func(t *testing.T) { derivedServices(t, own, admin, made.UID) })
	t.Run("slices", func(t *testing.T) { importedSlices(t, own, admin, made.UID) })
	t.Run("imports and exports", func(t *testing.T) { importsAndExports(t, ownAPI, adminAPI) })
	t.Run("the namespace of mirrors keeps its rules", func(t *testing.T) {
		create := func(s *corev1.Service) error {
			_, err := own.CoreV1().Services(systemNamespace).Create(t.Context(), s, dryCreate)
			return err
		}
		refused(t, create(mirrorService(ourService, nil)), "")
		refused(t, create(derivedService(made.UID, nil)), "must have the label mirrored-svc=true")
	})
}

func derivedService(owner types.UID, change func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name: derivedName, Labels: map[string]string{importedLabel: "true"},
			Annotations: map[string]string{"mirror.semaphore.uw.io/import": "web"}, OwnerReferences: ownerOf("web", owner),
		},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}
	if change != nil {
		change(s)
	}
	return s
}

func derivedServices(t *testing.T, own, admin kubernetes.Interface, owner types.UID) {
	const inTheName, owned, noOtherWay, notOurs = "must have the label mirror.semaphore.uw.io/imported=true", "must be owned by its import",
		"must have type ClusterIP, and no external IPs, load balancer or node port", "was not created by the service mirror for an import"
	services := own.CoreV1().Services("shop")
	for _, c := range []struct {
		name   string
		change func(*corev1.Service)
		want   string
	}{
		{"as it is", nil, ""},
		{"with the annotation that GKE adds to each", func(s *corev1.Service) { s.Annotations["cloud.google.com/neg"] = `{"ingress":true}` }, ""},
		{"without a mark", func(s *corev1.Service) { s.Labels = nil }, inTheName},
		{"like a mirror", func(s *corev1.Service) {
			s.Name, s.Labels = ourService, map[string]string{"mirrored-svc": "true"}
		}, inTheName},
		{"of another name", func(s *corev1.Service) { s.Name = "web" }, inTheName},
		{"of a longer name", func(s *corev1.Service) { s.Name = derivedName + "0" }, inTheName},
		{"of a name with other letters", func(s *corev1.Service) { s.Name = "derived-012345678z" }, inTheName},
		{"of a generated name", func(s *corev1.Service) { s.Name, s.GenerateName = "", "derived-01234-" }, inTheName},
		{"without an owner", func(s *corev1.Service) { s.OwnerReferences = nil }, ""},
		{"of another owner", func(s *corev1.Service) { s.OwnerReferences[0].Kind = "ServiceExport" }, owned},
		{"of another import's", func(s *corev1.Service) { s.OwnerReferences[0].Name = "db" }, owned},
		{"of two owners", func(s *corev1.Service) { s.OwnerReferences = append(s.OwnerReferences, ownerOf("web", "x")...) }, owned},
		{"with external addresses", func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"192.0.2.1"} }, noOtherWay},
		{"on node ports", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeNodePort }, noOtherWay},
		{"behind a load balancer", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeLoadBalancer }, noOtherWay},
		{"that is another name", func(s *corev1.Service) {
			s.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com"}
		}, noOtherWay},
		{"with a selector", func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app": "x"} }, "must not have a selector"},
		{"with another label", func(s *corev1.Service) { s.Labels["app"] = "x" }, "may not change the label app"},
		{"with another annotation", func(s *corev1.Service) { s.Annotations["external-dns.alpha.kubernetes.io/hostname"] = "x.example" }, "may not change the annotation external-dns"},
		{"with kubectl's annotation", func(s *corev1.Service) { s.Annotations[corev1.LastAppliedConfigAnnotation] = "{}" }, noLastApplied},
		{"with a finalizer", func(s *corev1.Service) { s.Finalizers = []string{"example.com/stay"} }, "may not change finalizers"},
	} {
		t.Run("created "+c.name, func(t *testing.T) {
			_, err := services.Create(t.Context(), derivedService(owner, c.change), dryCreate)
			refused(t, err, c.want)
		})
	}
	put := func(s *corev1.Service) {
		t.Helper()
		_, err := admin.CoreV1().Services("shop").Create(t.Context(), s, metav1.CreateOptions{})
		must(t, err)
	}
	put(derivedService(owner, func(s *corev1.Service) { s.Labels["team"] = "a" }))
	// Users' ones: with a name like ours, and with our label.
	const users, marked = "derived-9876543210", "marked"
	put(derivedService(owner, func(s *corev1.Service) { s.Name, s.Labels, s.OwnerReferences = users, nil, nil }))
	put(derivedService(owner, func(s *corev1.Service) { s.Name, s.OwnerReferences = marked, nil }))
	takeover := `{"metadata":{"labels":{"` + importedLabel + `":"true"},"annotations":{"mirror.semaphore.uw.io/import":"web"},` +
		`"ownerReferences":[{"apiVersion":"multicluster.x-k8s.io/v1beta1","kind":"ServiceImport","name":"web","uid":"` + string(owner) + `"}]}}`
	for _, c := range []struct{ name, service, patch, want string }{
		{"of its own", derivedName, `{"spec":{"sessionAffinity":"ClientIP"}}`, ""},
		{"that strips the mark", derivedName, `{"metadata":{"labels":{"` + importedLabel + `":null}}}`, inTheName},
		{"that strips the owner", derivedName, `{"metadata":{"ownerReferences":null}}`, owned},
		{"to a selector", derivedName, `{"spec":{"selector":{"app":"x"}}}`, "must not have a selector"},
		{"to external addresses", derivedName, `{"spec":{"externalIPs":["192.0.2.1"]}}`, noOtherWay},
		{"of a label of others", derivedName, `{"metadata":{"labels":{"team":null}}}`, "may not change the label team"},
		{"of another label, with managed fields of its own", derivedName, `{"metadata":{"labels":{"app":"x"},"managedFields":[{"manager":"kubectl",` +
			`"operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{}}}]}}`, "may not change the label app"},
		{"that takes one of that name over", users, takeover, notOurs},
		{"that takes one with our label over", marked, takeover, notOurs},
	} {
		t.Run("change "+c.name, func(t *testing.T) {
			_, err := services.Patch(t.Context(), c.service, types.MergePatchType, []byte(c.patch), dryPatch)
			refused(t, err, c.want)
		})
	}
	t.Run("change of a status", func(t *testing.T) {
		_, err := services.Patch(t.Context(), derivedName, types.MergePatchType, []byte(`{"metadata":{"annotations":{"mirror.semaphore.uw.io/import":"x"}}}`), dryPatch, "status")
		refused(t, err, "only create, patch and delete services")
	})
	t.Run("deletion", func(t *testing.T) {
		refused(t, services.Delete(t.Context(), derivedName, dryDelete), "")
		refused(t, services.Delete(t.Context(), users, dryDelete), notOurs)
		refused(t, services.Delete(t.Context(), marked, dryDelete), notOurs)
		refused(t, own.CoreV1().Services(metav1.NamespaceDefault).Delete(t.Context(), "kubernetes", dryDelete), notOurs)
	})
}

func importedSlices(t *testing.T, own, admin kubernetes.Interface, owner types.UID) {
	port, node := int32(80), "aws-1"
	slice := func(name string, change func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice {
		s := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: ownerOf("web", owner), Labels: map[string]string{
				discoveryv1.LabelManagedBy: mirrorAccount, discoveryv1.LabelServiceName: derivedName,
				v1beta1.LabelServiceName: "web", v1beta1.LabelSourceCluster: "gcp",
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
	slices := own.DiscoveryV1().EndpointSlices("shop")
	untilRefused(t, func(ctx context.Context) error {
		_, err := slices.Create(ctx, slice("web-1", func(s *discoveryv1.EndpointSlice) { s.Labels = nil }), dryCreate)
		return err
	})
	const labels, noService, owned, addresses, notOurs = "must have the label of the service mirror and that of their cluster", "must be those of a derived service",
		"must be owned by it", "must not refer to objects", "were not created by the service mirror for an import"
	for _, c := range []struct {
		name   string
		change func(*discoveryv1.EndpointSlice)
		want   string
	}{
		{"as it is", nil, ""},
		{"of a headless import", func(s *discoveryv1.EndpointSlice) { delete(s.Labels, discoveryv1.LabelServiceName) }, ""},
		{"without endpoints", func(s *discoveryv1.EndpointSlice) { s.Endpoints = nil }, ""},
		{"of another manager", func(s *discoveryv1.EndpointSlice) {
			s.Labels[discoveryv1.LabelManagedBy] = "endpointslice-controller.k8s.io"
		}, labels},
		{"of no cluster", func(s *discoveryv1.EndpointSlice) { delete(s.Labels, v1beta1.LabelSourceCluster) }, labels},
		{"for a service of a user", func(s *discoveryv1.EndpointSlice) { s.Labels[discoveryv1.LabelServiceName] = "web" }, noService},
		{"for a mirror", func(s *discoveryv1.EndpointSlice) { s.Labels[discoveryv1.LabelServiceName] = ourService }, noService},
		{"without an owner", func(s *discoveryv1.EndpointSlice) { s.OwnerReferences = nil }, owned},
		{"of another import", func(s *discoveryv1.EndpointSlice) { s.Labels[v1beta1.LabelServiceName] = "db" }, owned},
		{"of names", func(s *discoveryv1.EndpointSlice) {
			s.AddressType, s.Endpoints[0].Addresses = discoveryv1.AddressTypeFQDN, []string{"example.com"} //nolint:staticcheck // Which is refused.
		}, addresses},
		{"on a node", func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].NodeName = &node }, ""},
		{"of a headless import, on a node", func(s *discoveryv1.EndpointSlice) {
			delete(s.Labels, discoveryv1.LabelServiceName)
			s.Endpoints[0].NodeName = &node
		}, "endpoints of a headless import must not refer to nodes"},
		{"of a pod", func(s *discoveryv1.EndpointSlice) {
			s.Endpoints[0].TargetRef = &corev1.ObjectReference{Kind: "Pod", Name: "x"}
		}, addresses},
		{"with a finalizer", func(s *discoveryv1.EndpointSlice) { s.Finalizers = []string{"example.com/stay"} }, "may not change finalizers"},
	} {
		t.Run("created "+c.name, func(t *testing.T) {
			_, err := slices.Create(t.Context(), slice("web-1", c.change), dryCreate)
			refused(t, err, c.want)
		})
	}
	for _, s := range []*discoveryv1.EndpointSlice{
		slice("web-1", nil), slice("users", func(s *discoveryv1.EndpointSlice) { s.Labels[discoveryv1.LabelManagedBy] = "x" }),
	} {
		_, err := admin.DiscoveryV1().EndpointSlices("shop").Create(t.Context(), s, metav1.CreateOptions{})
		must(t, err)
	}
	for _, c := range []struct{ name, slice, patch, want string }{
		{"of its own", "web-1", `{"endpoints":[{"addresses":["10.4.0.2"]}]}`, ""},
		{"of a user's", "users", `{"endpoints":[]}`, notOurs},
		{"that takes a user's over", "users", `{"metadata":{"labels":{"` + discoveryv1.LabelManagedBy + `":"` + mirrorAccount + `"}}}`, notOurs},
		{"to another service", "web-1", `{"metadata":{"labels":{"kubernetes.io/service-name":"web"}}}`, noService},
		{"that strips the owner", "web-1", `{"metadata":{"ownerReferences":null}}`, owned},
	} {
		t.Run("change "+c.name, func(t *testing.T) {
			_, err := slices.Patch(t.Context(), c.slice, types.MergePatchType, []byte(c.patch), dryPatch)
			refused(t, err, c.want)
		})
	}
	refused(t, slices.Delete(t.Context(), "web-1", dryDelete), "")
	refused(t, slices.Delete(t.Context(), "users", dryDelete), notOurs)
}

func importsAndExports(t *testing.T, own, admin kube.Client) {
	ctx := t.Context()
	foreign := &v1beta1.ServiceImport{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "foreign"},
		Spec:       v1beta1.ServiceImportSpec{Type: v1beta1.ClusterSetIP, Ports: []v1beta1.ServicePort{}},
	}
	_, err := admin.ServiceImports("shop").Create(ctx, foreign, metav1.CreateOptions{})
	must(t, err)
	_, err = admin.ServiceExports("shop").Create(ctx, &v1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}, metav1.CreateOptions{})
	must(t, err)
	const notOurs, onlyMirror, onlyStatus = "must have the label " + importedLabel + "=true", "only the service mirror may write imports", "may only write imports, and the status of exports"
	condition := `{"status":{"conditions":[{"type":"Ready","status":"True","reason":"Ready","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`
	for _, c := range []struct {
		name        string
		client      kube.Client
		object      string
		patch       string
		subresource []string
		want        string
	}{
		{"of its own", own, "web", `{"spec":{"ips":["10.0.0.1"]},"metadata":{"labels":{"team":"b"}}}`, nil, ""},
		{"of its own status", own, "web", condition, []string{"status"}, ""},
		{"that strips the mark", own, "web", `{"metadata":{"labels":{"` + importedLabel + `":null}}}`, nil, notOurs},
		{"to a finalizer", own, "web", `{"metadata":{"finalizers":["example.com/stay"]}}`, nil, "neither finalizers nor owners"},
		{"of a foreign one", own, "foreign", `{"spec":{"ips":["10.0.0.1"]}}`, nil, notOurs},
		{"of a foreign one's status", own, "foreign", condition, []string{"status"}, notOurs},
		{"that takes a foreign one over", own, "foreign", `{"metadata":{"labels":{"` + importedLabel + `":"true"}}}`, nil, notOurs},
		{"by a user of ours", admin, "web", `{"spec":{"ips":["10.0.0.1"]}}`, nil, onlyMirror},
		{"by a user of our status", admin, "web", condition, []string{"status"}, onlyMirror},
		{"by a user of our labels", admin, "web", `{"metadata":{"labels":{"team":"b"}}}`, nil, onlyMirror},
		{"by a user that strips our mark", admin, "web", `{"metadata":{"labels":{"` + importedLabel + `":null}}}`, nil, onlyMirror},
		{"by a user to our mark", admin, "foreign", `{"metadata":{"labels":{"` + importedLabel + `":"true"}}}`, nil, onlyMirror},
		{"by a user of a foreign one", admin, "foreign", `{"spec":{"ips":["10.0.0.1"]}}`, nil, ""},
		{"by a garbage collector", admin, "web", `{"metadata":{"finalizers":["foregroundDeletion"]}}`, nil, ""},
	} {
		t.Run("change of an import "+c.name, func(t *testing.T) {
			_, err := c.client.ServiceImports("shop").Patch(ctx, c.object, types.MergePatchType, []byte(c.patch), dryPatch, c.subresource...)
			refused(t, err, c.want)
		})
	}
	t.Run("exports", func(t *testing.T) {
		exports := own.ServiceExports("shop")
		_, err := exports.Patch(ctx, "web", types.MergePatchType, []byte(condition), dryPatch, "status")
		refused(t, err, "")
		_, err = exports.Patch(ctx, "web", types.MergePatchType, []byte(`{"metadata":{"annotations":{"a":"b"}}}`), dryPatch)
		refused(t, err, onlyStatus)
		made, err := exports.Patch(ctx, "web", types.MergePatchType, []byte(`{"metadata":{"annotations":{"a":"b"}},"spec":{"exportedLabels":{"a":"b"}}}`), dryPatch, "status")
		must(t, err)
		if len(made.Annotations) > 0 || len(made.Spec.ExportedLabels) > 0 {
			t.Errorf("more than the status: %v", made)
		}
		_, err = exports.Create(ctx, &v1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db"}}, dryCreate)
		refused(t, err, onlyStatus)
		refused(t, exports.Delete(ctx, "web", dryDelete), onlyStatus)
	})
	t.Run("deletion", func(t *testing.T) {
		refused(t, own.ServiceImports("shop").Delete(ctx, "foreign", dryDelete), notOurs)
		refused(t, own.ServiceImports("shop").Delete(ctx, "web", dryDelete), "")
		refused(t, admin.ServiceImports("shop").Delete(ctx, "web", dryDelete), "")
	})
}

// TestImportComponent checks that the component has no CRD, which would replace a newer one.
func TestImportComponent(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	folder := withImports(t)
	out, err := cluster.Kubectl(t.Context(), "kustomize", folder)
	must(t, err)
	if !strings.Contains(out, "name: semaphore-service-mirror-imports") || strings.Contains(out, "CustomResourceDefinition") {
		t.Errorf("%s", out)
	}
	out, err = cluster.Kubectl(t.Context(), "apply", "--server-side", "--dry-run=server", "--validate=strict", "-k", folder)
	if err != nil || strings.Contains(out, "Warning") {
		t.Errorf("%v\n%s", err, out)
	}
}
