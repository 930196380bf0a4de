package ipam

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

func text(prefixes []netip.Prefix) string {
	var all []string
	for _, p := range prefixes {
		all = append(all, p.String())
	}
	return strings.Join(all, ",")
}

func prefixes(text string) (all []netip.Prefix) {
	for part := range strings.SplitSeq(text, ",") {
		if part != "" {
			all = append(all, netip.MustParsePrefix(part))
		}
	}
	return all
}

func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
		t.Fatal(err)
	}
	return u
}

func TestBlocks(t *testing.T) {
	for spec, want := range map[string]string{
		`{cidr: 10.1.0.64/26, deleted: "false", node: aws-1, state: confirmed}`:              "10.1.0.64/26",
		`{cidr: 10.1.0.64/26, deleted: false, node: aws-1, state: confirmed, type: host}`:    "10.1.0.64/26",
		`{cidr: "fd00:10::/122", node: aws-1, state: confirmed}`:                             "fd00:10::/122",
		`{cidr: 10.1.0.64/26, deleted: "true", node: aws-1, state: confirmed}`:               "",
		`{cidr: 10.1.0.64/26, deleted: true, node: aws-1, state: confirmed}`:                 "",
		`{cidr: 10.1.0.64/26, deleted: "false", node: aws-2, state: confirmed}`:              "",
		`{cidr: 10.1.0.64/26, deleted: "false", node: aws-1, state: pending}`:                "",
		`{cidr: 10.1.0.64/26, deleted: "false", node: aws-1, state: pendingDeletion}`:        "",
		`{cidr: 10.1.0.64/26, deleted: false, node: aws-1, state: confirmed, type: virtual}`: "",
		`{cidr: x, deleted: "false", node: aws-1, state: confirmed}`:                         "",
		`{cidr: 7, node: aws-1, state: confirmed}`:                                           "",
		`{}`: "",
	} {
		p, is := Block(object(t, "spec: "+spec), "aws-1")
		if got := text([]netip.Prefix{p}); is != (want != "") || is && got != want {
			t.Errorf("of %s: %v %s, want %q", spec, is, got, want)
		}
	}
	if _, is := Block(object(t, "metadata: {name: x}"), ""); is {
		t.Error("an object without a specification has a block")
	}
}

// TestHashOf compares with the value of another implementation of the hash.
func TestHashOf(t *testing.T) {
	if got := HashOf("aws-1"); got != "BZG3OI4VTUFPLZ4KFEDNYRPOASK3YBGTJY364H3QFG5TUCX6Z3ZQ" {
		t.Errorf("got %q", got)
	}
}

func TestCiliumPrefixes(t *testing.T) {
	for spec, want := range map[string]string{
		`{ipam: {podCIDRs: [10.1.1.0/24, "fd00:1::/64"]}}`: "10.1.1.0/24,fd00:1::/64",
		`{ipam: {pools: {allocated: [{pool: b, cidrs: [10.9.0.0/27]}, {pool: a, cidrs: [10.1.0.0/26, 10.1.0.64/26]}], requested: []}}}`: "10.1.0.0/26,10.1.0.64/26,10.9.0.0/27",
		`{ipam: {podCIDRs: [10.1.1.0/24], pools: {allocated: [{pool: a, cidrs: [10.1.1.0/24]}]}}}`:                                      "10.1.1.0/24",
		`{eni: {}, ipam: {pool: {10.1.1.7: {}}}}`: "",
		`{ipam: {podCIDRs: 7, pools: 7}}`:         "",
		`{ipam: {pools: {allocated: [7]}}}`:       "",
		`{}`:                                      "",
	} {
		u := object(t, "spec: "+spec)
		if got := text(CiliumPrefixes(u)); got != want {
			t.Errorf("of %s: %q, want %q", spec, got, want)
		}
	}
}

