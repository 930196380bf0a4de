package policy

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
)

func TestObjectsAreNamedAsInTheDocuments(t *testing.T) {
	id := Identity{Cluster: "gcp", Namespace: "sys-log", Name: "forwarder"}
	for shard, want := range map[int]string{1: "gcp-sys-log-forwarder", 2: "gcp-sys-log-forwarder-2", 3: "gcp-sys-log-forwarder-3"} {
		if got := id.candidate(shard, 0); got != want {
			t.Errorf("shard %d: %q, want %q", shard, got, want)
		}
	}
}

func TestLabelValuesThatAreNoObjectNamesGetAHash(t *testing.T) {
	long := strings.Repeat("x", 63)
	for _, name := range []string{"Forwarder", "under_score", "a..b", "a.-b", "A_b.C"} {
		id := Identity{Cluster: "gcp", Namespace: "ns", Name: name}
		got := id.candidate(1, 0)
		if faults := validation.IsDNS1123Subdomain(got); len(faults) > 0 {
			t.Errorf("%q becomes %q: %v", name, got, faults)
		}
		if got == id.Natural(1) || id.isNatural(got) {
			t.Errorf("%q: name %q is taken for the natural one", name, got)
		}
		lower := Identity{Cluster: "gcp", Namespace: "ns", Name: strings.ToLower(name)}
		if lower != id && lower.candidate(1, 0) == got {
			t.Errorf("%q and %q share the name %q", name, lower.Name, got)
		}
	}
	id := Identity{Cluster: long, Namespace: long, Name: long}
	for try := range maxCandidates {
		if faults := validation.IsDNS1123Subdomain(id.candidate(99, try)); len(faults) > 0 {
			t.Errorf("try %d: %v", try, faults)
		}
	}
}

// TestNoNaturalNameEndsLikeOneWithAHash: an attacker in a namespace shop would take all names of a set of
// shop-prod.
func TestNoNaturalNameEndsLikeOneWithAHash(t *testing.T) {
	victim := Identity{Cluster: "gcp", Namespace: "shop-prod", Name: "cart"}
	taken := 0
	for try := range maxCandidates {
		name := victim.candidate(1, try)
		attacker := Identity{Cluster: "gcp", Namespace: "shop", Name: strings.TrimPrefix(name, "gcp-shop-")}
		for try := range maxCandidates {
			if attacker.candidate(1, try) == name {
				taken++
			}
		}
	}
	if taken != 1 {
		t.Errorf("%d names are taken, want the natural one", taken)
	}
}

func TestCandidatesDiffer(t *testing.T) {
	seen := map[string]string{}
	// These have one natural name.
	for _, id := range []Identity{
		{Cluster: "c", Namespace: "a-b", Name: "c"},
		{Cluster: "c", Namespace: "a", Name: "b-c"},
		{Cluster: "c-a", Namespace: "b", Name: "c"},
	} {
		if id.Natural(1) != "c-a-b-c" {
			t.Fatalf("natural name %q", id.Natural(1))
		}
		for shard := 1; shard < 4; shard++ {
			for try := 1; try < maxCandidates; try++ {
				name := id.candidate(shard, try)
				if other, taken := seen[name]; taken {
					t.Errorf("%v and %s share %q", id, other, name)
				}
				seen[name] = id.String()
				if got := id.shardOf(name, 4); got != shard {
					t.Errorf("%q of %v is shard %d, want %d", name, id, got, shard)
				}
			}
		}
	}
}

func TestShardOfForeignNamesIsNone(t *testing.T) {
	id := Identity{Cluster: "gcp", Namespace: "ns", Name: "app"}
	for _, name := range []string{"", "app", "gcp-ns-app-9", "gcp-ns-app-0123456789"} {
		if got := id.shardOf(name, 3); got != 0 {
			t.Errorf("%q is shard %d, want none", name, got)
		}
	}
	for name, want := range map[string]bool{"gcp-ns-app": true, "gcp-ns-app-12": true, "gcp-ns-app-1": false, "gcp-ns-app-02": false, "gcp-ns-app-x": false, "gcp-ns-ap": false} {
		if got := id.isNatural(name); got != want {
			t.Errorf("isNatural(%q) = %v, want %v", name, got, want)
		}
	}
}

func FuzzCandidate(f *testing.F) {
	f.Add("gcp", "sys-log", "forwarder", 1)
	f.Add("gcp", "sys-log", "Ünïcode_.", 7)
	f.Add("c", "", "", 0)
	f.Fuzz(func(t *testing.T, cluster, namespace, name string, shard int) {
		id := Identity{Cluster: cluster, Namespace: namespace, Name: name}
		if len(validation.IsDNS1123Label(cluster)) > 0 {
			t.Skip("a configured name is a label")
		}
		for try := range maxCandidates {
			got := id.candidate(shard, try)
			if faults := validation.IsDNS1123Subdomain(got); len(faults) > 0 {
				t.Fatalf("%+v: %q: %v", id, got, faults)
			}
		}
	})
}
