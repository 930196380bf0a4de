package mirror

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-semaphore/kube-semaphore/internal/status"
)

// TestMirrorOfARenamedRemoteIsHeld renames a remote, whose prefix then belongs to a remote
// without that service. The mirror is removed only after the removal grace.
func TestMirrorOfARenamedRemoteIsHeld(t *testing.T) {
	web := Key{"shop", "web"}
	w := newWorld(clusterConfig{name: "gcp", local: true}, clusterConfig{name: "old", prefix: "c1"})
	w.says(t, setID{"old", mirrored}, newOrigin(web, 1, 80, Traits{}))
	w.restart(testClusters()...)
	w.setRemoveAt(time.Unix(1e9, 0))
	for _, id := range w.order {
		w.contact(id, true, false)
	}
	w.settle(t)
	if w.services[Name("c1", web)] == nil {
		t.Error("the mirror was removed before the end of the grace period")
	}
	w.setRemoveAt(time.Time{})
	w.settle(t)
	if len(w.services) > 0 {
		t.Error("the mirror was not removed after the grace period")
	}
}

// TestSlicesWithoutAClusterAreRetained starts with slices of an earlier version, without
// the annotation of their cluster.
func TestSlicesWithoutAClusterAreRetained(t *testing.T) {
	aws, merit, web := setID{"aws", merged}, setID{"merit", merged}, Key{"shop", "web"}
	w := newWorld()
	w.has(aws, web, "s", "10.4.0.1")
	w.has(merit, web, "s", "10.6.0.1")
	w.says(t, aws, newOrigin(web, 1, 80, Traits{}))
	w.says(t, merit, newOrigin(web, 1, 80, Traits{}))
	for _, s := range w.slices {
		if s.Endpoints[0].Addresses[0] == "10.6.0.1" {
			s = s.DeepCopy()
			delete(s.Annotations, annotCluster)
			w.putSlice(s)
		}
	}
	w.again()
	w.contact(merit, false, false)
	w.settle(t)
	wantLeads(t, w, GlobalName(web), "10.4.0.1", "10.6.0.1")
	w.contact(merit, true, false)
	w.settle(t)
	wantLeads(t, w, GlobalName(web), "10.4.0.1", "10.6.0.1")
	w.says(t, merit)
	wantLeads(t, w, GlobalName(web), "10.4.0.1")
}

// TestSlicesOfARemovedRemoteAreRetainedWithoutTheirService removes a remote from the
// configuration and deletes the Service of its mirror. The slices are removed only after
// the removal grace.
func TestSlicesOfARemovedRemoteAreRetainedWithoutTheirService(t *testing.T) {
	merit, web := setID{"merit", mirrored}, Key{"shop", "web"}
	w := newWorld()
	w.has(merit, web, "s", "10.6.0.1")
	w.says(t, merit, newOrigin(web, 1, 80, Traits{}))
	w.restart(testClusters()[:2]...)
	w.setRemoveAt(time.Unix(1e9, 0))
	for _, id := range w.order {
		w.contact(id, true, false)
	}
	clear(w.services)
	w.show()
	w.settle(t)
	wantLeads(t, w, Name("c1-x", web), "10.6.0.1")
	w.setRemoveAt(time.Time{})
	w.settle(t)
	wantLeads(t, w, Name("c1-x", web))
}

// TestSlicesOfUnknownOriginAreRetainedUntilAllRemotesAreSynced starts with a slice that has
// no cluster annotation and no Service.
func TestSlicesOfUnknownOriginAreRetainedUntilAllRemotesAreSynced(t *testing.T) {
	aws, web := setID{"aws", mirrored}, Key{"shop", "web"}
	w := newWorld()
	w.has(aws, web, "s", "10.4.0.1")
	w.says(t, aws, newOrigin(web, 1, 80, Traits{}))
	for _, s := range w.slices {
		s = s.DeepCopy()
		delete(s.Annotations, annotCluster)
		w.putSlice(s)
	}
	clear(w.services)
	w.restart(testClusters()...)
	for _, id := range w.order {
		w.settle(t)
		wantLeads(t, w, Name("c1", web), "10.4.0.1")
		w.contact(id, true, false)
	}
	w.settle(t)
	wantLeads(t, w, Name("c1", web))
}

