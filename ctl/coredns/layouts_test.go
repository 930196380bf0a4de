package coredns

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
)

// server is the server block of the cluster's domain, as in most distributions.
const server = `.:53 {
    errors
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        pods insecure
        ttl 5
    }
    prometheus :9153
    forward . /etc/resolv.conf
    cache 30
    loop
    reload
    loadbalance
`

// zoned is a server block of an administrator.
const zoned = "cluster.gcp:53 {\n    errors\n    kubernetes cluster.local cluster.gcp\n}\n"

// layout is how a distribution installs CoreDNS.
type layout struct {
	objects []runtime.Object
	// target is where our server blocks go; empty: nowhere.
	target string
	owner  string // of the target
	// unserved is whether no server block of gcp is served after join.
	unserved bool
}

func configMap(name string, data map[string]string, marks ...string) *corev1.ConfigMap {
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "kube-system", Labels: map[string]string{}, Annotations: map[string]string{}}, Data: data}
	for _, mark := range marks {
		key, value, _ := strings.Cut(mark, "=")
		if strings.Contains(key, "helm.sh/release-name") || strings.Contains(key, "argoproj") || strings.Contains(key, "objectset") {
			m.Annotations[key] = value
		} else {
			m.Labels[key] = value
		}
	}
	return m
}

// deployment runs CoreDNS with the Corefile of a ConfigMap, and with more at custom, if it has
// a name.
func deployment(name, config, more string) *appsv1.Deployment {
	yes := true
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "kube-system"}}
	d.Spec.Template = corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"k8s-app": "kube-dns"}},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{
				Name: "coredns", Image: "registry.example/mirrored-coredns:v1.12.2", Args: []string{"-conf", "/etc/coredns/Corefile"},
				VolumeMounts: []corev1.VolumeMount{{Name: "config", MountPath: "/etc/coredns", ReadOnly: true}},
			}},
			Volumes: []corev1.Volume{{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: config}, Items: []corev1.KeyToPath{{Key: "Corefile", Path: "Corefile"}},
			}}}},
		},
	}
	if more != "" {
		pod := &d.Spec.Template.Spec
		pod.Containers[0].VolumeMounts = append(pod.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "custom", MountPath: "/etc/coredns/custom/"})
		pod.Volumes = append(pod.Volumes, corev1.Volume{Name: "custom", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: more}, Optional: &yes,
		}}})
	}
	return d
}

