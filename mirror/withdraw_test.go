package mirror

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/internal/pathreport"
	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

// hasOn adds a slice of an origin, with endpoints like "10.4.0.1@a1".
func (w *world) hasOn(id setID, of origin.Key, name string, endpoints ...string) {
	sl := &origin.Slice{Name: name, Service: of, Family: discoveryv1.AddressTypeIPv4}
	for _, e := range endpoints {
		address, node, _ := strings.Cut(e, "@")
		sl.Endpoints = append(sl.Endpoints, origin.Endpoint{Address: netip.MustParseAddr(address), Node: node, Ready: origin.True})
	}
	w.slice(id, w.sets[id].Slices(of)[name], sl)
}

// TestOnlyConcernedServicesAreComputed adds reports of 1,000 local nodes that a remote node
// is down, which has endpoints of ten of 10,000 services.
func TestOnlyConcernedServicesAreComputed(t *testing.T) {
	services, local := rounds(10000, 1000), rounds(1000, 100)
	w, id := newWorld(), setOf("aws", mirrored)
	for i := range services {
		k := origin.Key{Namespace: "shop", Name: fmt.Sprintf("web-%d", i)}
		w.origin(id, k, newOrigin(k, 1, 80, origin.Traits{}))
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
	if n := len(w.losing); n != 10 {
		t.Errorf("%d services lose endpoints, want 10", n)
	}
	changed := w.planned()
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
	if changed := w.planned(); len(changed) > 0 {
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
	first := readReport(lease)
	if again := readReport(lease.DeepCopy()); first.fault != nil || !equalReports(first, again) {
		t.Errorf("fault %v; read again it counts as renewed", first.fault)
	}
	renewed := lease.DeepCopy()
	renewed.ResourceVersion = "8"
	if later := readReport(renewed); equalReports(first, later) {
		t.Error("a renewed one counts as the same")
	}
	// The same version with other contents, of a server that was restored from a backup.
	other := lease.DeepCopy()
	other.Annotations[pathreport.Annotation] = `{"gcp":{"down":["g2"]}}`
	if changed := readReport(other); equalReports(first, changed) {
		t.Error("one with other contents counts as the same")
	}
}
