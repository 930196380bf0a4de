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

	"github.com/kube-semaphore/kube-semaphore/internal/kube/kubetest"
	"github.com/kube-semaphore/kube-semaphore/internal/status"
)

// offers adds slices of a global service to a cluster, one for each text like
// "http,dns/UDP 10.4.0.1@a1=pod !10.4.0.2": ports, and endpoints with node and target, "!" for
// those that are not ready.
func (w *world) offers(cluster string, k Key, slices ...string) {
	id := setID{cluster, merged}
	for i, text := range slices {
		words := strings.Fields(text)
		sl := &OriginSlice{Name: fmt.Sprintf("%s-%d", k.Name, i), Service: k, Family: discoveryv1.AddressTypeIPv4}
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
			e := Endpoint{Address: netip.MustParseAddr(address), Node: node, Ready: True}
			if target != "" {
				e.Target = targetOf(&corev1.ObjectReference{Kind: "Pod", Namespace: k.Namespace, Name: target})
			}
			if down {
				e.Ready = False
			}
			if e.Address.Is6() {
				sl.Family = discoveryv1.AddressTypeIPv6
			}
			sl.Endpoints = append(sl.Endpoints, e)
		}
		w.slice(id, w.sets[id].slices[k][sl.Name], sl)
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

// TestNoFamilyOrPortLosesItsLastEndpoints drains clusters, makes them stale or removes them, and
// breaks the paths to nodes, while other clusters have endpoints of one family or one port only.
func TestNoFamilyOrPortLosesItsLastEndpoints(t *testing.T) {
	web := Key{"shop", "web"}
	drain := func(clusters ...string) func(*world) {
		return func(w *world) {
			for _, c := range clusters {
				w.drain(c, true)
			}
		}
	}
	stale := func(w *world) { w.contact(setID{"aws", merged}, true, true) }
	for _, c := range []struct {
		name     string
		headless bool
		gcp, aws []string
		happens  func(*world)
		want     []string
		drained  []string
		needed   map[string][]string
		outdated bool
	}{
		{
			"drained, with both families", false, []string{"http 10.2.0.1", "http fd00:2::1"}, []string{"http 10.4.0.1", "http fd00:4::1"}, drain("aws"),
			[]string{"IPv4 http: 10.2.0.1", "IPv6 http: fd00:2::1"}, []string{"aws"}, nil, false,
		},
		{
			"drained, and alone with a family", false, []string{"http 10.2.0.1"}, []string{"http 10.4.0.1", "http fd00:4::1"}, drain("aws"),
			[]string{"IPv4 http: 10.2.0.1", "IPv6 http: fd00:4::1"}, []string{"aws"}, map[string][]string{"aws": {"IPv6 http"}}, false,
		},
		{
			"drained, and alone with ready endpoints of a family", false, []string{"http 10.2.0.1", "http !fd00:2::1"}, []string{"http 10.4.0.1", "http fd00:4::1"}, drain("aws"),
			[]string{"IPv4 http: 10.2.0.1", "IPv6 http: fd00:4::1"}, []string{"aws"}, map[string][]string{"aws": {"IPv6 http"}}, false,
		},
		{
			"drained, and alone with a port", false, []string{"http 10.2.0.1"}, []string{"http,metrics 10.4.0.1"}, drain("aws"),
			[]string{"IPv4 http: 10.2.0.1", "IPv4 metrics: 10.4.0.1"}, []string{"aws"}, map[string][]string{"aws": {"IPv4 metrics"}}, false,
		},
		{
			"drained, and alone with the protocol of a port", false, []string{"http,dns 10.2.0.1"}, []string{"http,dns/UDP 10.4.0.1"}, drain("gcp"),
			[]string{"IPv4 dns: 10.2.0.1", "IPv4 dns/UDP: 10.4.0.1", "IPv4 http: 10.4.0.1"}, []string{"gcp"}, map[string][]string{"gcp": {"IPv4 dns"}}, false,
		},
		{
			"a headless one has addresses for all ports", true, []string{"http 10.2.0.1"}, []string{"http,metrics 10.4.0.1", "http fd00:4::1"}, drain("aws"),
			[]string{"IPv4 http: 10.2.0.1", "IPv6 http: fd00:4::1"}, []string{"aws"}, map[string][]string{"aws": {"IPv6"}}, false,
		},
		{
			"all are drained", false, []string{"http 10.2.0.1"}, []string{"http 10.4.0.1", "http fd00:4::1"}, drain("aws", "gcp"),
			[]string{"IPv4 http: 10.2.0.1 10.4.0.1", "IPv6 http: fd00:4::1"}, nil,
			map[string][]string{"aws": {"IPv4 http", "IPv6 http"}, "gcp": {"IPv4 http"}}, false,
		},
		{
			"stale, and alone with a family", false, []string{"http 10.2.0.1"}, []string{"http 10.4.0.1", "http fd00:4::1"}, stale,
			[]string{"IPv4 http: 10.2.0.1", "IPv6 http: fd00:4::1"}, nil, map[string][]string{"aws": {"IPv6 http"}}, true,
		},
		{
			"stale, and alone with all", false, nil, []string{"http 10.4.0.1", "http fd00:4::1"}, stale,
			[]string{"IPv4 http: 10.4.0.1", "IPv6 http: fd00:4::1"}, nil, map[string][]string{"aws": {"IPv4 http", "IPv6 http"}}, false,
		},
		{
			"stale, before drained ones", false, []string{"http 10.2.0.1", "http !fd00:2::1"}, []string{"http 10.4.0.1", "http fd00:4::1"},
			func(w *world) { stale(w); w.drain("gcp", true) },
			[]string{"IPv4 http: 10.2.0.1", "IPv6 http: fd00:4::1"}, nil,
			map[string][]string{"aws": {"IPv6 http"}, "gcp": {"IPv4 http", "IPv6 http"}}, true,
		},
		{
			"withdrawn, beside a drained cluster", false, []string{"http 10.2.0.1", "http fd00:2::1"}, []string{"http 10.4.0.1@a1", "http fd00:4::1@a2"},
			func(w *world) {
				w.drain("gcp", true)
				for i := range 3 {
					node := fmt.Sprintf("local-%d", i)
					w.paths.SetNode(node, true)
					w.paths.Report(node, down(node, "a2"), w.clock)
				}
				w.judge(w.clock, nil)
			},
			[]string{"IPv4 http: 10.4.0.1", "IPv6 http: fd00:2::1"}, []string{"gcp"}, map[string][]string{"gcp": {"IPv6 http"}}, false,
		},
		{
			"rejected, beside a drained cluster", false, []string{"http 10.2.0.1", "http fd00:2::1"}, []string{"http 10.4.0.1", "http fd00:9::1"}, drain("gcp"),
			[]string{"IPv4 http: 10.4.0.1", "IPv6 http: fd00:2::1"}, []string{"gcp"}, map[string][]string{"gcp": {"IPv6 http"}}, false,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld()
			for cluster, offered := range map[string][]string{"gcp": c.gcp, "aws": c.aws} {
				o := newOrigin(web, 1, 80, Traits{Headless: c.headless, IPv6: true})
				for _, text := range offered {
					switch {
					case strings.Contains(text, "metrics"):
						o.Spec.Ports = append(o.Spec.Ports, tcp("metrics", 9090))
					case strings.Contains(text, "dns/UDP"):
						o.Spec.Ports = append(o.Spec.Ports, udp("dns", 53))
					case strings.Contains(text, "dns"):
						o.Spec.Ports = append(o.Spec.Ports, tcp("dns", 53))
					}
				}
				w.hears(setID{cluster, merged}, o)
				w.offers(cluster, web, offered...)
			}
			w.settle(t)
			before := w.at(globalName)
			c.happens(w)
			w.settle(t)
			if diff := cmp.Diff(c.want, w.at(globalName)); diff != "" {
				t.Errorf("it has (-want +got):\n%s", diff)
			}
			s := w.memo.services[globalName]
			if diff := cmp.Diff(c.drained, s.Drained); diff != "" {
				t.Errorf("drained (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.needed, s.Needed); diff != "" {
				t.Errorf("needed (-want +got):\n%s", diff)
			}
			if s.Outdated != c.outdated {
				t.Errorf("outdated: %v", s.Outdated)
			}
			w.checkFrontends(t)
			version := w.version
			w.again()
			w.settle(t)
			if w.version != version {
				t.Errorf("a restart wrote %d objects", w.version-version)
			}
			// All of it comes back.
			w.drain("aws", false)
			w.drain("gcp", false)
			w.contact(setID{"aws", merged}, true, false)
			for i := range 3 {
				w.paths.Report(fmt.Sprintf("local-%d", i), nil, w.clock)
			}
			w.judge(w.clock.Add(time.Hour), nil)
			w.settle(t)
			if diff := cmp.Diff(before, w.at(globalName)); diff != "" {
				t.Errorf("afterwards it has (-before +after):\n%s", diff)
			}
		})
	}
}

// TestRemovedRemoteKeepsTheFamilyThatOnlyItHas removes a remote from the configuration.
func TestRemovedRemoteKeepsTheFamilyThatOnlyItHas(t *testing.T) {
	w, web := newWorld(), Key{"shop", "web"}
	for cluster, offered := range map[string][]string{"gcp": {"http 10.2.0.1"}, "aws": {"http 10.4.0.1", "http fd00:4::1"}} {
		w.hears(setID{cluster, merged}, newOrigin(web, 1, 80, Traits{IPv6: true}))
		w.offers(cluster, web, offered...)
	}
	w.settle(t)
	w.without("aws")
	w.hears(setID{"gcp", merged}, newOrigin(web, 1, 80, Traits{IPv6: true}))
	w.offers("gcp", web, "http 10.2.0.1")
	w.settle(t)
	if diff := cmp.Diff([]string{"IPv4 http: 10.2.0.1", "IPv6 http: fd00:4::1"}, w.at(globalName)); diff != "" {
		t.Errorf("it has (-want +got):\n%s", diff)
	}
}

// TestPortsThatOnlyOneRemoteHasSurviveARestart restarts while a remote is out of reach and stale,
// drained, or no longer configured.
func TestPortsThatOnlyOneRemoteHasSurviveARestart(t *testing.T) {
	web := Key{"shop", "web"}
	gcp, aws := setID{"gcp", merged}, setID{"aws", merged}
	for _, c := range []struct {
		name       string
		headless   bool
		gcp, aws   []string
		want       []string
		otherPorts []Port // of aws
	}{
		{
			"in a slice of its own", false, []string{"http 10.2.0.1"}, []string{"http 10.4.0.1", "metrics 10.4.0.2"},
			[]string{"IPv4 http: 10.2.0.1", "IPv4 metrics: 10.4.0.2"}, []Port{tcp("metrics", 9090)},
		},
		{
			"in a slice with ports that others have", false, []string{"http 10.2.0.1"}, []string{"http,metrics 10.4.0.1"},
			[]string{"IPv4 http: 10.2.0.1", "IPv4 metrics: 10.4.0.1"}, []Port{tcp("metrics", 9090)},
		},
		{
			"in one family", false, []string{"http 10.2.0.1", "metrics 10.2.0.1", "http fd00:2::1"}, []string{"http,metrics 10.4.0.1", "http,metrics fd00:4::1"},
			[]string{"IPv4 http: 10.2.0.1", "IPv4 metrics: 10.2.0.1", "IPv6 http: fd00:2::1", "IPv6 metrics: fd00:4::1"}, []Port{tcp("metrics", 9090)},
		},
		{
			"with the number of another, and another protocol", false, []string{"http 10.2.0.1"}, []string{"http,quic/UDP 10.4.0.1"},
			[]string{"IPv4 http: 10.2.0.1", "IPv4 quic/UDP: 10.4.0.1"}, []Port{udp("quic", 80)},
		},
		{
			"none", false, []string{"http 10.2.0.1"}, []string{"http 10.4.0.1", "other 10.4.0.2"},
			[]string{"IPv4 http: 10.2.0.1"}, nil,
		},
		{
			"a headless service", true, []string{"http 10.2.0.1"}, []string{"http,metrics 10.4.0.1", "metrics fd00:4::1"},
			[]string{"IPv4 http: 10.2.0.1", "IPv6 metrics: fd00:4::1"}, []Port{tcp("metrics", 9090)},
		},
	} {
		for state, begin := range map[string]func(w *world){
			"stale":   func(w *world) { w.restart(testClusters()...); w.contact(aws, false, true) },
			"drained": func(w *world) { w.restart(testClusters()...); w.contact(aws, false, false); w.drain("aws", true) },
			"removed": func(w *world) { w.without("aws") },
			"was stale": func(w *world) {
				w.contact(aws, true, true)
				w.settle(t)
				w.restart(testClusters()...)
				w.contact(aws, false, true)
			},
		} {
			t.Run(c.name+"/"+state, func(t *testing.T) {
				w := newWorld()
				hear := func(id setID, offered []string, more ...Port) {
					o := newOrigin(web, 1, 80, Traits{Headless: c.headless, IPv6: true})
					o.Spec.Ports = append(o.Spec.Ports, more...)
					w.hears(id, o)
					w.offers(id.cluster, web, offered...)
				}
				both := func() {
					hear(gcp, c.gcp)
					if strings.Contains(strings.Join(c.gcp, " "), "metrics") {
						hear(gcp, c.gcp, c.otherPorts...)
					}
					hear(aws, c.aws, c.otherPorts...)
				}
				both()
				w.settle(t)
				before := w.at(globalName)
				begin(w)
				w.settle(t)
				hear(gcp, c.gcp)
				if strings.Contains(strings.Join(c.gcp, " "), "metrics") {
					hear(gcp, c.gcp, c.otherPorts...)
				}
				w.settle(t)
				if diff := cmp.Diff(c.want, w.at(globalName)); diff != "" {
					t.Errorf("it has (-want +got):\n%s", diff)
				}
				if state == "removed" {
					w.setRemoveAt(time.Time{})
					w.settle(t)
					for _, at := range w.at(globalName) {
						if strings.Contains(at, "10.4.") || strings.Contains(at, "fd00:4:") {
							t.Errorf("after the grace period it has %s", at)
						}
					}
					return
				}
				w.drain("aws", false)
				both()
				w.settle(t)
				if diff := cmp.Diff(before, w.at(globalName)); diff != "" {
					t.Errorf("afterwards it has (-before +after):\n%s", diff)
				}
			})
		}
	}
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
		time.Sleep(time.Minute)
		if n := count(f.gcp, "patch endpointslices") - before; n < 5 || n > 8 {
			t.Errorf("%d patches in a minute, want one each ten seconds", n)
		}
		i.listed(t, globalName, func(s status.Service) bool { return len(s.Overridden) == 1 && !s.Overridden[0].Returned })
	})
}

