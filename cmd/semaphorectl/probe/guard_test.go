package probe

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kube-semaphore/kube-semaphore/internal/reach"
)

// TestGuardsPolicy holds that the policy is about pods of its run alone, lets in who is in
// the sets of the named clusters, and has the form that each API takes.
func TestGuardsPolicy(t *testing.T) {
	for _, tt := range []struct {
		api  schema.GroupVersion
		name string
		tier any
	}{
		{schema.GroupVersion{Group: "projectcalico.org", Version: "v3"}, "semaphorectl-verify", nil},
		{schema.GroupVersion{Group: "crd.projectcalico.org", Version: "v1"}, "default.semaphorectl-verify", "default"},
	} {
		g := &Guard{API: tt.api, Domain: "policy.example.org"}
		got := g.policy("abc", []string{"aws"})
		spec := map[string]any{
			"order": int64(0), "selector": "semaphore.uw.io/run == 'abc'", "types": []any{"Ingress"},
			"ingress": []any{map[string]any{"action": "Allow", "source": map[string]any{
				"selector":          "policy.example.org/name == 'semaphorectl-abc' && policy.example.org/namespace == 'kube-system' && policy.example.org/cluster == 'aws'",
				"namespaceSelector": "global()",
			}}},
		}
		if tt.tier != nil {
			spec["tier"] = tt.tier
		}
		// By these leave finds one that a killed run has left.
		if labels := got.GetLabels(); labels["app.kubernetes.io/managed-by"] != "semaphorectl" || got.GetNamespace() != "kube-system" {
			t.Errorf("it is in %s, with labels %v", got.GetNamespace(), labels)
		}
		if diff := cmp.Diff(spec, got.Object["spec"]); diff != "" || got.GetName() != tt.name || got.GetAPIVersion() != tt.api.String() {
			t.Errorf("%s %s (-want +got):\n%s", got.GetAPIVersion(), got.GetName(), diff)
		}
	}
}

// TestGuardedAreThoseThatWereReached holds that only what was reached without a policy is
// tried with one, from the node that reached the most.
func TestGuardedAreThoseThatWereReached(t *testing.T) {
	one, two := Place{"aws", "aws-1"}, Place{"aws", "aws-2"}
	gcp1, gcp2 := Place{"gcp", "gcp-1"}, Place{"gcp", "gcp-2"}
	failed := reach.Try{Error: "i/o timeout"}
	reached := []Leg{
		{From: one, To: gcp1, Address: "10.4.1.7"}, {From: one, To: gcp2, Address: "10.4.2.7", Try: failed},
		{From: two, To: gcp1, Address: "10.4.1.7"}, {From: two, To: gcp2, Address: "10.4.2.7"},
		{From: two, To: Place{"merit", "merit-1"}, Address: "10.6.1.7"}, {From: two, To: gcp2, Untried: "no pod"},
	}
	want := Guarded{From: two, To: "gcp", Legs: []GuardedLeg{{To: gcp1, Address: "10.4.1.7"}, {To: gcp2, Address: "10.4.2.7"}}}
	if diff := cmp.Diff(want, guarded("aws", "gcp", reached)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if g := guarded("gcp", "aws", reached); g.Untried == "" || len(g.Legs) > 0 {
		t.Errorf("nobody was reached, and it is %+v", g)
	}
}

func TestSetsContain(t *testing.T) {
	sets := []unstructured.Unstructured{
		{Object: map[string]any{"spec": map[string]any{"nets": []any{"10.2.1.7/32"}}}},
		{Object: map[string]any{"spec": map[string]any{"nets": []any{"fd00:2::7/128"}}}}, {Object: map[string]any{}},
	}
	for _, tt := range []struct {
		wanted []string
		want   bool
	}{
		{[]string{"10.2.1.7"}, true}, {[]string{"10.2.1.7", "fd00:2:0::7"}, true}, {[]string{"10.2.1.8"}, false},
		{[]string{"10.2.1.7", "10.2.1.8"}, false}, {nil, false}, {[]string{"no address"}, false},
	} {
		if got := contains(sets, tt.wanted); got != tt.want {
			t.Errorf("%q: %v", tt.wanted, got)
		}
	}
}