func TestOVNPrefixes(t *testing.T) {
	for annotation, want := range map[string]string{
		`{"default":["10.128.0.0/23"]}`:                          "10.128.0.0/23",
		`{"default":["10.128.0.0/23","fd01::/64"]}`:              "10.128.0.0/23,fd01::/64",
		`{"default":["10.128.0.0/23"],"blue":["10.200.0.0/24"]}`: "10.128.0.0/23",
		`{"default":"10.128.0.0/23"}`:                            "10.128.0.0/23",
		`10.128.0.0/23`:                                          "10.128.0.0/23",
	} {
		if got, err := OVNPrefixes(annotation); err != nil || text(got) != want {
			t.Errorf("of %s: %q, %v", annotation, text(got), err)
		}
	}
	for _, annotation := range []string{"", "x", "{}", `{"default":7}`, `{"default":["x"]}`, `{"blue":["10.200.0.0/24"]}`} {
		if got, err := OVNPrefixes(annotation); err == nil || !strings.Contains(err.Error(), OVNSubnets) {
			t.Errorf("of %s: %v, %v", annotation, got, err)
		}
	}
}

func TestNote(t *testing.T) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
		"projectcalico.org/IPv4VXLANTunnelAddr": "10.1.0.64", "projectcalico.org/IPv4IPIPTunnelAddr": "", "projectcalico.org/IPv6VXLANTunnelAddr": "fd00::40",
		"k8s.ovn.org/node-subnets": `{"default":["10.128.0.0/23"]}`,
	}}}
	got := Note(n)
	if fmt.Sprint(got.Tunnels) != "[10.1.0.64 fd00::40]" || got.OVN == "" || !got.Equal(Note(n)) || got.Equal(Noted{}) {
		t.Errorf("noted is %+v", got)
	}
}

func TestChoose(t *testing.T) {
	spec, other := prefixes("10.1.1.0/24,fd00:1::/64"), prefixes("10.2.1.0/24")
	for name, c := range map[string]struct {
		seen Seen
		want string
	}{
		"a plain cluster":                       {Seen{PodCIDRs: spec}, Node},
		"OVN-Kubernetes":                        {Seen{OVN: true, PodCIDRs: spec, Pods: true}, OVN},
		"Cilium with pools":                     {Seen{PodCIDRs: spec, Cilium: other, CiliumIPAM: true}, Cilium},
		"Cilium with the node's podCIDRs":       {Seen{PodCIDRs: spec, Cilium: spec, CiliumIPAM: true}, Node},
		"Cilium with a cloud's addresses":       {Seen{PodCIDRs: spec, CiliumIPAM: true, Pods: true}, Pods},
		"Calico's address management":           {Seen{PodCIDRs: spec, Calico: true, Pods: true}, Calico},
		"Calico with host-local":                {Seen{PodCIDRs: spec}, Node},
		"Calico that can't be read":             {Seen{PodCIDRs: spec, Forbidden: []string{"Calico's BlockAffinities"}}, Node},
		"a cloud":                               {Seen{Pods: true}, Pods},
		"a cloud whose pods can't be read":      {Seen{}, Node},
		"Calico that can't be read, no podCIDR": {Seen{Forbidden: []string{"Calico's BlockAffinities"}}, Node},
	} {
		got := Choose(c.seen)
		if got.Source != c.want || got.Why == "" {
			t.Errorf("%s: %+v, want %s", name, got, c.want)
		}
		if len(c.seen.Forbidden) > 0 && !strings.Contains(got.Why, "deploy/wireguard/pods") {
			t.Errorf("%s: doesn't say what to do: %s", name, got.Why)
		}
	}
}

func FuzzOVNPrefixes(f *testing.F) {
	f.Add(`{"default":["10.128.0.0/23"]}`)
	f.Add(`10.128.0.0/23`)
	f.Fuzz(func(t *testing.T, text string) {
		got, err := OVNPrefixes(text)
		for _, p := range got {
			if err != nil || !p.IsValid() || p != p.Masked() {
				t.Fatalf("%v, %v", got, err)
			}
		}
	})
}
