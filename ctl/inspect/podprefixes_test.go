package inspect

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	fakedynamic "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	k8stesting "k8s.io/client-go/testing"

	"github.com/kube-semaphore/kube-semaphore/internal/ipam"
)

func TestPodPrefixes(t *testing.T) {
	blocks := schema.GroupVersionResource{Group: "crd.projectcalico.org", Version: "v1", Resource: "blockaffinities"}
	affinity := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "crd.projectcalico.org/v1", "kind": "BlockAffinity", "metadata": map[string]any{"name": "a-10-2-64-0-26"},
	}}
	cilium := func(name string, addresses map[string]any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "cilium.io/v2", "kind": "CiliumNode", "metadata": map[string]any{"name": name}, "spec": map[string]any{"ipam": addresses},
		}}
	}
	cidrs := func(all ...any) map[string]any { return map[string]any{"podCIDRs": all} }
	pools := func(cidr string) map[string]any {
		return map[string]any{"pools": map[string]any{"allocated": []any{map[string]any{"pool": "default", "cidrs": []any{cidr}}}}}
	}
	plugin := configMap("kube-system", "cilium-config", "enable-ipv4-masquerade", "false")
	pod := func(name, ip string, host bool) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name},
			Spec:       corev1.PodSpec{NodeName: "a", HostNetwork: host}, Status: corev1.PodStatus{PodIP: ip},
		}
	}
	ovn := node("a", "10.66.1.1")
	ovn.Annotations = map[string]string{ipam.OVNSubnets: `{"default":["10.2.0.0/24"]}`}
	windows := node("w", "10.66.1.2")
	windows.Status.NodeInfo.OperatingSystem = "windows"
	a := node("a", "10.66.1.1", "10.2.0.0/24", "fd00:2::/64")
	for name, c := range map[string]struct {
		typed, untyped []runtime.Object
		want           string
	}{
		"nodes with podCIDRs":                   {[]runtime.Object{a, pod("dns", "10.2.0.7", false), pod("proxy", "10.66.1.1", true), pod("new", "", false)}, nil, ""},
		"a node without podCIDRs":               {[]runtime.Object{a, node("b", "10.66.1.2")}, nil, "pods"},
		"a node without podCIDRs and agent":     {[]runtime.Object{a, windows}, nil, ""},
		"a pod outside of its node's podCIDRs":  {[]runtime.Object{a, pod("dns", "10.2.9.7", false)}, nil, "pods"},
		"OVN-Kubernetes":                        {[]runtime.Object{ovn}, nil, ""},
		"Calico's address management":           {[]runtime.Object{a}, []runtime.Object{affinity}, "calico"},
		"Calico without its address management": {[]runtime.Object{a, pod("dns", "10.2.0.7", false)}, nil, ""},
		"CiliumNodes of cluster-pool":           {[]runtime.Object{a, plugin}, []runtime.Object{cilium("a", cidrs("10.9.0.0/24"))}, "cilium"},
		"CiliumNodes of multi-pool":             {[]runtime.Object{a, plugin}, []runtime.Object{cilium("a", pools("10.9.0.0/27"))}, "cilium"},
		"CiliumNodes with the nodes' podCIDRs":  {[]runtime.Object{a, plugin}, []runtime.Object{cilium("a", cidrs("fd00:2::/64", "10.2.0.0/24"))}, ""},
		"CiliumNodes without prefixes":          {[]runtime.Object{a, plugin}, []runtime.Object{cilium("a", map[string]any{"pool": map[string]any{}})}, "pods"},
		"a CiliumNode of a node that has gone":  {[]runtime.Object{a, plugin}, []runtime.Object{cilium("a", cidrs("10.2.0.0/24", "fd00:2::/64")), cilium("gone", cidrs("10.9.0.0/24"))}, ""},
	} {
		cluster := fakeCluster("https://api.example:6443", c.typed...)
		cluster.Client.(*fake.Clientset).Resources = []*metav1.APIResourceList{{GroupVersion: blocks.GroupVersion().String(), APIResources: []metav1.APIResource{{Name: "blockaffinities", Kind: "BlockAffinity"}}}}
		cluster.Dynamic = fakedynamic.NewSimpleDynamicClientWithCustomListKinds(scheme.Scheme, map[schema.GroupVersionResource]string{blocks: "BlockAffinityList", ipam.CiliumNodes(): "CiliumNodeList"}, c.untyped...)
		f := Read(t.Context(), cluster)
		f.ReadPodPrefixes(t.Context(), cluster)
		if f.PodPrefixes != c.want {
			t.Errorf("%s: %q, expected %q (%v)", name, f.PodPrefixes, c.want, f.Unread)
		}
	}
}

// TestDiscoveryFails: an API whose discovery fails isn't one that a cluster doesn't have.
func TestDiscoveryFails(t *testing.T) {
	cluster := fakeCluster("https://api.example:6443", node("a", "10.66.1.1", "10.2.0.0/24"))
	cluster.Client.(*fake.Clientset).PrependReactor("get", "resource", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewServiceUnavailable("etcd is slow")
	})
	cluster.Dynamic = fakedynamic.NewSimpleDynamicClient(scheme.Scheme)
	f := Read(t.Context(), cluster)
	f.ReadPodPrefixes(t.Context(), cluster)
	unread := fmt.Sprint(f.Unread)
	for _, what := range []string{"read the network plugin: ", "read the prefixes of pods: "} {
		if !strings.Contains(unread, what) {
			t.Errorf("%q isn't in %s", what, unread)
		}
	}
}
