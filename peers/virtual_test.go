package peers

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
)

// virtualPods is the map of gcp.
func virtualPods(t *testing.T) (m config.SubnetMap) {
	t.Helper()
	if err := m.Decode("10.0.0.0/16=100.76.0.0/16,10.1.0.0/16=100.77.0.0/16"); err != nil {
		t.Fatal(err)
	}
	return m
}

// nodeOf is a node of gcp with the prefix that its control plane gave it, the one that it
// publishes, and a map, as agents of earlier versions published it.
func nodeOf(t *testing.T, number, age int, given, published, subnetMap string) *Node {
	n, _ := NodeFor("aws", 4, virtualPods(t))(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprint("gcp-", number), CreationTimestamp: metav1.NewTime(time.Date(2026, 1, 1, 0, 0, -age, 0, time.UTC)),
			Annotations: map[string]string{
				PublicKeyAnnotation("aws"): key(byte(number)).String(), EndpointAnnotation("aws"): fmt.Sprintf("10.66.0.%d:51820", number),
				PodCIDRsAnnotation: published, "wireguard.semaphore.uw.io/podSubnetsMap": subnetMap,
			},
		},
		Spec: corev1.NodeSpec{PodCIDRs: []string{given}},
	})
	return n
}

// TestNoNodeMovesItsAllocation has an older node that publishes the virtual prefix of another one.
func TestNoNodeMovesItsAllocation(t *testing.T) {
	ours := virtualPods(t).String()
	for name, c := range map[string]struct {
		subnets   []netip.Prefix
		published string // the map of the hostile node
	}{
		"by the map of its cluster":        {prefixes("100.76.0.0/16", "100.77.0.0/16"), ours},
		"by a map that moves its own":      {prefixes("100.76.0.0/16", "100.77.0.0/16"), "10.1.0.0/16=100.76.0.0/16"},
		"where virtual subnets are merged": {prefixes("100.76.0.0/15"), ours},
	} {
		t.Run(name, func(t *testing.T) {
			nodes := []*Node{
				nodeOf(t, 1, 0, "10.0.3.0/24", "100.76.3.0/24", ours),
				nodeOf(t, 2, 50, "10.1.3.0/24", "100.76.3.0/24", c.published),
				nodeOf(t, 3, 40, "10.1.4.0/24", "100.77.4.0/24", ours),
				nodeOf(t, 4, 40, "10.0.4.0/24", "100.76.4.0/24", ours),
			}
			rules := rules
			rules.Subnets = c.subnets
			peers, rejected := Desired(nodes, rules)
			var got []string
			for _, p := range peers {
				got = append(got, fmt.Sprintf("%s %v", p.Node, p.AllowedIPs))
			}
			slices.Sort(got)
			if want := []string{"gcp-1 [100.76.3.0/24]", "gcp-3 [100.77.4.0/24]", "gcp-4 [100.76.4.0/24]"}; !slices.Equal(got, want) {
				t.Errorf("allowed IPs %v, want %v; rejected %+v", got, want, rejected)
			}
		})
	}
}

// TestAllocationInVirtualSubnets trims nodes of a cluster with a map.
func TestAllocationInVirtualSubnets(t *testing.T) {
	for _, c := range []struct {
		name, given, published, allocated string
	}{
		{"as given", "10.0.3.0/24", "100.76.3.0/24", "100.76.3.0/24"},
		{"of the second subnet", "10.1.3.0/24", "100.77.3.0/24", "100.77.3.0/24"},
		{"outside of the map", "10.9.3.0/24", "10.9.3.0/24", "10.9.3.0/24"},
		{"only a part of which is mapped", "10.0.0.0/8", "100.76.3.0/24", "10.0.0.0/8"},
		{"not a prefix", "x", "100.76.3.0/24", "x"},
	} {
		n := nodeOf(t, 1, 0, c.given, c.published, "")
		if !slices.Equal(n.Allocated, []string{c.allocated}) || n.isAllocated(n.prefixes[0]) != (c.published == c.allocated) {
			t.Errorf("%s: allocated %v, prefixes %v", c.name, n.Allocated, n.prefixes)
		}
	}
	silent := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "gcp-1", Annotations: map[string]string{PublicKeyAnnotation("aws"): key(1).String()}}, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.0.3.0/24"}}}
	if n, _ := NodeFor("aws", 4, virtualPods(t))(silent); !slices.Equal(n.PodCIDRs, []string{"10.0.3.0/24"}) || n.Allocated != nil {
		t.Errorf("a node that publishes nothing has %v, allocated %v", n.PodCIDRs, n.Allocated)
	}
}
