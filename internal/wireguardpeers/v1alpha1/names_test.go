package v1alpha1

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
)

// TestNames: names of objects are valid, and no two of nodes and counts are the same, whatever names
// a remote gives its nodes.
func TestNames(t *testing.T) {
	long := strings.Repeat("a", longestName)
	nodes := []string{"a", "a.b", "nodes", "b-nodes", "gcp", "p0", long, long + "a", long + "b", long[1:] + ".b", strings.Repeat("b.", 126) + "b", strings.Repeat("c-", 126) + "c"}
	// A node that is called as the hashed name of another one.
	for _, n := range nodes {
		if _, hashed, _ := strings.Cut(NodeName("gcp", n), "."); hashed != n {
			nodes = append(nodes, hashed)
		}
	}
	seen := map[string]string{}
	for _, cluster := range []string{"gcp", "gcp-nodes", "a", "b-nodes", strings.Repeat("x", 52)} {
		all := map[string]string{CountName(cluster): cluster + "'s count"}
		for _, n := range nodes {
			all[NodeName(cluster, n)] = cluster + "'s " + n
		}
		if len(all) != len(nodes)+1 {
			t.Errorf("%s: %d names for %d objects", cluster, len(all), len(nodes)+1)
		}
		for name, of := range all {
			if bad := validation.IsDNS1123Subdomain(name); len(bad) > 0 {
				t.Errorf("%s: %q: %v", of, name, bad)
			}
			if other, taken := seen[name]; taken {
				t.Errorf("%q is the name of %s and of %s", name, of, other)
			}
			seen[name] = of
		}
	}
}
