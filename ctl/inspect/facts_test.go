package inspect

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/version"
	fakediscovery "k8s.io/client-go/discovery/fake"
	fakedynamic "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
)

func fakeCluster(server string, objects ...runtime.Object) *cli.Cluster {
	client := fake.NewClientset(objects...)
	client.Discovery().(*fakediscovery.FakeDiscovery).FakedServerVersion = &version.Info{GitVersion: "v1.36.3", Minor: "36+"}
	return &cli.Cluster{Name: "aws", Access: cli.Access{Context: "aws"}, Server: server, Config: &rest.Config{}, Client: client, Dynamic: fakedynamic.NewSimpleDynamicClient(scheme.Scheme)}
}

func node(name, address string, pods ...string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDRs: pods},
		Status: corev1.NodeStatus{
			Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}, {Type: corev1.NodeExternalIP, Address: "203.0.113.9"}},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
}

func configMap(namespace, name, key, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}, Data: map[string]string{key: value}}
}

func list(prefixes []netip.Prefix) string {
	var words []string
	for _, p := range prefixes {
		words = append(words, p.String())
	}
	return strings.Join(words, " ")
}

func TestRead(t *testing.T) {
	port, ca := int32(6443), kubetest.Certificate(t)
	f := Read(t.Context(), fakeCluster("https://127.0.0.1:40123",
		node("a", "10.66.1.1", "10.2.1.0/24", "fd00:10:2:1::/64"), node("b", "10.66.1.2", "10.2.2.0/24"),
		configMap("kube-system", "kube-root-ca.crt", "ca.crt", ca), configMap("kube-system", "coredns", "Corefile", ".:53 {\n    reload\n}\n"),
		&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.102.0.0/16"}}},
		&discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Name: "kubernetes", Namespace: "default", Labels: map[string]string{"kubernetes.io/service-name": "kubernetes"}},
			Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{"10.66.0.11"}}}, Ports: []discoveryv1.EndpointPort{{Port: &port}},
		}))
	if len(f.Unread) > 0 {
		t.Fatalf("unread: %v", f.Unread)
	}
	if f.Minor != 36 || f.CA != ca || f.DNS == nil || !f.DNS.Reloads || len(f.Nodes) != 2 || f.Nodes[0].Ready != "True" {
		t.Errorf("facts %+v", f)
	}
	for what, c := range map[string][2]string{
		"pods": {list(f.Pods), "10.2.1.0/24 10.2.2.0/24 fd00:10:2:1::/64"}, "services": {list(f.Services), "10.102.0.0/16"},
		"machines": {list(f.Machines), "10.66.0.0/16"}, "servers": {strings.Join(f.Servers, " "), "https://10.66.0.11:6443"},
	} {
		if c[0] != c[1] {
			t.Errorf("%s: %s, expected %s", what, c[0], c[1])
		}
	}
	if f.PodsSure {
		t.Error("PodsSure is set, though pods of future nodes are unknown")
	}
}

func TestPodsByConfiguration(t *testing.T) {
	for name, c := range map[string]struct {
		config *corev1.ConfigMap
		want   string
		sure   bool
	}{
		"kubeadm":                   {configMap("kube-system", "kubeadm-config", "ClusterConfiguration", "networking:\n  podSubnet: 10.2.0.0/16,fd00:10:2::/48\n  serviceSubnet: 10.102.0.0/16\n"), "10.2.0.0/16 fd00:10:2::/48", true},
		"kube-proxy":                {configMap("kube-system", "kube-proxy", "config.conf", "bindAddress: 0.0.0.0\nclusterCIDR: \"10.0.0.0/13\"\n"), "10.0.0.0/13", true},
		"that doesn't fit":          {configMap("kube-system", "kubeadm-config", "ClusterConfiguration", "  podSubnet: 10.4.0.0/16\n"), "10.2.1.0/24", false},
		"nothing that says so":      {configMap("kube-system", "kube-proxy", "config.conf", "clusterCIDR: \"\"\n"), "10.2.1.0/24", false},
		"of another of its objects": {configMap("kube-system", "other", "x", "clusterCIDR: 10.2.0.0/16\n"), "10.2.1.0/24", false},
	} {
		f := Read(t.Context(), fakeCluster("https://api.example:6443", node("a", "10.66.1.1", "10.2.1.0/24"), c.config))
		if list(f.Pods) != c.want || f.PodsSure != c.sure {
			t.Errorf("%s: %s by %s, sure %v, expected %s", name, list(f.Pods), f.PodsFrom, f.PodsSure, c.want)
		}
		if diff := cmp.Diff([]string{"https://api.example:6443"}, f.Servers); diff != "" {
			t.Errorf("servers (-want +got):\n%s", diff)
		}
	}
}

