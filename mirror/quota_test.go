package mirror

import (
	"fmt"
	"slices"
	"strings"
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
		after.Ports = origin.Named([]discoveryv1.EndpointPort{{Port: &number}})
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

// TestAddressesCountByPorts: an address counts as one for each ten of its ports, which kube-proxies
// have entries for.
func TestAddressesCountByPorts(t *testing.T) {
	clusters := testClusters()
	clusters[1].bounds = Bounds{Addresses: 15}
	aws, w, web := setOf("aws", mirrored), newWorld(clusters...), origin.Key{Namespace: "b", Name: "n"}
	w.has(aws, web, "s", "10.4.0.1", "10.4.0.2", "10.4.0.3")
	w.says(t, aws, newOrigin(web, 1, 80, origin.Traits{}))
	before := w.sets[aws].Slices(web)["s"]
	for _, c := range []struct{ ports, want int }{{1, 3}, {10, 3}, {11, 3}, {30, 2}, {31, 2}, {41, 1}, {100, 0}, {1, 3}} {
		after := *before
		var ports []discoveryv1.EndpointPort
		for n := range int32(c.ports) {
			name, number := fmt.Sprint("p", n), 8080+n
			ports = append(ports, discoveryv1.EndpointPort{Name: &name, Port: &number})
		}
		after.Ports = origin.Named(ports)
		w.slice(aws, before, &after)
		w.settle(t)
		got := 0
		for _, s := range w.slices {
			got += len(s.Endpoints)
		}
		if got != c.want {
			t.Errorf("%d ports: %d of 3 addresses, want %d", c.ports, got, c.want)
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

// TestNamespaceHasHalfOfItsRemotesEndpoints: a tenant of a remote, who fills slices first, leaves room
// for those of other namespaces.
func TestNamespaceHasHalfOfItsRemotesEndpoints(t *testing.T) {
	for name, bounds := range map[string]Bounds{"slices": {Slices: 5}, "addresses": {Addresses: 5}, "both": {Slices: 5, Addresses: 5}} {
		t.Run(name, func(t *testing.T) {
			clusters := testClusters()
			clusters[1].bounds = bounds
			aws, w := setOf("aws", mirrored), newWorld(clusters...)
			add := func(namespace string, count int) {
				for n := range count {
					k := origin.Key{Namespace: namespace, Name: fmt.Sprint("web-", n)}
					w.origin(aws, k, newOrigin(k, 1, 80, origin.Traits{}))
					w.has(aws, k, k.Name, fmt.Sprintf("10.4.%d.%d", len(namespace), 1+n))
				}
				w.settle(t)
			}
			check := func(hostile, shop int) {
				t.Helper()
				count := map[string]int{}
				for name, s := range w.plans {
					count[s.Origin.Namespace] += len(w.leads(name))
				}
				if count["hostile"] != hostile || count["shop"] != shop {
					t.Errorf("%v, want %d and %d", count, hostile, shop)
				}
				w.checkRooms(t)
			}
			add("hostile", 100)
			check(3, 0)
			add("shop", 4)
			check(3, 2)
			for _, s := range w.plans { // its room is used by another one of the namespace
				if s.Origin.Namespace == "shop" && len(s.Slices) > 0 && len(s.Slices[0].Endpoints) > 0 {
					w.origin(aws, s.Origin.Key, nil)
					break
				}
			}
			w.settle(t)
			check(3, 2)
		})
	}
}

// TestSlicesOfOneServiceAreBounded: a cluster has thousands of slices of a global service. Those that
// were first stay, and its other services get theirs.
func TestSlicesOfOneServiceAreBounded(t *testing.T) {
	aws, web, api := setOf("aws", merged), origin.Key{Namespace: "shop", Name: "web"}, origin.Key{Namespace: "shop", Name: "api"}
	clusters := testClusters()
	clusters[1].bounds = Bounds{Slices: 10_000}
	w := newWorld(clusters...)
	offer := func(from, to int) {
		for n := from; n < to; n++ {
			w.has(aws, web, fmt.Sprint("web-", n), fmt.Sprintf("10.4.%d.%d", n/250, 1+n%250))
		}
	}
	w.has(setOf("merit", merged), web, "web-1", "10.6.0.1")
	w.hears(setOf("merit", merged), newOrigin(web, 1, 80, origin.Traits{}))
	offer(0, maxSlices)
	w.says(t, aws, newOrigin(web, 1, 80, origin.Traits{}), newOrigin(api, 1, 80, origin.Traits{}))
	before, q := w.leads(globalName), &w.clusters["aws"].quota
	if len(before) != maxSlices+1 || q.over() != "" {
		t.Fatalf("%d addresses, over %q", len(before), q.over())
	}
	offer(maxSlices, rounds(10_000, 2_000))
	w.has(aws, api, "api-1", "10.5.0.1")
	w.settle(t)
	check := func() {
		t.Helper()
		if got := w.leads(globalName); !slices.Equal(got, before) {
			t.Errorf("%d addresses, others than before", len(got))
		}
		if got := w.leads(GlobalName(api)); len(got) != 1 {
			t.Errorf("another service has %v", got)
		}
		q = &w.clusters["aws"].quota
		if refused := w.plans[globalName].Tallies["aws"].Example; len(q.short) != 1 || !strings.Contains(q.over(), "500 slices of one service") || !strings.Contains(refused, "there are 500 slices of the service already") {
			t.Errorf("%d short, over %q, refused %q", len(q.short), q.over(), refused)
		}
		w.checkRooms(t)
	}
	check()
	version := w.version
	w.again()
	if w.settle(t); w.version != version {
		t.Errorf("a restart wrote %d objects", w.version-version)
	}
	check()
}

// TestServiceThatLacksSlicesAndAddresses is computed again when there is room for either.
func TestServiceThatLacksSlicesAndAddresses(t *testing.T) {
	q := newQuota(Bounds{Services: 2, Slices: 2, Addresses: 10})
	of := func(namespace string, addresses int) share {
		return share{Bounds: Bounds{Services: 1, Slices: 1, Addresses: addresses}, namespace: namespace}
	}
	q.grant("a", of("shop", 4), share{Bounds: Bounds{Slices: 1, Addresses: 5}, namespace: "shop"})
	q.grant("b", of("other", 6), share{})
	if next := q.grant("b", of("other", 1), share{}); !slices.Contains(next, "a") {
		t.Errorf("next are %v", next)
	}
}