// TestDrainedClustersStayOmittedOverARestart restarts with a drained cluster that syncs before the
// others.
func TestDrainedClustersStayOmittedOverARestart(t *testing.T) {
	web := Key{"shop", "web"}
	aws, merit := setID{"aws", merged}, setID{"merit", merged}
	w := newWorld()
	hear := func(id setID, offered ...string) {
		o := newOrigin(web, 1, 80, Traits{})
		o.Spec.Ports = append(o.Spec.Ports, tcp("metrics", 90))
		w.hears(id, o)
		w.offers(id.cluster, web, offered...)
		w.settle(t)
	}
	has := func(want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, w.at(globalName)); diff != "" {
			t.Errorf("it has (-want +got):\n%s", diff)
		}
	}
	w.drain("aws", true)
	hear(merit, "http,metrics 10.6.0.1")
	hear(aws, "http,metrics 10.4.0.1")
	has("IPv4 http: 10.6.0.1", "IPv4 metrics: 10.6.0.1")
	w.restart(testClusters()...)
	w.drain("aws", true)
	hear(aws, "http,metrics 10.4.0.1")
	has("IPv4 http: 10.6.0.1", "IPv4 metrics: 10.6.0.1")
	// Another client changes what is remembered.
	for _, sl := range w.slices {
		sl = sl.DeepCopy()
		sl.Ports = sl.Ports[:1]
		w.putSlice(sl)
	}
	w.show()
	w.settle(t)
	has("IPv4 http: 10.6.0.1", "IPv4 metrics: 10.4.0.1")
	w.contact(merit, false, true)
	w.settle(t)
	has("IPv4 http: 10.4.0.1", "IPv4 metrics: 10.4.0.1")
}