// TestRememberedOriginsOfAStaleRemoteAreOmitted makes a remote stale that had no contact
// since start.
func TestRememberedOriginsOfAStaleRemoteAreOmitted(t *testing.T) {
	aws, merit, web := setID{"aws", merged}, setID{"merit", merged}, Key{"shop", "web"}
	w := newWorld()
	w.has(aws, web, "s", "10.4.0.1")
	w.says(t, aws, newOrigin(web, 1, 80, Traits{}))
	w.has(merit, web, "s", "10.6.0.1")
	w.says(t, merit, newOrigin(web, 1, 80, Traits{}))
	w.restart(testClusters()...)
	w.has(merit, web, "s", "10.6.0.1")
	w.says(t, merit, newOrigin(web, 1, 80, Traits{}))
	wantLeads(t, w, GlobalName(web), "10.4.0.1", "10.6.0.1")
	w.contact(aws, false, true)
	w.settle(t)
	wantLeads(t, w, GlobalName(web), "10.6.0.1")
	w.contact(aws, false, false)
	w.settle(t)
	wantLeads(t, w, GlobalName(web), "10.6.0.1")
}

// TestANameIsRetainedWhileItsServiceIsRecreated deletes a service that shares its preferred
// name with the service of another remote.
func TestANameIsRetainedWhileItsServiceIsRecreated(t *testing.T) {
	aws, merit := setID{"aws", mirrored}, setID{"merit", mirrored}
	first, second := Key{"x-y", "n"}, Key{"y", "n"}
	name := Name("c1", first)
	w := newWorld()
	w.says(t, aws, newOrigin(first, 1, 80, Traits{}))
	w.says(t, merit, newOrigin(second, 1, 80, Traits{}))
	delete(w.services, name)
	w.show()
	w.settle(t)
	if s := w.memo.services[name]; len(w.services) != 2 || s == nil || s.Origin != (ID{"aws", first}) {
		t.Errorf("%d services, and %s is that of %v", len(w.services), name, s)
	}
}

// TestStaleRemoteIsUsedWhileOthersAreNotReady uses a stale remote while the endpoints of
// the other remote are not ready, or rejected.
func TestStaleRemoteIsUsedWhileOthersAreNotReady(t *testing.T) {
	aws, merit, web := setID{"aws", merged}, setID{"merit", merged}, Key{"shop", "web"}
	w := newWorld()
	w.has(merit, web, "s", "10.6.0.1")
	w.says(t, merit, newOrigin(web, 1, 80, Traits{}))
	w.says(t, aws, newOrigin(web, 1, 80, Traits{}))
	w.contact(merit, true, true)
	unready := &OriginSlice{Name: "s", Service: web, Family: discoveryv1.AddressTypeIPv4, Endpoints: []Endpoint{
		{Address: netip.MustParseAddr("10.4.0.1"), Ready: False},
	}}
	w.slice(aws, nil, unready)
	w.settle(t)
	wantLeads(t, w, GlobalName(web), "10.4.0.1", "10.6.0.1")
	w.slice(aws, unready, nil)
	w.has(aws, web, "t", "192.0.2.1") // none of its subnets has that
	w.settle(t)
	wantLeads(t, w, GlobalName(web), "10.6.0.1")
	w.has(aws, web, "u", "10.4.0.2")
	w.settle(t)
	wantLeads(t, w, GlobalName(web), "10.4.0.2")
}

// TestRecreatedGlobalServiceKeepsItsType deletes a global service whose older origins are
// headless, although it isn't.
func TestRecreatedGlobalServiceKeepsItsType(t *testing.T) {
	aws, merit, web := setID{"aws", merged}, setID{"merit", merged}, Key{"shop", "web"}
	w := newWorld()
	w.says(t, merit, newOrigin(web, 2000, 80, Traits{}))
	w.says(t, setID{"gcp", merged}, newOrigin(web, 1000, 80, Traits{Headless: true}))
	w.says(t, aws, newOrigin(web, 1, 80, Traits{Headless: true}))
	clear(w.services)
	w.show()
	w.settle(t)
	if s := w.services[GlobalName(web)]; s == nil || s.Spec.ClusterIP == corev1.ClusterIPNone {
		t.Errorf("it is %v, want one with an address", s)
	}
}

// TestAcceptedOrderCountsBeforeItIsWritten adds a remote with an early creation time before
// the accepted order of an earlier remote has been written.
func TestAcceptedOrderCountsBeforeItIsWritten(t *testing.T) {
	web := Key{"shop", "web"}
	w := newWorld(append(testClusters(), clusterConfig{name: "late", prefix: "c3"})...)
	w.says(t, setID{"merit", merged}, newOrigin(web, 2000, 80, Traits{}))
	w.hears(setID{"aws", merged}, newOrigin(web, 3000, 80, Traits{}))
	Desired(w.Snapshot, w.memo)
	w.seen()
	w.says(t, setID{"late", merged}, newOrigin(web, 1, 80, Traits{}))
	if got, want := w.services[GlobalName(web)].Annotations[annotAccepted], "merit,aws,late"; got != want {
		t.Errorf("accepted are %s, want %s", got, want)
	}
}