func layouts() map[string]layout {
	corefile := func(text string) map[string]string { return map[string]string{"Corefile": text} }
	rancher := corefile(server + "    import /etc/coredns/custom/*.override\n}\nimport /etc/coredns/custom/*.server\n")
	azure := corefile(server + "    import custom/*.override\n}\nimport custom/*.server\n")
	k3s := configMap("coredns", rancher, "objectset.rio.cattle.io/owner-name=coredns")
	aks := configMap("coredns", azure, "addonmanager.kubernetes.io/mode=Reconcile", "k8s-app=kube-dns")
	operator := configMap("dns-default", corefile(strings.Replace(server, ".:53", ".:5353", 1)+"}\n"), "dns.operator.openshift.io/owning-dns=default")
	eks := configMap("coredns", corefile(server+"}\n"), "eks.amazonaws.com/component=coredns")
	eks.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "eks"}}
	openshift := deployment("dns-default", "dns-default", "")
	openshift.Namespace, operator.Namespace = "openshift-dns", "openshift-dns"
	cache := configMap("node-local-dns", corefile("cluster.local:53 {\n    bind 169.254.20.10\n    forward . __PILLAR__CLUSTER__DNS__\n}\n.:53 {\n    forward . /etc/resolv.conf\n}\n"))
	return map[string]layout{
		"kubeadm":        {[]runtime.Object{configMap("coredns", corefile(server+"}\n")), deployment("coredns", "coredns", "")}, "coredns/Corefile", "", false},
		"no workload":    {[]runtime.Object{configMap("coredns", corefile(server+"}\n"))}, "coredns/Corefile", "", false},
		"kept by addons": {[]runtime.Object{configMap("coredns", corefile(server+"}"), "addonmanager.kubernetes.io/mode=EnsureExists"), deployment("coredns", "coredns", "")}, "coredns/Corefile", "", false},
		"addon manager":  {[]runtime.Object{configMap("coredns", corefile(server+"}\n"), "addonmanager.kubernetes.io/mode=Reconcile"), deployment("coredns", "coredns", "")}, "", "the addon manager", true},
		"K3s":            {[]runtime.Object{k3s, deployment("coredns", "coredns", custom)}, "coredns-custom/semaphore.server", "", false},
		"old K3s":        {[]runtime.Object{configMap("coredns", corefile(server+"}\n"), "objectset.rio.cattle.io/owner-name=coredns"), deployment("coredns", "coredns", "")}, "coredns/Corefile", "K3s", false},
		"AKS":            {[]runtime.Object{aks, configMap(custom, nil, "addonmanager.kubernetes.io/mode=EnsureExists"), deployment("coredns", "coredns", custom)}, "coredns-custom/semaphore.server", "", false},
		"the zone is taken": {[]runtime.Object{aks, configMap(custom, map[string]string{"gcp.server": zoned, "none.override": "# none\n"}), deployment("coredns", "coredns", custom)},
			"coredns-custom/semaphore.server", "", false},
		"taken without a workload": {[]runtime.Object{aks, configMap(custom, map[string]string{"gcp.server": zoned})}, "coredns-custom/semaphore.server", "", false},
		"nothing imports it": {[]runtime.Object{configMap("coredns", corefile(server+"}\n")), configMap(custom, map[string]string{"gcp.server": zoned}), deployment("coredns", "coredns", custom)},
			"coredns/Corefile", "", false},
		"of an earlier join": {[]runtime.Object{configMap("coredns", corefile(withBlock(server+"    import custom/*.override\n}\nimport custom/*.server\n", zoned))), deployment("coredns", "coredns", custom)},
			"coredns-custom/semaphore.server", "", false},
		"RKE2": {[]runtime.Object{configMap("rke2-coredns-rke2-coredns", corefile(server+"}\n"), "app.kubernetes.io/managed-by=Helm", "meta.helm.sh/release-name=rke2-coredns"),
			configMap("coredns-old", corefile(server+"}\n")), deployment("rke2-coredns-rke2-coredns", "rke2-coredns-rke2-coredns", "")},
			"rke2-coredns-rke2-coredns/Corefile", "RKE2", false},
		"Helm":         {[]runtime.Object{configMap("dns-coredns", corefile(server+"}\n"), "app.kubernetes.io/managed-by=Helm", "meta.helm.sh/release-name=dns"), deployment("dns-coredns", "dns-coredns", "")}, "dns-coredns/Corefile", "Helm release dns", false},
		"Argo CD":      {[]runtime.Object{configMap("coredns", corefile(server+"}\n"), "argocd.argoproj.io/tracking-id=x"), deployment("coredns", "coredns", "")}, "coredns/Corefile", "Argo CD", false},
		"Flux":         {[]runtime.Object{configMap("coredns", corefile(server+"}\n"), "kustomize.toolkit.fluxcd.io/name=x"), deployment("coredns", "coredns", "")}, "", "Flux", true},
		"EKS":          {[]runtime.Object{eks, deployment("coredns", "coredns", "")}, "coredns/Corefile", "the EKS add-on coredns", false},
		"Flux by Helm": {[]runtime.Object{configMap("coredns", corefile(server+"}\n"), "helm.toolkit.fluxcd.io/name=x"), deployment("coredns", "coredns", "")}, "coredns/Corefile", "Flux", false},
		"kOps":         {[]runtime.Object{configMap("coredns", corefile(server+"}\n"), "addon.kops.k8s.io/name=coredns.addons.k8s.io"), deployment("coredns", "coredns", "")}, "coredns/Corefile", "kOps", false},
		"another port": {[]runtime.Object{configMap("coredns", corefile(strings.Replace(azure["Corefile"], ".:53", ".:8053", 1)), "resources.gardener.cloud/managed-by=gardener"), deployment("coredns", "coredns", custom)}, "coredns-custom/semaphore.server", "", false},
		"OpenShift":    {[]runtime.Object{operator, openshift}, "", "OpenShift's DNS operator", true},
		"DNS over TLS first": {[]runtime.Object{configMap("coredns", corefile("tls://cluster.local:853 {\n    kubernetes cluster.local\n}\n"+strings.Replace(azure["Corefile"], ".:53", "tls://.:853 .:8053", 1))), deployment("coredns", "coredns", custom)},
			"coredns-custom/semaphore.server", "", false},
		"a node's cache": {[]runtime.Object{configMap("coredns", corefile(server+"}\n")), deployment("coredns", "coredns", ""), cache, nodeLocal()}, "coredns/Corefile", "", false},
	}
}

