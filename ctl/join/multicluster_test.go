package join

import (
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	fakedynamic "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/mcs-api/config/crd"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
)

// withCoreDNS returns the objects of a CoreDNS.
func withCoreDNS(image string) []runtime.Object {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "coredns", Namespace: "kube-system"}}
	d.Spec.Template.Spec = corev1.PodSpec{
		ServiceAccountName: "dns",
		Containers: []corev1.Container{{
			Name: "coredns", Image: image, Args: []string{"-conf", "/etc/coredns/Corefile"}, VolumeMounts: []corev1.VolumeMount{{Name: "c", MountPath: "/etc/coredns"}},
		}},
		Volumes: []corev1.Volume{{Name: "c", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "coredns"}}}}},
	}
	return []runtime.Object{d, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "coredns", Namespace: "kube-system"}, Data: map[string]string{"Corefile": ".:53 {\n    kubernetes cluster.local\n    reload\n}\n"},
	}}
}

// TestMultiCluster decides what a cluster gets for the Multi-Cluster Services API.
func TestMultiCluster(t *testing.T) {
	const latest = "registry.k8s.io/coredns/coredns:v1.14.3"
	own, err := manifests.CRDs()
	if err != nil {
		t.Fatal(err)
	}
	// crds returns both CRDs as they would be with a release, ours or not.
	crds := func(release string, ours bool, change func(*unstructured.Unstructured)) (all []runtime.Object) {
		for _, o := range own {
			o = o.DeepCopy()
			labels := map[string]string{crd.ReleaseVersionLabel: release}
			if ours {
				labels[manifests.ManagedLabel] = manifests.Manager
			}
			o.SetLabels(labels)
			if change != nil {
				change(o)
			}
			all = append(all, o)
		}
		return all
	}
	without := func(version string) func(*unstructured.Unstructured) {
		return func(o *unstructured.Unstructured) {
			versions, _, _ := unstructured.NestedSlice(o.Object, "spec", "versions")
			for _, v := range versions {
				if v := v.(map[string]any); v["name"] == version {
					v["served"] = false
				}
			}
			_ = unstructured.SetNestedSlice(o.Object, versions, "spec", "versions")
		}
	}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: manifests.ImportRole, Labels: map[string]string{manifests.ManagedLabel: manifests.Manager}}}
	for name, c := range map[string]struct {
		have     []runtime.Object
		objects  []runtime.Object
		chosen   InstallOptions
		settings inspect.Settings
		// what the cluster gets: "crds", "rights", "dns", and the only fault
		want, fault string
	}{
		"nothing is there":         {nil, withCoreDNS(latest), InstallOptions{MultiCluster: true}, nil, "crds rights dns", ""},
		"joined again":             {crds("v0.5.2", true, nil), withCoreDNS(latest), InstallOptions{MultiCluster: true}, nil, "crds rights dns", ""},
		"ours and older":           {crds("v0.4.1", true, without("v1beta1")), withCoreDNS(latest), InstallOptions{MultiCluster: true}, nil, "crds rights dns", ""},
		"ours and newer":           {crds("v0.6.0", true, nil), withCoreDNS(latest), InstallOptions{MultiCluster: true}, nil, "rights dns", ""},
		"of another one":           {crds("v0.4.1", false, nil), withCoreDNS(latest), InstallOptions{MultiCluster: true}, nil, "rights dns", ""},
		"of another one, too old":  {crds("", false, without("v1beta1")), withCoreDNS(latest), InstallOptions{MultiCluster: true}, nil, "", "don't serve v1beta1 (serviceexports.multicluster.x-k8s.io: no release-version, v1alpha1 served;"},
		"of another one, too new":  {crds("v0.9.0", false, without("v1alpha1")), withCoreDNS(latest), InstallOptions{MultiCluster: true}, nil, "rights", "CoreDNS reads them as v1alpha1"},
		"an older CoreDNS":         {nil, withCoreDNS("coredns:1.11.3"), InstallOptions{MultiCluster: true}, nil, "crds rights", "CoreDNS 1.11.3 is too old"},
		"an unknown CoreDNS":       {nil, withCoreDNS("dns@sha256:01"), InstallOptions{MultiCluster: true}, nil, "crds rights", "doesn't show the version"},
		"no CoreDNS":               {nil, nil, InstallOptions{MultiCluster: true}, nil, "crds rights", ""},
		"left out":                 {nil, withCoreDNS(latest), InstallOptions{MultiClusterGiven: true}, nil, "", ""},
		"left out before":          {nil, withCoreDNS(latest), InstallOptions{MultiCluster: true}, inspect.Settings{multiClusterSetting: multiClusterOff}, "", ""},
		"left out before, and now": {nil, withCoreDNS(latest), InstallOptions{MultiCluster: true, MultiClusterGiven: true}, inspect.Settings{multiClusterSetting: multiClusterOff}, "crds rights dns", ""},
		"leave, with it":           {crds("v0.5.2", true, nil), append(withCoreDNS(latest), role), InstallOptions{}, nil, "crds rights dns", ""},
		"leave, without it":        {nil, withCoreDNS(latest), InstallOptions{}, nil, "", ""},
		"another tool":             {nil, withCoreDNS(latest), InstallOptions{MultiCluster: true, Tools: []string{manifests.WireGuard}}, nil, "", ""},
	} {
		f := inspect.Read(t.Context(), &cli.Cluster{Name: "aws", Config: &rest.Config{}, Client: fake.NewClientset(c.objects...), Dynamic: fakedynamic.NewSimpleDynamicClient(scheme.Scheme, c.have...)})
		settings := inspect.Settings{
			"SEMAPHORE_REMOTES": "gcp", "SEMAPHORE_REMOTE_GCP_API_URL": "https://x", "SEMAPHORE_REMOTE_GCP_POD_SUBNETS": "10.4.0.0/16", "SEMAPHORE_REMOTE_GCP_WG_LISTEN_PORT": "51840",
		}
		for key, value := range c.settings {
			settings[key] = value
		}
		if c.chosen.Tools == nil {
			c.chosen.Tools = []string{manifests.Mirror}
		}
		c.chosen.Image = "i:1"
		c.chosen.choose(settings)
		wanted := desired(f, &c.chosen, settings)
		var got []string
		if m := wanted.MultiCluster; m != nil {
			if m.CRDs {
				got = append(got, "crds")
			}
			got = append(got, "rights")
			if m.DNS.String() == "kube-system/dns" {
				got = append(got, "dns")
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: it gets %v, expected %s", name, got, c.want)
		}
		only(t, name, unimported(f, wanted), c.fault)
		all, err := zones(wanted)
		if err != nil || (len(all) == 2) != strings.HasSuffix(c.want, "dns") {
			t.Errorf("%s: zones %v, %v", name, all, err)
		}
		objects, err := wanted.Render()
		if err != nil {
			t.Fatal(err)
		}
		for what, object := range map[string]string{"crds": "serviceimports.multicluster.x-k8s.io", "rights": manifests.ImportRole, "dns": "semaphore-coredns-imports"} {
			if is := slices.ContainsFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetName() == object }); is != slices.Contains(got, what) {
				t.Errorf("%s: rendered %s: %v", name, object, is)
			}
		}
	}
}

