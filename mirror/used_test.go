package mirror

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

// offers adds slices of a global service to a cluster, one for each text like
// "http,dns/UDP 10.4.0.1@a1=pod !10.4.0.2": ports, and endpoints with node and target, "!" for
// those that are not ready.
func (w *world) offers(cluster string, k origin.Key, slices ...string) {
	id := setOf(cluster, merged)
	for i, text := range slices {
		words := strings.Fields(text)
		sl := &origin.Slice{Name: fmt.Sprintf("%s-%d", k.Name, i), Service: k, Family: discoveryv1.AddressTypeIPv4}
		for port := range strings.SplitSeq(words[0], ",") {
			name, udp := strings.CutSuffix(port, "/UDP")
			protocol, number := corev1.ProtocolTCP, int32(8080)
			if udp {
				protocol = corev1.ProtocolUDP
			}
			sl.Ports = append(sl.Ports, discoveryv1.EndpointPort{Name: &name, Protocol: &protocol, Port: &number})
		}
		for _, word := range words[1:] {
			word, down := strings.CutPrefix(word, "!")
			word, target, _ := strings.Cut(word, "=")
			address, node, _ := strings.Cut(word, "@")
			e := origin.Endpoint{Address: netip.MustParseAddr(address), Node: node, Ready: origin.True}
			if target != "" {
				e.Target = origin.TargetOf(&corev1.ObjectReference{Kind: "Pod", Namespace: k.Namespace, Name: target})
			}
			if down {
				e.Ready = origin.False
			}
			if e.Address.Is6() {
				sl.Family = discoveryv1.AddressTypeIPv6
			}
			sl.Endpoints = append(sl.Endpoints, e)
		}
		w.slice(id, w.sets[id].Slices(k)[sl.Name], sl)
	}
}

// at returns the ready addresses that a local service has for each family and port, as in
// "IPv4 http: 10.2.0.1 10.4.0.1"; with a "+" behind those that the local zone prefers.
func (w *world) at(service string) []string {
	found := map[string][]string{}
	for _, s := range w.slices {
		if s.Labels[discoveryv1.LabelServiceName] != service {
			continue
		}
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			if e.Conditions.Ready != nil && !*e.Conditions.Ready {
				continue
			}
			text := e.Addresses[0]
			if e.Hints != nil && e.Hints.ForZones[0].Name != remoteZone {
				text += "+"
			}
			for _, p := range s.Ports {
				at := string(s.AddressType) + " " + *p.Name
				if *p.Protocol != corev1.ProtocolTCP {
					at += "/" + string(*p.Protocol)
				}
				found[at] = append(found[at], text)
			}
		}
	}
	var all []string
	for _, at := range slices.Sorted(maps.Keys(found)) {
		slices.Sort(found[at])
		all = append(all, at+": "+strings.Join(found[at], " "))
	}
	return all
}

