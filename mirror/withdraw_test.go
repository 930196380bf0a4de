package mirror

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/internal/pathreport"
)

// hasOn adds a slice of an origin, with endpoints like "10.4.0.1@a1".
func (w *world) hasOn(id setID, of Key, name string, endpoints ...string) {
	sl := &OriginSlice{Name: name, Service: of, Family: discoveryv1.AddressTypeIPv4}
	for _, e := range endpoints {
		address, node, _ := strings.Cut(e, "@")
		sl.Endpoints = append(sl.Endpoints, Endpoint{Address: netip.MustParseAddr(address), Node: node, Ready: True})
	}
	w.slice(id, w.sets[id].slices[of][name], sl)
}

// served returns the addresses that a local service sends requests to, sorted.
func (w *world) served(service string) string {
	all := []string{}
	for _, s := range w.slices {
		if s.Labels[discoveryv1.LabelServiceName] != service {
			continue
		}
		for i := range s.Endpoints {
			c := s.Endpoints[i].Conditions
			if c.Ready == nil || *c.Ready {
				all = append(all, s.Endpoints[i].Addresses...)
			} else if c.Serving == nil || *c.Serving {
				all = append(all, "serving "+s.Endpoints[i].Addresses[0])
			}
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// hinted reports whether endpoints of a local service have hints for a zone of a node.
func (w *world) hinted(service string) bool {
	for _, s := range w.slices {
		for i := range s.Endpoints {
			h := s.Endpoints[i].Hints
			if s.Labels[discoveryv1.LabelServiceName] == service && h != nil && h.ForZones[0].Name != remoteZone {
				return true
			}
		}
	}
	return false
}

// reports makes local nodes report which nodes of aws are down; none: they report nothing.
func (w *world) reports(t *testing.T, by int, nodes ...string) {
	t.Helper()
	for i := range 3 {
		node := fmt.Sprintf("local-%d", i)
		w.paths.SetNode(node, true)
		var r *pathreport.Report
		if i < by && len(nodes) > 0 {
			r = down(node, nodes...)
		}
		w.paths.Report(node, r, w.clock)
	}
	w.judge(w.clock, nil)
	w.settle(t)
}

func TestEndpointsOfNodesThatAreDown(t *testing.T) {
	w, k := newWorld(), Key{"shop", "web"}
	mirrors, globals := setID{"aws", mirrored}, setID{"aws", merged}
	o := newOrigin(k, 1, 80, Traits{})
	for _, id := range []setID{mirrors, globals} {
		w.says(t, id, o)
		w.hasOn(id, k, "web-1", "10.4.0.1@a1", "10.4.0.2@a2", "10.4.0.3")
	}
	own := setID{"gcp", merged}
	w.says(t, own, o)
	w.hasOn(own, k, "web-1", "10.0.0.1@a1") // a local node has the same name
	mirror, global := Name("c1", k), GlobalName(k)
	for _, c := range []struct {
		name           string
		by             int
		down           []string
		mirror, global string
	}{
		{"no reports", 0, nil, "10.4.0.1 10.4.0.2 10.4.0.3", "10.0.0.1 10.4.0.1 10.4.0.2 10.4.0.3"},
		{"one of three", 1, []string{"a1", "a2"}, "10.4.0.1 10.4.0.2 10.4.0.3", "10.0.0.1 10.4.0.1 10.4.0.2 10.4.0.3"},
		{"two of three, of one node", 2, []string{"a1"}, "10.4.0.2 10.4.0.3", "10.0.0.1 10.4.0.2 10.4.0.3"},
		{"of both", 3, []string{"a1", "a2"}, "10.4.0.3", "10.0.0.1 10.4.0.3"},
		{"of one again", 3, []string{"a2"}, "10.4.0.1 10.4.0.3", "10.0.0.1 10.4.0.1 10.4.0.3"},
		{"of none again", 0, nil, "10.4.0.1 10.4.0.2 10.4.0.3", "10.0.0.1 10.4.0.1 10.4.0.2 10.4.0.3"},
	} {
		w.clock = w.clock.Add(3 * time.Minute)
		w.reports(t, c.by, c.down...)
		if got := w.served(mirror); got != c.mirror {
			t.Errorf("%s: the mirror serves %s, want %s", c.name, got, c.mirror)
		}
		if got := w.served(global); got != c.global {
			t.Errorf("%s: the global service serves %s, want %s", c.name, got, c.global)
		}
		// Withdrawn endpoints stay in their slices.
		if got := w.leads(mirror); len(got) != 3 {
			t.Errorf("%s: the mirror leads to %v", c.name, got)
		}
	}
}

// TestRemoteOutOfContactWithdrawsNothing makes a remote stale, with reports of its paths and
// without.
func TestRemoteOutOfContactWithdrawsNothing(t *testing.T) {
	w, k, id := newWorld(), Key{"shop", "web"}, setID{"aws", mirrored}
	w.says(t, id, newOrigin(k, 1, 80, Traits{}))
	w.hasOn(id, k, "web-1", "10.4.0.1@a1", "10.4.0.2@a2")
	w.settle(t)
	w.contact(id, true, true)
	w.reports(t, 0)
	if got := w.served(Name("c1", k)); got != "10.4.0.1 10.4.0.2" {
		t.Errorf("serves %q", got)
	}
	w.reports(t, 3, "a1", "a2")
	if got := w.served(Name("c1", k)); got != "" {
		t.Errorf("serves %q", got)
	}
}

func TestDrainedCluster(t *testing.T) {
	w, k := newWorld(), Key{"shop", "web"}
	for cluster, address := range map[string]string{"gcp": "10.0.0.1", "aws": "10.4.0.1@a1", "merit": "10.6.0.1"} {
		id := setID{cluster, merged}
		w.says(t, id, newOrigin(k, 1, 80, Traits{}))
		w.hasOn(id, k, "web-1", address)
	}
	mirrors := setID{"aws", mirrored}
	w.says(t, mirrors, newOrigin(k, 1, 80, Traits{}))
	w.hasOn(mirrors, k, "web-1", "10.4.0.1@a1")
	serves := func(what, want string) {
		t.Helper()
		w.settle(t)
		if got := w.served(GlobalName(k)); got != want {
			t.Errorf("%s: serves %s, want %s", what, got, want)
		}
		if got := w.served(Name("c1", k)); got != "10.4.0.1" {
			t.Errorf("%s: the mirror serves %q", what, got)
		}
	}
	serves("no cluster is drained", "10.0.0.1 10.4.0.1 10.6.0.1")
	w.drain("aws", true)
	serves("aws is drained", "10.0.0.1 10.6.0.1")
	w.drain("gcp", true)
	serves("the local cluster, too", "10.6.0.1")
	w.drain("merit", true)
	serves("all are", "10.0.0.1 10.4.0.1 10.6.0.1")
	w.drain("merit", false)
	w.drain("gcp", false)
	serves("aws alone again", "10.0.0.1 10.6.0.1")
	w.drain("aws", false)
	serves("no cluster again", "10.0.0.1 10.4.0.1 10.6.0.1")
}

func TestLocalMinimum(t *testing.T) {
	for _, c := range []struct {
		name              string
		setting, label, n int
		want              bool
	}{
		{"the default", 1, 0, 1, true},
		{"none", 1, 0, 0, false},
		{"less than the setting", 2, 0, 1, false},
		{"as many as the setting", 2, 0, 2, true},
		{"as many as the label", 2, 1, 1, true},
		{"less than the label", 1, 3, 2, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, k := newWorld(), Key{"shop", "web"}
			w.localMinimum = c.setting
			for _, cluster := range []string{"gcp", "aws"} {
				o := newOrigin(k, 1, 80, Traits{})
				o.LocalFirst, o.LocalMinimum = true, c.label
				w.says(t, setID{cluster, merged}, o)
			}
			w.hasOn(setID{"aws", merged}, k, "web-1", "10.4.0.1@a1")
			var own []string
			for i := range c.n {
				own = append(own, fmt.Sprintf("10.0.0.%d", i+1))
			}
			w.hasOn(setID{"gcp", merged}, k, "web-1", own...)
			w.settle(t)
			if got := w.hinted(GlobalName(k)); got != c.want {
				t.Errorf("local endpoints are preferred: %v, want %v", got, c.want)
			}
		})
	}
}

// TestOnlyConcernedServicesAreComputed adds reports of 1,000 local nodes that a remote node
// is down, which has endpoints of ten of 10,000 services.
func TestOnlyConcernedServicesAreComputed(t *testing.T) {
	services, local := rounds(10000, 1000), rounds(1000, 100)
	w, id := newWorld(), setID{"aws", mirrored}
	for i := range services {
		k := Key{"shop", fmt.Sprintf("web-%d", i)}
		w.origin(id, k, newOrigin(k, 1, 80, Traits{}))
		w.hasOn(id, k, fmt.Sprintf("web-%d", i), fmt.Sprintf("10.4.%d.%d@a%d", i/250, i%250, i/10))
	}
	w.settle(t)
	for i := range local {
		w.paths.SetNode(fmt.Sprintf("local-%d", i), true)
	}
	w.judge(w.clock, nil)
	began := time.Now()
	for i := range local {
		node := fmt.Sprintf("local-%d", i)
		w.paths.Report(node, down(node, "a7"), w.clock)
	}
	w.judge(w.clock, nil)
	changed := Desired(w.Snapshot, w.memo)
	w.seen()
	t.Logf("%d reports, %d services, %d of them looked at in %v", local, services, len(changed), time.Since(began))
	if len(changed) != 10 {
		t.Errorf("%d services were looked at, want 10", len(changed))
	}
	// Renewed reports change nothing.
	for i := range local {
		node := fmt.Sprintf("local-%d", i)
		w.paths.Report(node, down(node, "a7"), w.clock.Add(30*time.Second))
	}
	w.judge(w.clock.Add(30*time.Second), nil)
	if changed := Desired(w.Snapshot, w.memo); len(changed) > 0 {
		t.Errorf("%d services were looked at for reports with the same contents", len(changed))
	}
}

// TestReportsReadAgain checks that a report that is listed again doesn't count as renewed:
// it would not expire while lists are repeated.
func TestReportsReadAgain(t *testing.T) {
	node := "n1"
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Name: pathreport.Name(node), ResourceVersion: "7", Annotations: map[string]string{pathreport.Annotation: `{"gcp":{"down":["g1"]}}`},
	}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &node}}
	first, _ := keepReport(lease)
	if again, _ := keepReport(lease.DeepCopy()); first.fault != nil || !equalReports(first, again) {
		t.Errorf("fault %v; read again it counts as renewed", first.fault)
	}
	renewed := lease.DeepCopy()
	renewed.ResourceVersion = "8"
	if later, _ := keepReport(renewed); equalReports(first, later) {
		t.Error("a renewed one counts as the same")
	}
	// The same version with other contents, of a server that was restored from a backup.
	other := lease.DeepCopy()
	other.Annotations[pathreport.Annotation] = `{"gcp":{"down":["g2"]}}`
	if changed, _ := keepReport(other); equalReports(first, changed) {
		t.Error("one with other contents counts as the same")
	}
}