// nodeLocal is NodeLocal DNSCache as its manifest installs it.
func nodeLocal() *appsv1.DaemonSet {
	s := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "node-local-dns", Namespace: "kube-system"}}
	s.Spec.Template = corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"k8s-app": "node-local-dns"}},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{
				Name: "node-cache", Image: "registry.k8s.io/dns/k8s-dns-node-cache:1.26.7", Args: []string{"-localip", "169.254.20.10,10.96.0.10", "-conf", "/etc/Corefile", "-upstreamsvc", "kube-dns-upstream"},
				VolumeMounts: []corev1.VolumeMount{{Name: "config-volume", MountPath: "/etc/coredns"}},
			}},
			Volumes: []corev1.Volume{{Name: "config-volume", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: "node-local-dns"}, Items: []corev1.KeyToPath{{Key: "Corefile", Path: "Corefile.base"}},
			}}}},
		},
	}
	return s
}

var zones = []Zone{{"gcp", "gcp"}, {"merit", "merit"}, {}}

// configMaps returns the ConfigMaps of a cluster by name, without versions.
func configMaps(t *testing.T, client kubernetes.Interface) map[string]map[string]string {
	t.Helper()
	all := map[string]map[string]string{}
	list, err := client.CoreV1().ConfigMaps("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range list.Items {
		all[m.Name] = map[string]string{}
		for key, text := range m.Data {
			all[m.Name][key] = text
		}
	}
	return all
}

// TestBounds refuses what no CoreDNS has.
func TestBounds(t *testing.T) {
	client := fake.NewClientset(configMap("coredns", map[string]string{"Corefile": strings.Repeat("x", maxMap+1)}))
	if _, err := Read(t.Context(), client); err == nil {
		t.Error("a ConfigMap of more than 2 MiB is read")
	}
	var many []runtime.Object
	for i := range maxMaps + 1 {
		many = append(many, configMap(fmt.Sprint("x", i), map[string]string{"Corefile": ""}))
	}
	if _, err := Read(t.Context(), fake.NewClientset(many...)); err == nil {
		t.Errorf("%d ConfigMaps are read", len(many))
	}
	if s := setupOf(t, strings.Repeat("x ", maxTokens+1)); s.Invalid == nil {
		t.Error("a Corefile of so many words is parsed")
	}
	client = fake.NewClientset(configMap("coredns", map[string]string{"Corefile": server + "}\n"}), deployment("--all", "coredns", ""))
	if s, err := Read(t.Context(), client); err != nil || s.Name != "" {
		t.Errorf("a workload without a valid name: %+v, %v", s, err)
	}
}

func read(ctx context.Context, t *testing.T, client kubernetes.Interface) *Setup {
	t.Helper()
	s, err := Read(ctx, client)
	if err != nil || s == nil {
		t.Fatalf("%v, %v", s, err)
	}
	return s
}

// TestLayouts writes the server blocks where the owner of CoreDNS's configuration keeps them,
// never a zone twice, and removes exactly these.
func TestLayouts(t *testing.T) {
	for name, l := range layouts() {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			client := fake.NewClientset(l.objects...)
			before := configMaps(t, client)
			s := read(ctx, t, client)
			if s.Owner.Name != l.owner {
				t.Errorf("owner %q, expected %q", s.Owner.Name, l.owner)
			}
			if _, err := Write(ctx, client, zones); err != nil {
				t.Fatal(err)
			}
			after := configMaps(t, client)
			var ours []string
			for object, data := range after {
				for key, text := range data {
					if withoutBlock(text) != text {
						ours = append(ours, object+"/"+key)
					}
				}
			}
			if want := slices.DeleteFunc([]string{l.target}, func(s string) bool { return s == "" }); !slices.Equal(ours, want) {
				t.Errorf("server blocks in %v, expected %v", ours, want)
			}
			s = read(ctx, t, client)
			if s.Serves(ClusterSet) == l.unserved {
				t.Errorf("%s served: %v", ClusterSet, s.Serves(ClusterSet))
			}
			if s.Serves("cluster.gcp") == l.unserved || s.Serves("cluster.global") == l.unserved || len(s.Twice()) > 0 || s.Invalid != nil {
				t.Errorf("gcp served %v, global %v, twice %v, invalid %v", s.Serves("cluster.gcp"), s.Serves("cluster.global"), s.Twice(), s.Invalid)
			}
			if changed, err := Write(ctx, client, zones); err != nil || len(changed) > 0 {
				t.Errorf("written again: %v, %v", changed, err)
			}
			if _, err := Write(ctx, client, nil); err != nil {
				t.Fatal(err)
			}
			for _, data := range before { // That of an earlier join goes, too.
				for key, text := range data {
					data[key] = withoutBlock(text)
				}
			}
			if diff := cmp.Diff(before, configMaps(t, client)); diff != "" {
				t.Errorf("after its removal (-before +after):\n%s", diff)
			}
		})
	}
}

