package mirror

import (
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// TestAMirrorOfARenamedRemoteIsHeld has another remote have the prefix of one that is no
// longer configured, and no such service.
func TestAMirrorOfARenamedRemoteIsHeld(t *testing.T) {
	web := Key{"shop", "web"}
	w := newWorld(clusterConfig{name: "gcp", local: true}, clusterConfig{name: "old", prefix: "c1"})
	w.says(t, setID{"old", mirrored}, newOrigin(web, 1, 80, Traits{}))
	w.restart(testClusters()...)
	w.linger(time.Unix(1e9, 0))
	for _, id := range w.order {
		w.contact(id, true, false)
	}
	w.settle(t)
	if w.services[Name("c1", web)] == nil {
		t.Error("it is gone before its time")
	}
	w.linger(time.Time{})
	w.settle(t)
	if len(w.services) > 0 {
		t.Error("it stays for ever")
	}
}

// TestSlicesThatSayNoClusterAreKept starts where a version left slices that don't say
// where they are from.
func TestSlicesThatSayNoClusterAreKept(t *testing.T) {
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

// TestSlicesOfARemovedRemoteLingerWithoutTheirService deletes the service.
func TestSlicesOfARemovedRemoteLingerWithoutTheirService(t *testing.T) {
	merit, web := setID{"merit", mirrored}, Key{"shop", "web"}
	w := newWorld()
	w.has(merit, web, "s", "10.6.0.1")
	w.says(t, merit, newOrigin(web, 1, 80, Traits{}))
	w.restart(testClusters()[:2]...)
	w.linger(time.Unix(1e9, 0))
	for _, id := range w.order {
		w.contact(id, true, false)
	}
	clear(w.services)
	w.show()
	w.settle(t)
	wantLeads(t, w, Name("c1-x", web), "10.6.0.1")
	w.linger(time.Time{})
	w.settle(t)
	wantLeads(t, w, Name("c1-x", web))
}

// TestSlicesThatSayNothingAreKeptUntilAllWereHeardOf has neither a service nor a cluster
// say what a slice is for.
func TestSlicesThatSayNothingAreKeptUntilAllWereHeardOf(t *testing.T) {
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

// TestWhatIsRememberedOfAStaleRemoteDoesntCount has one be stale that wasn't heard of
// since start.
func TestWhatIsRememberedOfAStaleRemoteDoesntCount(t *testing.T) {
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

// TestANameIsRetainedWhileItsServiceIsRecreated deletes a service whose
// name another one would get if both were new.
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

// TestAStaleRemoteIsUsedWhileNoOtherOneIsReady has others have endpoints that take no
// requests, or that aren't accepted.
func TestAStaleRemoteIsUsedWhileNoOtherOneIsReady(t *testing.T) {
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

// TestAGlobalServiceIsRecreatedAsItWas deletes it while an older origin
// is of another kind.
func TestAGlobalServiceIsRecreatedAsItWas(t *testing.T) {
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

// TestWhoWasAcceptedIsBeforeItIsWritten has a remote join with an early date while what
// was decided of another one isn't written yet.
func TestWhoWasAcceptedIsBeforeItIsWritten(t *testing.T) {
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
