package mirror

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// newBounded returns a world in which aws is bounded.
func newBounded(b Bounds) *world {
	clusters := testClusters()
	clusters[1].bounds = b
	return newWorld(clusters...)
}

func wantLeads(t *testing.T, w *world, service string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, w.leads(service)); diff != "" {
		t.Errorf("%s leads to (-want +got):\n%s", service, diff)
	}
}

// TestExistingServicesKeepTheirQuotaOverARestart creates a service while no process runs.
// It sorts before the existing service, but doesn't get its quota.
func TestExistingServicesKeepTheirQuotaOverARestart(t *testing.T) {
	aws := setID{"aws", mirrored}
	early, late := Key{"a", "n"}, Key{"b", "n"}
	for name, bounds := range map[string]Bounds{"addresses": {Addresses: 3}, "slices": {Slices: 1}} {
		t.Run(name, func(t *testing.T) {
			w := newBounded(bounds)
			w.has(aws, late, "s", "10.4.0.1", "10.4.0.2", "10.4.0.3")
			w.says(t, aws, newOrigin(late, 1, 80, Traits{}))
			w.has(aws, early, "s", "10.4.0.4", "10.4.0.5", "10.4.0.6")
			w.hears(aws, newOrigin(early, 1, 80, Traits{}), newOrigin(late, 1, 80, Traits{}))
			w.again()
			w.settle(t)
			wantLeads(t, w, Name("c1", late), "10.4.0.1", "10.4.0.2", "10.4.0.3")
			wantLeads(t, w, Name("c1", early))
		})
	}
}

// TestMirrorOfTheOriginalToolKeepsItsQuota starts with a mirror of the original tool, which
// has no annotation of its origin.
func TestMirrorOfTheOriginalToolKeepsItsQuota(t *testing.T) {
	aws := setID{"aws", mirrored}
	early, late := Key{"a", "n"}, Key{"b", "n"}
	w := newBounded(Bounds{Services: 1})
	w.says(t, aws, newOrigin(late, 1, 80, Traits{}))
	s := w.services[Name("c1", late)].DeepCopy()
	s.Annotations = nil
	w.put(s)
	w.restart(configs(w.Snapshot)...)
	for _, id := range w.order {
		w.contact(id, true, false)
	}
	w.says(t, aws, newOrigin(early, 1, 80, Traits{}), newOrigin(late, 1, 80, Traits{}))
	if len(w.services) != 1 || w.services[Name("c1", late)] == nil {
		t.Errorf("%d services, want the existing one", len(w.services))
	}
}

// TestRenamedMirrorKeepsItsQuota starts with a mirror whose default name is taken.
func TestRenamedMirrorKeepsItsQuota(t *testing.T) {
	aws, merit := setID{"aws", mirrored}, setID{"merit", mirrored}
	early, renamed := newOrigin(Key{"a", "n"}, 1, 80, Traits{}), newOrigin(Key{"x-y", "n"}, 1, 80, Traits{})
	w := newBounded(Bounds{Services: 1})
	w.says(t, merit, newOrigin(Key{"y", "n"}, 1, 80, Traits{}))
	w.says(t, aws, renamed)
	name := w.memo.byOrigin[ID{"aws", renamed.Key}].Name
	if name == Name("c1", renamed.Key) {
		t.Fatal("it has the name that it would have")
	}
	w.hears(aws, early, renamed)
	w.again()
	w.settle(t)
	if len(w.services) != 2 || w.services[name] == nil {
		t.Errorf("%d services, want the two existing ones", len(w.services))
	}
}

// TestExistingSliceKeepsItsQuota adds slices to a service at its quota, with names before
// and after that of the existing slice.
func TestExistingSliceKeepsItsQuota(t *testing.T) {
	aws, web := setID{"aws", mirrored}, Key{"b", "n"}
	w := newBounded(Bounds{Slices: 1})
	w.has(aws, web, "there", "10.4.0.1")
	w.says(t, aws, newOrigin(web, 1, 80, Traits{}))
	for i := range 8 {
		w.has(aws, web, fmt.Sprint("other-", i), fmt.Sprintf("10.4.0.%d", i+2))
	}
	w.settle(t)
	wantLeads(t, w, Name("c1", web), "10.4.0.1")
	w.again()
	w.settle(t)
	wantLeads(t, w, Name("c1", web), "10.4.0.1")
}