// TestEarlierBlocks replaces the server blocks of an earlier release.
func TestEarlierBlocks(t *testing.T) {
	const earlier = "cluster.gcp:53 {\n    errors\n    kubernetes cluster.local {\n        namespaces sys-semaphore\n    }\n}"
	client := fake.NewClientset(configMap("coredns", map[string]string{"Corefile": withBlock(server+"}\n", earlier)}), deployment("coredns", "coredns", ""))
	if _, err := Write(t.Context(), client, zones); err != nil {
		t.Fatal(err)
	}
	got := configMaps(t, client)["coredns"]["Corefile"]
	if strings.Count(got, "cluster.gcp:53 {") != 1 || !strings.Contains(got, "kubernetes cluster.local cluster.gcp {") || withoutBlock(got) != server+"}\n" {
		t.Errorf("%s", got)
	}
}

// TestKeysOfOthers keeps a ConfigMap of ours to which others have added a key.
func TestKeysOfOthers(t *testing.T) {
	ctx, client := t.Context(), fake.NewClientset(layouts()["K3s"].objects...)
	if _, err := Write(ctx, client, zones); err != nil {
		t.Fatal(err)
	}
	m, err := client.CoreV1().ConfigMaps("kube-system").Get(ctx, custom, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m.Data["own.server"] = "example.org:53 {\n}\n"
	if _, err := client.CoreV1().ConfigMaps("kube-system").Update(ctx, m, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := Write(ctx, client, nil); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"own.server": "example.org:53 {\n}\n"}, configMaps(t, client)[custom]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestAdapts gives our server blocks the addresses and the access of the cluster's own.
func TestAdapts(t *testing.T) {
	got, err := setupOf(t, "dns://.:1053 {\n  bind eth0 {\n    except 192.0.2.1\n  }\n  kubernetes k8s.example. {\n    endpoint https://192.0.2.2:6443\n    pods insecure\n  }\n}\n").Blocks(zones)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"cluster.gcp:1053 {\n    bind eth0 {\n        except 192.0.2.1\n    }\n", "kubernetes k8s.example cluster.gcp {\n        endpoint https://192.0.2.2:6443\n        namespaces",
		"cluster.global:1053 {", "kubernetes k8s.example cluster.global {",
		"clusterset.local:1053 {\n    bind eth0 {", "kubernetes clusterset.local {\n        endpoint https://192.0.2.2:6443\n        multicluster clusterset.local\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}

// TestCorefiles parses what CoreDNS accepts, and refuses to extend what it doesn't.
func TestCorefiles(t *testing.T) {
	for name, c := range map[string]struct {
		corefile string
		serves   bool // cluster.gcp
		invalid  string
	}{
		"comments, quotes and case":      {"\"dns://CLUSTER.GCP.:53\" , example.org {\n  errors # }\n}\n# x {", true, ""},
		"keys on lines of their own":     {"example.org,\ncluster.gcp {\n}\n", true, ""},
		"another port or transport":      {"cluster.gcp:54 {\n}\ntls://cluster.gcp {\n}\n", false, ""},
		"beneath it":                     {"x.cluster.gcp:53 {\n}\n", false, ""},
		"within a directive":             {". {\n  view cluster.gcp {\n    x {\n    }\n  }\n  forward cluster.gcp 192.0.2.1\n}\n", false, ""},
		"a snippet":                      {"(zone) {\n  errors\n}\ncluster.gcp {\n  import zone\n}\n", true, ""},
		"server blocks in a snippet":     {"(zone) {\n  cluster.gcp {\n  }\n}\nimport zone\n", true, ""},
		"a snippet that contains itself": {"(a) {\n import a\n}\nimport a\n", false, "too many imports"},
		"no closing brace":               {". {\n  errors\n", false, "has no }"},
		"no braces":                      {".:53\nerrors\ncluster.gcp\n", false, "has no braces"},
	} {
		s := setupOf(t, c.corefile)
		if s.Serves("cluster.gcp") != c.serves || (s.Invalid == nil) != (c.invalid == "") || s.Invalid != nil && !strings.Contains(s.Invalid.Error(), c.invalid) {
			t.Errorf("%s: served %v, invalid %v", name, s.Serves("cluster.gcp"), s.Invalid)
		}
		if _, err := s.plan(zones); (err == nil) != (c.invalid == "") {
			t.Errorf("%s: plan: %v", name, err)
		}
	}
}

// TestNodeLocal names the zones that NodeLocal DNSCache doesn't ask CoreDNS for, and how it
// gets them.
func TestNodeLocal(t *testing.T) {
	const local = "cluster.local:53 {\n    forward . __PILLAR__CLUSTER__DNS__ {\n        force_tcp\n    }\n}\n"
	const rest = ".:53 {\n    forward . __PILLAR__UPSTREAM__SERVERS__\n}\n"
	asked := []string{"cluster.gcp", "cluster.global"}
	for name, c := range map[string]struct {
		corefile, stubs string
		missing         []string
		remedy          string
	}{
		"as installed":       {local + rest, "", asked, `write "cluster.local:53 cluster.gcp:53 cluster.global:53 {" instead of "cluster.local:53 {"`},
		"one zone is there":  {strings.Replace(local, "cluster.local:53", "cluster.local:53 cluster.gcp:53", 1) + rest, "", asked[1:], `write "cluster.local:53 cluster.gcp:53 cluster.global:53 {"`},
		"stub domains":       {local + rest, `{"cluster.gcp": ["10.96.0.11"], "cluster.global.": ["10.96.0.11"]}`, nil, ""},
		"everything goes on": {local + strings.Replace(rest, "UPSTREAM__SERVERS", "CLUSTER__DNS", 1), "", nil, ""},
		"one for all":        {rest, "", nil, ""},
		"none for the rest":  {local, "", asked, ""},
		"none at all":        {"", "", asked, ""},
	} {
		objects := []runtime.Object{configMap("coredns", map[string]string{"Corefile": server + "}\n"}), deployment("coredns", "coredns", ""), nodeLocal(),
			configMap("node-local-dns", map[string]string{"Corefile": c.corefile}), configMap("kube-dns", map[string]string{"stubDomains": c.stubs})}
		n := read(t.Context(), t, fake.NewClientset(objects...)).NodeLocal
		missing := n.Missing(asked)
		if !slices.Equal(missing, c.missing) || c.remedy != "" && !strings.Contains(n.Remedy(missing), c.remedy) {
			t.Errorf("%s: missing %v: %s", name, missing, n.Remedy(missing))
		}
	}
}

// TestRefusesWhatCoreDNSWould checks the result before it is written.
func TestRefusesWhatCoreDNSWould(t *testing.T) {
	for name, c := range map[string]struct{ corefile, want string }{
		"foreign server blocks for one zone twice": {".:53 {\n    kubernetes cluster.local\n}\nexample.org {\n}\nexample.org:53 {\n}\n", "two for example.org:53"},
		"a view before the rest of its zone":       {".:53 {\n    view x {\n    }\n}\n.:53 {\n    kubernetes cluster.local\n}\n", ""},
		"a view after the rest of its zone":        {".:53 {\n    kubernetes cluster.local\n}\n.:53 {\n    view x {\n    }\n}\n", "two for .:53"},
		"DNS over TLS only":                        {"tls://.:853 {\n    kubernetes cluster.local\n}\n", ""},
		"an end that isn't in a block":             {".:53 {\n    kubernetes cluster.local\n}\n(rest) {\n", "can't read its configuration"},
	} {
		client := fake.NewClientset(configMap("coredns", map[string]string{"Corefile": c.corefile}), deployment("coredns", "coredns", ""))
		_, err := Write(t.Context(), client, zones)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if got := configMaps(t, client)["coredns"]["Corefile"]; (got == c.corefile) != (c.want != "") {
			t.Errorf("%s: written\n%s", name, got)
		}
	}
}