// TestRetainedSlicesLoseTheirOtherPorts removes a remote that is the only one with one of two
// ports, while another client resists.
func TestRetainedSlicesLoseTheirOtherPorts(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakes) {
		http := corev1.ServicePort{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}
		metrics := corev1.ServicePort{Name: "metrics", Port: 90, Protocol: corev1.ProtocolTCP}
		put(t, f.aws, "shop", svc("web", global, ports(http, metrics)), [2]string{"web-1", "10.4.0.1"})
		put(t, f.merit, "shop", svc("web", global), [2]string{"web-1", "10.6.0.1"})
		merge := func(cfg *Config) {
			cfg.GlobalSelector, cfg.RemovalGrace = selector(t, globalMark+"=true"), 10*time.Hour
		}
		i := f.start(t, merge)
		leadsTo(t, f.gcp, globalName, "10.4.0.1", "10.6.0.1")
		i.stop()
		before := count(f.gcp, "patch endpointslices")
		i = f.start(t, func(cfg *Config) {
			merge(cfg)
			cfg.Remotes = cfg.Remotes[1:]
		})
		offers := func(address string, want ...string) (found *discoveryv1.EndpointSlice) {
			t.Helper()
			wait(t, "the ports of "+address, func() error {
				for _, sl := range kubetest.All[discoveryv1.EndpointSlice](f.gcp, "endpointslices", home) {
					if len(sl.Endpoints) == 0 || sl.Endpoints[0].Addresses[0] != address {
						continue
					}
					var names []string
					for _, p := range sl.Ports {
						names = append(names, fmt.Sprintf("%s %d/%s", *p.Name, *p.Port, *p.Protocol))
					}
					if !slices.Equal(names, want) {
						return fmt.Errorf("%q, want %q", names, want)
					}
					found = &sl
					return nil
				}
				return errors.New("no slice")
			})
			return found
		}
		sl := offers("10.4.0.1", "metrics 8090/TCP")
		offers("10.6.0.1", "http 8080/TCP")
		if sl.Annotations[annotCluster] != "aws" || sl.Labels[discoveryv1.LabelServiceName] != globalName {
			t.Errorf("%v %v", sl.Labels, sl.Annotations)
		}
		time.Sleep(time.Hour)
		if n := count(f.gcp, "patch endpointslices") - before; n != 1 {
			t.Errorf("%d patches, want one", n)
		}
		them := func() {
			var sl2 discoveryv1.EndpointSlice
			if f.gcp.Get("endpointslices", home, sl.Name, &sl2) && len(sl2.Ports) == 1 {
				name, number := "http", int32(8080)
				sl2.Ports = append(sl2.Ports, discoveryv1.EndpointPort{Name: &name, Port: &number})
				f.gcp.Put(t, "endpointslices", &sl2)
			}
		}
		them()
		time.Sleep(time.Second)
		offers("10.4.0.1", "metrics 8090/TCP")
		f.gcp.Hook(func(h *kubetest.Hooks) {
			h.Answer = func(r kubetest.Request) {
				if r.Name == sl.Name {
					them()
				}
			}
		})
		them()
		time.Sleep(time.Hour)
		before = count(f.gcp, "patch endpointslices")
		time.Sleep(time.Hour)
		if n := count(f.gcp, "patch endpointslices") - before; n < 4 || n > 10 {
			t.Errorf("%d patches in an hour, want one each ten minutes", n)
		}
		i.listed(t, globalName, func(s statuspage.Service) bool { return len(s.Overridden) == 1 })
	})
}

// TestSlicesOfAnUnknownClusterAreRetained restarts while a remote is out of reach.
func TestSlicesOfAnUnknownClusterAreRetained(t *testing.T) {
	web := origin.Key{Namespace: "shop", Name: "web"}
	aws, merit := setOf("aws", merged), setOf("merit", merged)
	w := newWorld()
	ports := []origin.Port{tcp("http", 80), tcp("metrics", 90)}
	hear := func(id setID, ports []origin.Port, offered ...string) {
		o := newOrigin(web, 1, 80, origin.Traits{})
		o.Spec.Ports = ports
		w.hears(id, o)
		w.offers(id.Cluster, web, offered...)
		w.settle(t)
	}
	has := func(want ...string) {
		t.Helper()
		var got []string
		for _, sl := range w.slices {
			s := w.sums.observedSlice(sl)
			for i, address := range s.Addresses {
				for _, p := range s.Ports {
					text := fmt.Sprintf("%v %s", address, *p.Name)
					if i >= s.Ready {
						text = "!" + text
					}
					got = append(got, text)
				}
			}
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("addresses and ports (-want +got):\n%s", diff)
		}
	}
	hear(aws, ports, "http,metrics 10.4.0.1 !10.4.0.2")
	hear(merit, ports[:1], "http 10.6.0.1")
	all := []string{"!10.4.0.2 http", "!10.4.0.2 metrics", "10.4.0.1 http", "10.4.0.1 metrics", "10.6.0.1 http"}
	has(all...)
	w.restart(testClusters()...)
	w.contact(setOf("gcp", merged), true, false)
	version := w.version
	w.settle(t)
	has(all...)
	hear(merit, ports[:1], "http 10.6.0.1")
	has(all...)
	if w.version != version {
		t.Errorf("a restart wrote %d objects", w.version-version)
	}
	w.contact(aws, false, true)
	w.settle(t)
	has("!10.4.0.2 metrics", "10.4.0.1 metrics", "10.6.0.1 http")
	hear(aws, ports, "http,metrics 10.4.0.1 !10.4.0.2")
	has(all...)
}

