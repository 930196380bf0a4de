package policy

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	calico "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func domain() Labels { return Labels{Domain: "policy.semaphore.uw.io", ManagedBy: "semaphore-policy"} }

func labelsOf(name string) map[string]string {
	return map[string]string{
		"managed-by": "semaphore-policy", "policy.semaphore.uw.io/name": name,
		"policy.semaphore.uw.io/namespace": "ns", "policy.semaphore.uw.io/cluster": "gcp",
	}
}

func networkSet(labels map[string]string, annotation string, nets ...string) *calico.GlobalNetworkSet {
	set := &calico.GlobalNetworkSet{
		ObjectMeta: metav1.ObjectMeta{Name: "gcp-ns-app", UID: "u", ResourceVersion: "7", Labels: labels},
		Spec:       calico.GlobalNetworkSetSpec{Nets: nets},
	}
	if annotation != "" {
		set.Annotations = map[string]string{metadataAnnotation: annotation, "theirs": "stays"}
	}
	return set
}

func TestObserve(t *testing.T) {
	inside, err := json.Marshal(map[string]any{"uid": "x", "labels": labelsOf("app")})
	if err != nil {
		t.Fatal(err)
	}
	outdated, err := json.Marshal(map[string]any{"labels": labelsOf("outdated")})
	if err != nil {
		t.Fatal(err)
	}
	other := labelsOf("app")
	other["managed-by"] = "another"
	extra := labelsOf("app")
	extra["team"] = "a"
	want := *ours("gcp-ns-app", gcp("app"), "10.4.0.1", "fd00::1")
	want.UID, want.ResourceVersion = "u", "7"
	notExact := want
	notExact.Exact = false
	ranges := notExact
	ranges.Ranges = true
	with := func(o Observed, annotation []byte) Observed {
		o.Metadata = string(annotation)
		return o
	}
	managed := func(by ...string) *calico.GlobalNetworkSet {
		set := networkSet(labelsOf("app"), "", "10.4.0.1/32", "fd00::1/128")
		for _, manager := range by {
			set.ManagedFields = append(set.ManagedFields, metav1.ManagedFieldsEntry{Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate})
		}
		return set
	}
	tracked := want
	tracked.Tracked = true
	nets := []string{"10.4.0.1/32", "fd00::1/128"}
	theirs := Observed{Object: Object{Name: "gcp-ns-app"}, UID: "u", ResourceVersion: "7"}
	for name, test := range map[string]struct {
		set  *calico.GlobalNetworkSet
		want Observed
	}{
		"as we write it":                       {networkSet(labelsOf("app"), "", nets...), want},
		"labels that others added":             {networkSet(extra, "", nets...), want},
		"an annotation without labels":         {networkSet(labelsOf("app"), `{"uid":"x"}`, nets...), want},
		"an annotation that is nonsense":       {networkSet(labelsOf("app"), `{"labels":`, nets...), want},
		"labels only in Calico's annotation":   {networkSet(nil, string(inside), nets...), with(notExact, inside)},
		"labels in both places":                {networkSet(labelsOf("app"), string(inside), nets...), with(want, inside)},
		"plain labels win over the annotation": {networkSet(labelsOf("app"), string(outdated), nets...), with(notExact, outdated)},
		"not sorted":                           {networkSet(labelsOf("app"), "", "fd00::1/128", "10.4.0.1/32"), notExact},
		"a duplicate":                          {networkSet(labelsOf("app"), "", "10.4.0.1/32", "10.4.0.1/32", "fd00::1/128"), notExact},
		"IPv6 with the length of IPv4":         {networkSet(labelsOf("app"), "", "10.4.0.1/32", "fd00::/32", "fd00::1/128"), ranges},
		"a net that lets everything in":        {networkSet(labelsOf("app"), "", "0.0.0.0/0", "10.4.0.1/32", "fd00::1/128"), ranges},
		"an address without a length":          {networkSet(labelsOf("app"), "", "10.4.0.1/32", "10.4.0.2", "fd00::1/128"), ranges},
		"fields that are tracked for us":       {managed(fieldManager), tracked},
		"fields that others have set, too":     {managed(fieldManager, "kubectl"), want},
		"managed by another program":           {networkSet(other, "", nets...), theirs},
		"without one":                          {networkSet(nil, "", nets...), theirs},
	} {
		t.Run(name, func(t *testing.T) {
			got := domain().observe(test.set)
			test.want.Untracked = got.Owned && len(test.set.ManagedFields) == 0
			if diff := cmp.Diff(test.want, got, compareAddrs); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestTheLabelsAndNamesOfTheOldestDocument(t *testing.T) {
	labels := Labels{Domain: "semaphore.uw.systems", ManagedBy: "calico-global-network-sync-operator"}
	if labels.Pod() != "semaphore.uw.systems/name" {
		t.Errorf("pods are found by %s", labels.Pod())
	}
	id := Identity{Cluster: "my-cluster", Namespace: "my-ns", Name: "my-app"}
	got := labels.manifest(&Object{Name: id.Natural(1), Identity: id, Addrs: addrs("10.4.1.38")})
	want := &calico.GlobalNetworkSet{
		ObjectMeta: metav1.ObjectMeta{Name: "my-cluster-my-ns-my-app", Labels: map[string]string{
			"managed-by":                     "calico-global-network-sync-operator",
			"semaphore.uw.systems/name":      "my-app",
			"semaphore.uw.systems/namespace": "my-ns",
			"semaphore.uw.systems/cluster":   "my-cluster",
		}},
		Spec: calico.GlobalNetworkSetSpec{Nets: []string{"10.4.1.38/32"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestPatchNamesTheVersionAndKeepsWhatOthersWrote(t *testing.T) {
	have := ours("gcp-ns-app", gcp("app"))
	have.ResourceVersion = "42"
	have.Tracked = true
	have.Metadata = `{"uid":"x","creationTimestamp":"2021-04-09T15:04:43Z","labels":{"team":"a","managed-by":"old"}}`
	patch, err := domain().patch(have, &Object{Name: have.Name, Identity: gcp("app"), Addrs: addrs("10.4.0.1")}, false, "")
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Metadata struct {
			ResourceVersion string
			Labels          map[string]string
			Annotations     map[string]string
			ManagedFields   json.RawMessage
		}
		Spec struct{ Nets []string }
	}
	if err := json.Unmarshal(patch, &got); err != nil {
		t.Fatal(err)
	}
	if string(got.Metadata.ManagedFields) != "[{}]" {
		t.Errorf("managed fields %s, want them forgotten", got.Metadata.ManagedFields)
	}
	if got.Metadata.ResourceVersion != "42" {
		t.Errorf("patches version %q, want 42", got.Metadata.ResourceVersion)
	}
	if diff := cmp.Diff(labelsOf("app"), got.Metadata.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"10.4.0.1/32"}, got.Spec.Nets); diff != "" {
		t.Errorf("nets (-want +got):\n%s", diff)
	}
	var annotation map[string]any
	if err := json.Unmarshal([]byte(got.Metadata.Annotations[metadataAnnotation]), &annotation); err != nil {
		t.Fatal(err)
	}
	labels := map[string]any{"team": "a"}
	for k, v := range labelsOf("app") {
		labels[k] = v
	}
	want := map[string]any{"uid": "x", "creationTimestamp": "2021-04-09T15:04:43Z", "labels": labels}
	if diff := cmp.Diff(want, annotation); diff != "" {
		t.Errorf("annotation (-want +got):\n%s", diff)
	}
}

func TestAnEmptySetIsWrittenAsAnEmptyList(t *testing.T) {
	have := ours("gcp-ns-app", gcp("app"), "10.4.0.1")
	patch, err := domain().patch(have, &Object{Name: have.Name, Identity: gcp("app")}, false, "")
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]map[string]json.RawMessage
	if err := json.Unmarshal(patch, &got); err != nil {
		t.Fatal(err)
	}
	// Null would ask to remove the field, which comes to the same but is not
	// what a reader expects.
	if string(got["spec"]["nets"]) != "[]" {
		t.Errorf("nets %s, want []", got["spec"]["nets"])
	}
}

func TestNewVersionOfAForeignObjectIsNoChange(t *testing.T) {
	a, b := foreign("x"), foreign("x")
	a.ResourceVersion, b.ResourceVersion = "1", "2"
	if !a.equal(b) {
		t.Error("a new version of a foreign object counts as a change")
	}
	c := ours("x", gcp("x"), "10.4.0.1")
	if a.equal(c) || c.equal(a) {
		t.Error("a change of owner doesn't count")
	}
}

func FuzzObserve(f *testing.F) {
	f.Add("app", `{"labels":{"managed-by":"semaphore-policy"}}`, "10.4.0.1/32", "fd00::1/128")
	f.Add("", `{"labels":null}`, "10.4.0.1/33", "")
	f.Add("\x00", `[]`, "::ffff:10.0.0.1/128", "10.4.0.01/32")
	f.Fuzz(func(t *testing.T, name, annotation, net1, net2 string) {
		o := domain().observe(networkSet(labelsOf(name), annotation, net1, net2))
		want := Object{Name: o.Name, Identity: o.Identity, Addrs: o.Addrs}
		patch, err := domain().patch(&o, &want, false, "")
		if err != nil {
			t.Fatal(err)
		}
		if o.Exact && len(nets(o.Addrs)) != 2 {
			t.Fatalf("%q, %q count as %v", net1, net2, o.Addrs)
		}
		if !json.Valid(patch) {
			t.Fatalf("patch %q is no JSON", patch)
		}
	})
}