// TestEndpointsKeepWhatIsRetained restarts with Endpoints while a remote is out of reach.
func TestEndpointsKeepWhatIsRetained(t *testing.T) {
	web := Key{"shop", "web"}
	aws, merit := setID{"aws", merged}, setID{"merit", merged}
	w := newWorld()
	w.legacy = true
	ports := []Port{tcp("http", 80), tcp("metrics", 90)}
	hear := func(id setID, ports []Port, offered ...string) {
		o := newOrigin(web, 1, 80, Traits{})
		o.Spec.Ports = ports
		w.hears(id, o)
		w.offers(id.cluster, web, offered...)
		w.settle(t)
	}
	has := func(want ...string) {
		t.Helper()
		var got []string
		for _, s := range subsets(w.endpoints[globalName]) {
			for i, address := range s.addresses {
				for _, p := range s.ports {
					text := fmt.Sprintf("%v %s", address, *p.Name)
					if i >= s.ready {
						text = "!" + text
					}
					got = append(got, text)
				}
			}
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("the Endpoints (-want +got):\n%s", diff)
		}
	}
	hear(aws, ports, "http,metrics 10.4.0.1 !10.4.0.2")
	hear(merit, ports[:1], "http 10.6.0.1")
	all := []string{"!10.4.0.2 http", "!10.4.0.2 metrics", "10.4.0.1 http", "10.4.0.1 metrics", "10.6.0.1 http"}
	has(all...)
	w.restart(testClusters()...)
	w.legacy = true
	w.contact(setID{"gcp", merged}, true, false)
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

// TestLocalMinimumCountsEndpoints adds local endpoints with several addresses, and addresses in
// several slices.
func TestLocalMinimumCountsEndpoints(t *testing.T) {
	web := Key{"shop", "web"}
	for _, c := range []struct {
		name  string
		local []string
		four  bool // local IPv4 endpoints are preferred, with a minimum of two
		six   bool
	}{
		{"one pod with an address of each family", []string{"http 10.2.0.1=a", "http fd00:2::1=a"}, false, false},
		{"two such pods", []string{"http 10.2.0.1=a 10.2.0.2=b", "http fd00:2::1=a fd00:2::2=b"}, true, true},
		{"two pods, one of which has both families", []string{"http 10.2.0.1=a 10.2.0.2=b", "http fd00:2::1=a"}, true, false},
		{"one address in two slices", []string{"http 10.2.0.1=a", "metrics 10.2.0.1=a"}, false, false},
		{"one address in two slices, of something unknown", []string{"http 10.2.0.1", "metrics 10.2.0.1"}, false, false},
		{"two addresses of something unknown", []string{"http 10.2.0.1 10.2.0.2"}, true, false},
		{"two addresses of one pod", []string{"http 10.2.0.1=a 10.2.0.2=a"}, false, false},
		{"one is not ready", []string{"http 10.2.0.1=a !10.2.0.2=b", "http fd00:2::1=a fd00:2::2=b"}, false, true},
		{"one is ready in one slice only", []string{"http 10.2.0.1=a 10.2.0.2=b", "metrics !10.2.0.2=b"}, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld()
			w.localMinimum = 2
			o := newOrigin(web, 1, 80, Traits{IPv6: true})
			o.LocalFirst, o.Spec.Ports = true, append(o.Spec.Ports, tcp("metrics", 9090))
			for cluster, offered := range map[string][]string{"gcp": c.local, "aws": {"http 10.4.0.1", "http fd00:4::1"}} {
				w.hears(setID{cluster, merged}, o)
				w.offers(cluster, web, offered...)
			}
			w.settle(t)
			at := strings.Join(w.at(globalName), "\n")
			if got := strings.Contains(at, "10.2.0.1+"); got != c.four {
				t.Errorf("local IPv4 endpoints are preferred: %v\n%s", got, at)
			}
			if got := strings.Contains(at, "fd00:2::1+"); got != c.six {
				t.Errorf("local IPv6 endpoints are preferred: %v\n%s", got, at)
			}
		})
	}
}