// TestFrontendsOfRandomHistories drains clusters and makes them stale, at random, while the slices
// of one global service change.
func TestFrontendsOfRandomHistories(t *testing.T) {
	web := origin.Key{Namespace: "shop", Name: "web"}
	for round := range rounds(60, 20) {
		r := rand.New(rand.NewPCG(uint64(round), 13))
		w := newWorld()
		traits := origin.Traits{IPv6: true, Headless: round%4 == 0}
		for i, cluster := range []string{"gcp", "aws", "merit"} {
			o := newOrigin(web, int64(i), 80, traits)
			o.LocalFirst, o.Spec.Ports = round%3 == 0, append(o.Spec.Ports, tcp("metrics", 9090))
			w.hears(setOf(cluster, merged), o)
		}
		for range 60 {
			n := r.IntN(3)
			cluster := []string{"gcp", "aws", "merit"}[n]
			switch r.IntN(6) {
			case 0:
				w.drain(cluster, r.IntN(2) == 0)
			case 1:
				w.contact(setOf(cluster, merged), true, r.IntN(2) == 0)
			default:
				text := []string{"http", "http,metrics", "metrics", "other"}[r.IntN(4)]
				for range r.IntN(3) {
					word := []string{" ", " !"}[r.IntN(2)] + []string{"10.%d.0.%d", "fd00:%d::%d"}[round%2] + "=pod-%d"
					text += fmt.Sprintf(word, 2+2*n, 1+r.IntN(9), r.IntN(3))
				}
				// The second slice has the other family.
				other := strings.NewReplacer("10.", "fd00:", ".0.", "::", "fd00:", "10.", "::", ".0.").Replace(text)
				w.offers(cluster, web, [][]string{{text}, {text, other}, {other, text}}[r.IntN(3)]...)
			}
			w.settle(t)
			w.checkFrontends(t)
		}
	}
}

// checkFrontends compares the ready endpoints of each global service with those of its origins,
// by family and port: there is one wherever a cluster has one, none of a drained or stale cluster
// beside one of another, and all of the others. Of what quotas exclude nothing counts. It knows only
// clusters that are synced.
func (w *world) checkFrontends(t *testing.T) {
	t.Helper()
	for name, s := range w.plans {
		if !s.Origin.Global() || w.services[name] == nil {
			continue
		}
		// Which clusters have a ready endpoint at a family and port, best ones first.
		have, want := map[string]map[string]bool{}, map[string][3]map[string]bool{}
		for i := range s.Slices {
			sl := &s.Slices[i]
			if slices.ContainsFunc(sl.Endpoints, func(e origin.Endpoint) bool { return e.Ready != origin.False }) {
				for _, at := range w.ports(s, sl.origin) {
					if have[at] == nil {
						have[at] = map[string]bool{}
					}
					have[at][sl.Cluster] = true
				}
			}
		}
		for _, id := range w.order {
			set := w.sets[id]
			c := w.clusters[id.Cluster]
			if o := set.Service(s.Origin.Key); id.Kind != merged || !set.Synced || o == nil || o.Reject != "" || c.quota.short[name].Services > 0 {
				continue
			}
			_, lacks := c.quota.short[name]
			rank := 0
			switch {
			case set.Stale:
				rank = 2
			case c.drained:
				rank = 1
			}
			for _, sl := range set.Slices(s.Origin.Key) {
				ready := slices.ContainsFunc(sl.Endpoints, func(e origin.Endpoint) bool {
					return e.Ready != origin.False && origin.Rejection(e.Address, sl.Family, c.subnets) == "" && !w.withdrawn(c, &e)
				})
				for _, at := range w.ports(s, sl) {
					if want[at][0] == nil {
						want[at] = [3]map[string]bool{{}, {}, {}}
					}
					if ready && (!lacks || have[at][id.Cluster]) {
						want[at][rank][id.Cluster] = true
					}
				}
			}
		}
		for at, ranks := range want {
			best := slices.IndexFunc(ranks[:], func(clusters map[string]bool) bool { return len(clusters) > 0 })
			if best < 0 {
				continue
			}
			for cluster := range ranks[best] {
				if !have[at][cluster] {
					t.Fatalf("%s lacks the endpoints of %s for %s; it has those of %v, of %v", name, cluster, at, have[at], ranks)
				}
			}
			for _, worse := range ranks[best+1:] {
				for cluster := range worse {
					if have[at][cluster] {
						t.Fatalf("%s has endpoints of %s for %s beside those of %v", name, cluster, at, ranks[best])
					}
				}
			}
		}
	}
}

// ports returns the families and ports of a service that a slice is for, as text.
func (w *world) ports(s *Service, sl *origin.Slice) (all []string) {
	if s.Spec.Headless || len(sl.Ports) == 0 {
		return []string{string(sl.Family)}
	}
	for _, p := range sl.Ports {
		if slices.ContainsFunc(s.Spec.Ports, func(of origin.Port) bool { return of.Name == *p.Name && of.Protocol == *p.Protocol }) {
			all = append(all, string(sl.Family)+" "+*p.Name)
		}
	}
	return all
}