// without restarts without a remote, whose grace is not over.
func (w *world) without(remote string) {
	before := w.Snapshot
	var clusters []clusterConfig
	for _, c := range configs(before) {
		if c.name != remote {
			clusters = append(clusters, c)
		}
	}
	w.restart(clusters...)
	w.setRemoveAt(time.Unix(1e9, 0))
}

// TestRemovedRemotesEndpointsAreUsedLast removes a remote from the configuration.
func TestRemovedRemotesEndpointsAreUsedLast(t *testing.T) {
	aws, merit := setID{"aws", merged}, setID{"merit", merged}
	both, only := Key{"shop", "web"}, Key{"shop", "only"}
	sync := func(w *world, all bool) {
		w.contact(setID{"gcp", merged}, true, false)
		if !all {
			return
		}
		w.has(aws, both, "s", "10.4.0.1")
		w.hears(aws, newOrigin(both, 1, 80, Traits{}))
		w.contact(setID{"aws", mirrored}, true, false)
	}
	for _, c := range []struct {
		name     string
		departed bool
		then     func(w *world)
		// addresses of both services, and of the mirror
		both, only, mirror []string
		former             []status.FormerCluster
	}{
		{"nothing else is synced yet", false, func(w *world) { sync(w, false) }, []string{"10.4.0.1", "10.6.0.1"}, []string{"10.6.0.2"}, []string{"10.6.0.3"}, []status.FormerCluster{{Name: "merit", Services: 1, Slices: 3}}},
		{"another cluster is ready", false, func(w *world) { sync(w, true) }, []string{"10.4.0.1"}, []string{"10.6.0.2"}, []string{"10.6.0.3"}, []status.FormerCluster{{Name: "merit", Services: 1, Slices: 2}}},
		{"the grace is over", false, func(w *world) { sync(w, true); w.setRemoveAt(time.Time{}) }, []string{"10.4.0.1"}, nil, nil, nil},
		{"it departed", true, func(w *world) { sync(w, true) }, []string{"10.4.0.1"}, nil, nil, nil},
		{"it departed, and nothing else is synced yet", true, func(w *world) { sync(w, false) }, []string{"10.4.0.1"}, nil, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld()
			w.has(aws, both, "s", "10.4.0.1")
			w.says(t, aws, newOrigin(both, 1, 80, Traits{}))
			w.has(merit, both, "s", "10.6.0.1")
			w.has(merit, only, "o", "10.6.0.2")
			w.says(t, merit, newOrigin(both, 1, 80, Traits{}), newOrigin(only, 1, 80, Traits{}))
			w.has(setID{"merit", mirrored}, both, "s", "10.6.0.3")
			w.says(t, setID{"merit", mirrored}, newOrigin(both, 1, 80, Traits{}))
			w.without("merit")
			w.departed["merit"] = c.departed
			c.then(w)
			w.settle(t)
			wantLeads(t, w, GlobalName(both), c.both...)
			wantLeads(t, w, GlobalName(only), c.only...)
			wantLeads(t, w, Name("c1-x", both), c.mirror...)
			held := w.survey.services[GlobalName(both)].status
			if (held.Held != "" && held.RemovedAt != nil) != (c.former != nil) {
				t.Errorf("held %q, removed at %v", held.Held, held.RemovedAt)
			}
			got := (&Controller{snapshot: w.Snapshot}).former()
			for i := range got {
				if !got[i].RemovedAt.Equal(w.removeAt) {
					t.Errorf("removed at %v", got[i].RemovedAt)
				}
				got[i].RemovedAt = nil
			}
			if diff := cmp.Diff(c.former, got); diff != "" {
				t.Errorf("former clusters (-want +got):\n%s", diff)
			}
			if _, exists := w.services[GlobalName(only)]; exists != (c.only != nil) {
				t.Errorf("a service of merit alone exists: %v", exists)
			}
			if c.departed && w.services[GlobalName(both)].Annotations[annotClusters] != "aws" {
				t.Errorf("clusters %s", w.services[GlobalName(both)].Annotations[annotClusters])
			}
		})
	}
}