// TestFrontendsOfRandomHistories drains clusters and makes them stale, at random, while the slices
// of one global service change.
func TestFrontendsOfRandomHistories(t *testing.T) {
	web := Key{"shop", "web"}
	for round := range rounds(60, 20) {
		r := rand.New(rand.NewPCG(uint64(round), 13))
		w := newWorld()
		traits := Traits{IPv6: true, Headless: round%4 == 0}
		for i, cluster := range []string{"gcp", "aws", "merit"} {
			o := newOrigin(web, int64(i), 80, traits)
			o.LocalFirst, o.Spec.Ports = round%3 == 0, append(o.Spec.Ports, tcp("metrics", 9090))
			w.hears(setID{cluster, merged}, o)
		}
		for range 60 {
			n := r.IntN(3)
			cluster := []string{"gcp", "aws", "merit"}[n]
			switch r.IntN(6) {
			case 0:
				w.drain(cluster, r.IntN(2) == 0)
			case 1:
				w.contact(setID{cluster, merged}, true, r.IntN(2) == 0)
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
// beside one of another, and all of the others. It knows only clusters that are synced.
func (w *world) checkFrontends(t *testing.T) {
	t.Helper()
	for name, s := range w.memo.services {
		if !s.Origin.Global() || w.services[name] == nil {
			continue
		}
		// Which clusters have a ready endpoint at a family and port, best ones first.
		have, want := map[string]map[string]bool{}, map[string][3]map[string]bool{}
		for _, id := range w.order {
			set := w.sets[id]
			if o := set.origins[s.Origin.Key]; id.kind != merged || !set.synced || o == nil || w.memo.copied(w.Snapshot, id, s.Origin.Key) == nil {
				continue
			}
			rank := 0
			switch {
			case set.stale:
				rank = 2
			case w.drained[id.cluster]:
				rank = 1
			}
			for _, sl := range set.slices[s.Origin.Key] {
				ready := slices.ContainsFunc(sl.Endpoints, func(e Endpoint) bool {
					return e.Ready != False && rejection(e.Address, sl.Family, set.cluster.subnets) == "" && !w.withdrawn(&set.cluster, &e)
				})
				for _, at := range w.ports(s, sl) {
					if want[at][0] == nil {
						want[at] = [3]map[string]bool{{}, {}, {}}
					}
					if ready {
						want[at][rank][id.cluster] = true
					}
				}
			}
		}
		for i := range s.Slices {
			sl := &s.Slices[i]
			if slices.ContainsFunc(sl.Endpoints, func(e Endpoint) bool { return e.Ready != False }) {
				for _, at := range w.ports(s, sl.origin) {
					if have[at] == nil {
						have[at] = map[string]bool{}
					}
					have[at][sl.Cluster] = true
				}
			}
		}
		for at, ranks := range want {
			best := slices.IndexFunc(ranks[:], func(clusters map[string]bool) bool { return len(clusters) > 0 })
			if best < 0 {
				continue
			}
			for cluster := range ranks[best] {
				if limited := w.memo.quotas[cluster]; !have[at][cluster] && (limited == nil || limited.missing() == 0) {
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
func (w *world) ports(s *Service, sl *OriginSlice) (all []string) {
	if s.Spec.Headless || len(sl.Ports) == 0 {
		return []string{string(sl.Family)}
	}
	for _, p := range sl.Ports {
		if slices.ContainsFunc(s.Spec.Ports, func(of Port) bool { return of.Name == *p.Name && of.Protocol == *p.Protocol }) {
			all = append(all, string(sl.Family)+" "+*p.Name)
		}
	}
	return all
}