// TestCRDsAreDeleted with the last remote if semaphorectl has created them, unless there are
// objects of them.
func TestCRDsAreDeleted(t *testing.T) {
	definitions := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	for name, c := range map[string]struct {
		ours   bool
		export bool
		left   int
		says   string
	}{
		"ours":                {true, false, 0, "deleted the CRDs of the Multi-Cluster Services API"},
		"ours, with exports":  {true, true, 2, "because of 1 object; to delete these, too: kubectl --context aws delete customresourcedefinitions serviceexports.multicluster.x-k8s.io serviceimports.multicluster.x-k8s.io"},
		"of another one":      {false, false, 2, ""},
		"of another one, too": {false, true, 2, ""},
	} {
		var objects []runtime.Object
		own, err := manifests.CRDs()
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range own {
			if c.ours {
				o.SetLabels(map[string]string{manifests.ManagedLabel: manifests.Manager})
			}
			objects = append(objects, o)
		}
		if c.export {
			objects = append(objects, &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceExport", "metadata": map[string]any{"name": "web", "namespace": "shop"},
			}})
		}
		// Helm's packages add the types of CRDs to client-go's scheme.
		client := fakedynamic.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
			definitions: "CustomResourceDefinitionList",
			{Group: "multicluster.x-k8s.io", Version: "v1beta1", Resource: "serviceexports"}: "ServiceExportList",
			{Group: "multicluster.x-k8s.io", Version: "v1beta1", Resource: "serviceimports"}: "ServiceImportList",
		}, objects...)
		var out strings.Builder
		cluster := &cli.Cluster{Name: "aws", Access: cli.Access{Context: "aws"}, Config: &rest.Config{}, Client: fake.NewClientset(), Dynamic: client}
		f := inspect.Read(t.Context(), cluster)
		if err := (&installation{Session: &cli.Session{Err: &out}}).deleteCRDs(t.Context(), cluster, f); err != nil {
			t.Fatal(err)
		}
		left, err := client.Resource(definitions).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(left.Items) != c.left || !strings.Contains(out.String(), c.says) || c.says == "" && out.Len() > 0 {
			t.Errorf("%s: %d CRDs are left, %v; it says %q", name, len(left.Items), err, out.String())
		}
	}
}

