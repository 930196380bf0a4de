package mirror

import (
	"fmt"
	"slices"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

// TestSliceIsWrittenWhenItsPortsChange changes only the ports of a slice.
func TestSliceIsWrittenWhenItsPortsChange(t *testing.T) {
	aws, web := setOf("aws", mirrored), origin.Key{Namespace: "b", Name: "n"}
	w := newWorld()
	w.has(aws, web, "s", "10.4.0.1")
	w.says(t, aws, newOrigin(web, 1, 80, origin.Traits{}))
	before := w.sets[aws].Slices(web)["s"]
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

// TestNamespaceHasHalfOfItsRemotesServices: a tenant of a remote, whose Services are first, leaves
// room for those of other namespaces, headless or not.
func TestNamespaceHasHalfOfItsRemotesServices(t *testing.T) {
	clusters := testClusters()
	clusters[1].bounds = Bounds{Services: 5}
	aws, w := setOf("aws", mirrored), newWorld(clusters...)
	add := func(namespace string, count int) {
		for n := range count {
			k := origin.Key{Namespace: namespace, Name: fmt.Sprint("web-", n)}
			w.origin(aws, k, newOrigin(k, int64(1+n), 80, origin.Traits{}))
		}
		w.settle(t)
	}
	made := func() map[string]int {
		count := map[string]int{}
		for _, s := range w.plans {
			count[s.Origin.Namespace]++
		}
		return count
	}
	add("hostile", 1000)
	if got := made(); got["hostile"] != 3 {
		t.Errorf("%v of 5", got)
	}
	add("shop", 3)
	if got := made(); got["hostile"] != 3 || got["shop"] != 2 {
		t.Errorf("%v of 5", got)
	}
	if why := w.clusters["aws"].quota.full("hostile"); why != "the maximum of 5 services" {
		t.Errorf("full: %s", why)
	}
	w.origin(aws, origin.Key{Namespace: "shop", Name: "web-0"}, nil)
	w.settle(t)
	if got := made(); got["hostile"] != 3 || got["shop"] != 2 {
		t.Errorf("%v of 5 after one is gone", got)
	}
}

// TestServiceThatLacksSlicesAndAddresses is computed again when there is room for either.
func TestServiceThatLacksSlicesAndAddresses(t *testing.T) {
	q := newQuota(Bounds{Services: 2, Slices: 2, Addresses: 10})
	q.grant("a", share{Bounds: Bounds{Services: 1, Slices: 1, Addresses: 5}}, share{Bounds: Bounds{Slices: 1, Addresses: 5}})
	q.grant("b", share{Bounds: Bounds{Services: 1, Slices: 1, Addresses: 5}}, share{})
	if next := q.grant("b", share{Bounds: Bounds{Services: 1, Slices: 1, Addresses: 1}}, share{}); !slices.Contains(next, "a") {
		t.Errorf("next are %v", next)
	}
}
