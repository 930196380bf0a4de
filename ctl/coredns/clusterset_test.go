package coredns

import (
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes/fake"
)

// TestClusterSet leaves the zone of imports to the administrator where CoreDNS may not start
// with it.
func TestClusterSet(t *testing.T) {
	const latest = "registry.k8s.io/coredns/coredns:v1.14.3"
	own := server + "}\n"
	for name, c := range map[string]struct{ image, corefile, want string }{
		"as kubeadm installs it":         {latest, own, ""},
		"the first version":              {"registry.k8s.io/coredns/coredns:v1.12.2", own, ""},
		"the one before":                 {"registry.k8s.io/coredns/coredns:v1.12.1", own, "CoreDNS 1.12.1 is too old"},
		"K3s":                            {"rancher/mirrored-coredns-coredns:1.12.3", own, ""},
		"RKE2":                           {"rancher/hardened-coredns:v1.12.2-build20250611", own, ""},
		"EKS":                            {"602401143452.dkr.ecr.example:5000/eks/coredns:v1.11.4-eksbuild.2", own, "CoreDNS 1.11.4 is too old"},
		"a tag and a digest":             {latest + "@sha256:0123", own, ""},
		"a digest":                       {"registry.k8s.io/coredns/coredns@sha256:0123", own, "doesn't show the version"},
		"latest":                         {"coredns:latest", own, "doesn't show the version"},
		"a tag of something else":        {"registry.example/dns:v1.14.3", own, "doesn't show the version"},
		"a short version":                {"coredns:1.14", own, "doesn't show the version"},
		"credentials of its own":         {latest, ".:53 {\n    kubernetes cluster.local {\n        kubeconfig /etc/k\n    }\n}\n", "other credentials"},
		"served by others":               {"coredns:1.9.0", own + "clusterset.local:53 {\n    forward . 192.0.2.1\n}\n", ""},
		"clusterset.local as own domain": {latest, strings.Replace(own, "cluster.local", "a.clusterset.local", 1), "would shadow"},
	} {
		workload := deployment("coredns", "coredns", "")
		workload.Spec.Template.Spec.Containers[0].Image = c.image
		s := read(t.Context(), t, fake.NewClientset(configMap("coredns", map[string]string{"Corefile": c.corefile}), workload))
		what, remedy := s.ClusterSetFault()
		if (what == "") != (c.want == "") || !strings.Contains(what, c.want) || (what == "") != (remedy == "") {
			t.Errorf("%s: %q, %q, expected %q", name, what, remedy, c.want)
		}
	}
	s := read(t.Context(), t, fake.NewClientset(configMap("coredns", map[string]string{"Corefile": own})))
	if what, _ := s.ClusterSetFault(); !strings.Contains(what, "isn't a workload") {
		t.Errorf("without a workload: %q", what)
	}
}
