package peers

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPrefixesOfANodeAreBounded(t *testing.T) {
	many := func(format string, count int) (prefixes []string) {
		for i := range count {
			prefixes = append(prefixes, fmt.Sprintf(format, i/256, i%256))
		}
		return prefixes
	}
	const maxPrefixes = 32
	rules := rules
	rules.MaxPrefixes = maxPrefixes
	trim := NodeFor("aws", maxPrefixes, nil)
	object := func(prefixes []string) *corev1.Node {
		n := node(1)
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: n.Name, Annotations: map[string]string{
				PublicKeyAnnotation("aws"): n.PublicKey, EndpointAnnotation("aws"): n.Endpoint,
			}},
			Spec: corev1.NodeSpec{PodCIDRs: prefixes},
		}
	}
	n, _ := trim(object(many("10.4.%d.%d/32", 50_000)))
	if len(n.PodCIDRs) != maxPrefixes+1 {
		t.Errorf("%d prefixes are kept", len(n.PodCIDRs))
	}
	peers, rejected := Desired([]*Node{n}, rules)
	if len(peers) != 1 || len(peers[0].AllowedIPs) != maxPrefixes {
		t.Errorf("peers are %+v", peers)
	}
	if len(rejected) != 1 || rejected[0].Reason != ReasonManyPrefixes || !rejected[0].Partial {
		t.Errorf("rejected is %+v", rejected)
	}
	if n, _ := trim(object(many("10.4.%d.%d/32", maxPrefixes))); len(n.PodCIDRs) != maxPrefixes {
		t.Errorf("%d prefixes are kept", len(n.PodCIDRs))
	} else if _, rejected := Desired([]*Node{n}, rules); len(rejected) != 0 {
		t.Errorf("rejected is %+v", rejected)
	}

	n, _ = trim(object(many("10.99.%d.%d/32", 50_000)))
	_, rejected = Desired([]*Node{n}, rules)
	if len(rejected) != maxRefused || !strings.Contains(rejected[maxRefused-1].Detail, fmt.Sprintf("; and %d more", maxPrefixes+1-maxRefused)) {
		t.Errorf("%d are rejected: %+v", len(rejected), rejected)
	}
	n, _ = trim(object([]string{strings.Repeat("1", 1<<20)}))
	if len(n.PodCIDRs[0]) > 2*maxPrefix {
		t.Errorf("a prefix of %d bytes is kept", len(n.PodCIDRs[0]))
	}
}