func TestMachines(t *testing.T) {
	var nodes []Node
	for _, a := range []string{"10.66.1.1", "10.66.9.9", "203.0.113.7", "fd00:66::1:1"} {
		nodes = append(nodes, Node{Addresses: []netip.Addr{netip.MustParseAddr(a)}})
	}
	if got, want := list(machines(nodes)), "10.66.0.0/16 203.0.113.0/24 fd00:66::/64"; got != want {
		t.Errorf("machines %s, expected %s", got, want)
	}
}

// workload returns one of our programs.
func workload(name, settings string, labels map[string]string) *appsv1.DaemonSet {
	from := []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: settings}}}}
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: cli.Namespace, Labels: labels},
		Spec:       appsv1.DaemonSetSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "agent", Image: "i", EnvFrom: from}}}}},
	}
}

func TestInstalled(t *testing.T) {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: cli.Namespace}}
	byHand := workload("semaphore-wireguard", "semaphore", nil)
	ours := workload("semaphore-wireguard", "semaphore", map[string]string{manifests.ManagedLabel: manifests.Manager})
	byHelm := workload("semaphore-wireguard", "semaphore", map[string]string{manifests.ManagedLabel: "Helm"})
	byHelm.Annotations = map[string]string{"meta.helm.sh/release-name": "mesh\x1b[2J"}
	settings := configMap(cli.Namespace, "semaphore", "SEMAPHORE_REMOTES", "gcp")
	for name, c := range map[string]struct {
		objects []runtime.Object
		foreign string
		unread  string
	}{
		"nothing": {nil, "", ""},
		"ours":    {[]runtime.Object{namespace, ours, settings}, "", ""},
		"by hand": {[]runtime.Object{namespace, byHand, settings}, "semaphore-wireguard", ""},
		"by Helm": {[]runtime.Object{namespace, byHelm, settings}, "semaphore-wireguard", ""},
		// Otherwise a cluster without settings would look like one without neighbours.
		"settings gone": {[]runtime.Object{namespace, ours}, "", `configmaps "semaphore" not found`},
	} {
		f := &Facts{}
		err := f.readInstalled(t.Context(), fakeCluster("", c.objects...))
		if got := strings.Join(f.Installed.Foreign, " "); got != c.foreign {
			t.Errorf("%s: foreign %q", name, got)
		}
		if got := f.Installed.Owner; (got != "") != (name == "by Helm") || strings.Contains(got, "\x1b") {
			t.Errorf("%s: release %q", name, got)
		}
		if (err == nil) != (c.unread == "") || err != nil && !strings.Contains(err.Error(), c.unread) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestLocation(t *testing.T) {
	for name, want := range map[string]string{
		"wireguard.semaphore.uw.io/endpoint-address": "all", "gcp.wireguard.semaphore.uw.io/endpoint-address": "gcp",
		"gcp.wireguard.semaphore.uw.io/endpoint": "", "gcp.wireguard.semaphore.uw.io/pubKey": "",
	} {
		remote, is := Location(name)
		if is && remote == "" {
			remote = "all"
		}
		if remote != want && is || is != (want != "") {
			t.Errorf("%s: remote %q, %v", name, remote, is)
		}
	}
}

// TestServersOfOthers keeps only addresses that other hosts can reach.
func TestServersOfOthers(t *testing.T) {
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes", Namespace: "default", Labels: map[string]string{"kubernetes.io/service-name": "kubernetes"}}}
	for _, port := range []int32{-1, 0, 65536, 6443} {
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Port: &port})
	}
	for _, address := range []string{
		"127.0.0.1", "0.0.0.0", "0.1.2.3", "169.254.169.254", "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1", "fe80::1%eth0", "ff02::1", "::ffff:127.0.0.1",
		"api.example", "10.66.0.11", "::ffff:10.66.0.12", "fd00:66::13",
	} {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}})
	}
	f := &Facts{}
	f.readServers(t.Context(), fakeCluster("https://localhost:40123", slice))
	if diff := cmp.Diff([]string{"https://10.66.0.11:6443", "https://10.66.0.12:6443", "https://[fd00:66::13]:6443"}, f.Servers); diff != "" {
		t.Errorf("servers (-want +got):\n%s", diff)
	}
}