// TestDeletedServiceIsNotCountedAsOmitted deletes a service that exceeded the quota.
func TestDeletedServiceIsNotCountedAsOmitted(t *testing.T) {
	aws := setID{"aws", mirrored}
	first, second := newOrigin(Key{"a", "n"}, 1, 80, Traits{}), newOrigin(Key{"b", "n"}, 1, 80, Traits{})
	for name, bounds := range map[string]Bounds{"services": {Services: 1}, "slices": {Slices: 1}, "addresses": {Addresses: 1}} {
		t.Run(name, func(t *testing.T) {
			w := newBounded(bounds)
			w.has(aws, first.Key, "s", "10.4.0.1")
			w.says(t, aws, first)
			w.has(aws, second.Key, "s", "10.4.0.2")
			w.says(t, aws, first, second)
			if n := w.memo.quotas["aws"].missing(); n != 1 {
				t.Errorf("%d services are omitted, want the one beyond the quota", n)
			}
			w.says(t, aws, first)
			if n := w.memo.quotas["aws"].missing(); n != 0 {
				t.Errorf("%d services are omitted after its deletion", n)
			}
			wantLeads(t, w, Name("c1", first.Key), "10.4.0.1")
		})
	}
}

// TestQuotaOfARemovedAddressIsUsed removes one address of a slice.
func TestQuotaOfARemovedAddressIsUsed(t *testing.T) {
	aws := setID{"aws", mirrored}
	first, second := Key{"a", "n"}, Key{"b", "n"}
	w := newBounded(Bounds{Addresses: 3})
	w.has(aws, first, "s", "10.4.0.1", "10.4.0.2", "10.4.0.3")
	w.says(t, aws, newOrigin(first, 1, 80, Traits{}))
	w.has(aws, second, "s", "10.4.0.4", "10.4.0.5")
	w.says(t, aws, newOrigin(first, 1, 80, Traits{}), newOrigin(second, 1, 80, Traits{}))
	wantLeads(t, w, Name("c1", second))
	w.has(aws, first, "s", "10.4.0.1", "10.4.0.3")
	w.settle(t)
	wantLeads(t, w, Name("c1", second), "10.4.0.4")
}

// TestSliceBeyondTheAddressQuotaIsRetained adds an address beyond the quota to an empty
// slice.
func TestSliceBeyondTheAddressQuotaIsRetained(t *testing.T) {
	aws := setID{"aws", mirrored}
	first, second := Key{"a", "n"}, Key{"b", "n"}
	w := newBounded(Bounds{Addresses: 1})
	w.has(aws, first, "s")
	w.has(aws, second, "s", "10.4.0.1")
	w.says(t, aws, newOrigin(first, 1, 80, Traits{}), newOrigin(second, 1, 80, Traits{}))
	w.has(aws, first, "s", "10.4.0.2")
	w.settle(t)
	wantLeads(t, w, Name("c1", first))
	if len(w.slices) != 2 {
		t.Errorf("%d slices, want the empty one as well", len(w.slices))
	}
}

// TestSliceIsWrittenWhenItsPortsChange changes only the ports of a slice.
func TestSliceIsWrittenWhenItsPortsChange(t *testing.T) {
	aws, web := setID{"aws", mirrored}, Key{"b", "n"}
	w := newWorld()
	w.has(aws, web, "s", "10.4.0.1")
	w.says(t, aws, newOrigin(web, 1, 80, Traits{}))
	before := w.sets[aws].slices[web]["s"]
	for port := range int32(2) {
		after := *before
		number := 8080 + port
		after.Ports = []discoveryv1.EndpointPort{{Port: &number}}
		w.slice(aws, before, &after)
		w.settle(t)
		for name, s := range w.slices {
			if len(s.Ports) != 1 || *s.Ports[0].Port != number {
				t.Errorf("%s has the ports %v, want %d", name, s.Ports, number)
			}
		}
		before = &after
	}
}
