package policy

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func names(changes []Change) map[string]string {
	kinds := map[string]string{}
	for _, c := range changes {
		switch {
		case c.Have == nil:
			kinds[c.Name] = "create"
		case c.Want == nil:
			kinds[c.Name] = "delete"
		default:
			kinds[c.Name] = "patch"
		}
	}
	return kinds
}

func TestDiffTouchesOnlyWhatDiffers(t *testing.T) {
	drifted := ours("gcp-ns-drifted", gcp("drifted"), "10.4.0.3")
	drifted.Exact = false
	have := byName(
		ours("gcp-ns-same", gcp("same"), "10.4.0.1"),
		ours("gcp-ns-grows", gcp("grows"), "10.4.0.2"),
		ours("gcp-ns-gone", gcp("gone"), "10.4.0.9"),
		drifted,
		foreign("gcp-ns-foreign"),
		ours("aws-ns-app", Identity{"aws", "ns", "app"}, "10.2.0.1"),
	)
	want := []Object{
		{Name: "gcp-ns-same", Identity: gcp("same"), Addrs: addrs("10.4.0.1")},
		{Name: "gcp-ns-grows", Identity: gcp("grows"), Addrs: addrs("10.4.0.2", "10.4.0.4")},
		{Name: "gcp-ns-drifted", Identity: gcp("drifted"), Addrs: addrs("10.4.0.3")},
		{Name: "gcp-ns-new", Identity: gcp("new"), Addrs: addrs("10.4.0.5")},
	}
	got := names(Diff("gcp", have, want))
	if diff := cmp.Diff(map[string]string{
		"gcp-ns-grows": "patch", "gcp-ns-drifted": "patch", "gcp-ns-new": "create", "gcp-ns-gone": "delete",
	}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestARelabelledPodIsAddedBeforeItIsRemoved(t *testing.T) {
	have := byName(ours("gcp-ns-a", gcp("a"), "10.4.0.1", "10.4.0.2"), ours("gcp-ns-b", gcp("b"), "10.4.0.3"))
	want := []Object{
		{Name: "gcp-ns-a", Identity: gcp("a"), Addrs: addrs("10.4.0.2")},
		{Name: "gcp-ns-b", Identity: gcp("b"), Addrs: addrs("10.4.0.1", "10.4.0.3")},
	}
	never := func(Held) bool { return false }
	eased, held := Ease("gcp", have, want, never)
	if diff := cmp.Diff([]Held{{Object: "gcp-ns-a", Addr: addr("10.4.0.1")}}, held, compareAddrs); diff != "" {
		t.Errorf("held (-want +got):\n%s", diff)
	}
	changes := Diff("gcp", have, eased)
	if diff := cmp.Diff(map[string]string{"gcp-ns-b": "patch"}, names(changes)); diff != "" {
		t.Fatalf("first step (-want +got):\n%s", diff)
	}
	have = apply(have, changes)
	eased, held = Ease("gcp", have, want, never)
	changes = Diff("gcp", have, eased)
	if diff := cmp.Diff(map[string]string{"gcp-ns-a": "patch"}, names(changes)); diff != "" || len(held) > 0 {
		t.Errorf("second step, holding %v (-want +got):\n%s", held, diff)
	}
}

func TestARelabelledPodThatWasAloneKeepsItsOldSetUntilTheNewOneIsThere(t *testing.T) {
	have := byName(ours("gcp-ns-a", gcp("a"), "10.4.0.1", "10.4.0.9"))
	want := []Object{{Name: "gcp-ns-b", Identity: gcp("b"), Addrs: addrs("10.4.0.1")}}
	eased, _ := Ease("gcp", have, want, func(Held) bool { return false })
	changes := Diff("gcp", have, eased)
	if diff := cmp.Diff(map[string]string{"gcp-ns-a": "patch", "gcp-ns-b": "create"}, names(changes)); diff != "" {
		t.Fatalf("(-want +got):\n%s", diff)
	}
	// What doesn't move leaves at once.
	if diff := cmp.Diff(addrs("10.4.0.1"), changes[0].Want.Addrs, compareAddrs); diff != "" {
		t.Errorf("old set in between (-want +got):\n%s", diff)
	}
}

func TestAnAddressIsNotHeldForEver(t *testing.T) {
	have := byName(ours("gcp-ns-a", gcp("a"), "10.4.0.1"))
	want := []Object{{Name: "gcp-ns-b", Identity: gcp("b"), Addrs: addrs("10.4.0.1")}}
	eased, held := Ease("gcp", have, want, func(Held) bool { return true })
	if diff := cmp.Diff(want, eased, compareAddrs); diff != "" || len(held) > 0 {
		t.Errorf("holding %v (-want +got):\n%s", held, diff)
	}
}