// TestConditionsOfExportsAreRemoved if the mirror has set them, and no others.
func TestConditionsOfExportsAreRemoved(t *testing.T) {
	export := func(name string, conditions ...string) *unstructured.Unstructured {
		all := []any{}
		for _, c := range conditions {
			all = append(all, map[string]any{"type": c, "status": "True"})
		}
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceExport",
			"metadata": map[string]any{"name": name, "namespace": "shop"}, "status": map[string]any{"conditions": all},
		}}
	}
	exports := schema.GroupVersionResource{Group: "multicluster.x-k8s.io", Version: "v1beta1", Resource: "serviceexports"}
	client := fakedynamic.NewSimpleDynamicClientWithCustomListKinds(scheme.Scheme, map[schema.GroupVersionResource]string{exports: "ServiceExportList"},
		export("ours", "Valid", "Ready", "Conflict", sourceCluster), export("shared", "Valid", "Other", sourceCluster, "Ready"), export("theirs", "Valid", "Ready"), export("new"))
	conflicts := 0
	client.PrependReactor("update", "serviceexports", func(clienttesting.Action) (bool, runtime.Object, error) {
		conflicts++
		return conflicts == 1, nil, apierrors.NewConflict(exports.GroupResource(), "ours", errors.New("changed"))
	})
	cluster := &cli.Cluster{Name: "aws", Dynamic: client}
	conditions := func() string {
		var got []string
		list, err := client.Resource(exports).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			all, _, _ := unstructured.NestedSlice(list.Items[i].Object, "status", "conditions")
			for _, c := range all {
				got = append(got, list.Items[i].GetName()+" "+c.(map[string]any)["type"].(string))
			}
		}
		slices.Sort(got)
		return strings.Join(got, ", ")
	}
	before, f := conditions(), &inspect.Facts{}
	if err := forgetExports(t.Context(), cluster, f); err != nil || conditions() != before {
		t.Errorf("not installed: %v, %s", err, conditions())
	}
	f.MultiCluster.Installed = true
	if err := forgetExports(t.Context(), cluster, f); err != nil {
		t.Fatal(err)
	}
	if got := conditions(); got != "shared Other, theirs Ready, theirs Valid" || conflicts != 3 {
		t.Errorf("left: %s; %d updates", got, conflicts)
	}
}
