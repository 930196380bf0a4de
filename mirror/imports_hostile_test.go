package mirror

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
	"github.com/kube-semaphore/kube-semaphore/mirror/mcs"
	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

// bounded gives a remote of a controller bounds.
func bounded(remote string, objects kube.Bounds, made Bounds) func(*Config) {
	return func(cfg *Config) {
		for i := range cfg.Remotes {
			if r := &cfg.Remotes[i]; r.Name == remote {
				r.Bounds, r.Made = objects, made
			}
		}
	}
}

// A remote with 100,000 exports gets no more than its bounds, and holds up neither our exports
// nor those of others.
func TestAHundredThousandExports(t *testing.T) {
	exports := rounds(100_000, 5_000)
	objects, most := exports/2, 100
	inClusterset(t, func(c *clusterset) {
		for i := range exports {
			name := fmt.Sprintf("many-%06d", i)
			if i < exports/20 {
				c.put(c.aws, svc(name), fmt.Sprintf("10.4.%d.%d", i/250%250, 1+i%250))
			}
			c.export(c.aws, name, 1e9)
		}
		c.put(c.gcp, svc("own"), "10.2.0.1")
		c.export(c.gcp, "own", 10)
		c.put(c.merit, svc("other"), "10.6.0.1")
		c.export(c.merit, "other", 10)
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		began := time.Now()
		i := c.start(bounded("aws", kube.Bounds{Answer: 256 << 20, Objects: objects}, Bounds{Services: most, Slices: most, Addresses: most}))
		c.imported(c.gcp, "own", "gcp 10.2.0.1:8080")
		c.imported(c.gcp, "other", "merit 10.6.0.1:8080")
		c.conflict(c.gcp, "own", "NoConflicts")
		wait(t, "the bounds of aws", func() error {
			st := i.Status()
			of := slices.IndexFunc(st.Clusters, func(c statuspage.MirrorCluster) bool { return c.Name == "aws" })
			watch := slices.IndexFunc(st.Clusters[of].Watches, func(w statuspage.Watch) bool { return w.Kind == "service exports" })
			if w := st.Clusters[of].Watches[watch]; !w.Synced || !strings.Contains(w.Error, fmt.Sprintf("%d service exports or more are rejected", objects+1)) {
				return fmt.Errorf("watch %+v", w)
			}
			if !strings.Contains(st.Clusters[of].Bounds, "are omitted or incomplete") {
				return fmt.Errorf("bounds %q", st.Clusters[of].Bounds)
			}
			return nil
		})
		took := time.Since(began)
		runtime.GC()
		runtime.ReadMemStats(&after)
		time.Sleep(10 * time.Minute)
		imports := kubetest.All[v1beta1.ServiceImport](c.gcp, "serviceimports", "shop")
		if writes := len(c.gcp.Writes()); len(imports) > most+2 || writes > 10*(most+2) {
			t.Errorf("%d imports, %d writes", len(imports), writes)
		}
		t.Logf("%d exports: own and other imports after %v, %d imports, %d MB", exports, took, len(imports), (int64(after.HeapAlloc)-int64(before.HeapAlloc))>>20)
	})
}

// Exports of namespaces that this cluster doesn't have take nothing of the quota.
func TestExportsOfOtherNamespacesTakeNoQuota(t *testing.T) {
	inClusterset(t, func(c *clusterset) {
		for i := range 20 {
			x := func(x *v1beta1.ServiceExport) { x.Namespace = "elsewhere" }
			name := fmt.Sprint("a-", i)
			put(t, c.aws, "elsewhere", svc(name, func(s *corev1.Service) { s.Labels = nil }), [2]string{name, "10.4.1.1"})
			c.export(c.aws, name, 100, x)
		}
		c.put(c.aws, svc("web"), "10.4.0.1")
		c.export(c.aws, "web", 10)
		i := c.start(bounded("aws", kube.Bounds{}, Bounds{Services: 2}))
		c.imported(c.gcp, "web", "aws 10.4.0.1:8080")
		// One that appears gets what is left.
		c.gcp.Put(t, "namespaces", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "elsewhere"}})
		wait(t, "an import in the new namespace", func() error {
			if all := kubetest.All[v1beta1.ServiceImport](c.gcp, "serviceimports", "elsewhere"); len(all) != 1 {
				return fmt.Errorf("%d imports, %+v", len(all), i.Status().Clusters)
			}
			return nil
		})
		c.imported(c.gcp, "web", "aws 10.4.0.1:8080")
	})
}

// An export that comes and goes all the time is written every few seconds.
func TestAnExportThatTogglesIsBounded(t *testing.T) {
	inClusterset(t, func(c *clusterset) {
		c.start()
		c.put(c.aws, svc("web"), "10.4.0.1")
		c.put(c.merit, svc("other"), "10.6.0.1")
		c.export(c.merit, "other", 10)
		c.imported(c.gcp, "other", "merit 10.6.0.1:8080")
		before := len(c.gcp.Writes())
		const toggles = 1000
		for range toggles {
			c.export(c.aws, "web", 10)
			time.Sleep(20 * time.Millisecond)
			c.aws.Remove("serviceexports", "shop", "web")
			time.Sleep(20 * time.Millisecond)
		}
		c.export(c.aws, "web", 10)
		c.imported(c.gcp, "web", "aws 10.4.0.1:8080")
		// Within 40 seconds: nine imports of five writes, and as many deletions of three.
		if writes := len(c.gcp.Writes()) - before; writes > 100 {
			t.Errorf("%d writes for %d toggles", writes, toggles)
		}
	})
}

// What a cluster says of its endpoints is checked as that of global services is.
func TestEndpointsOfImportsAreChecked(t *testing.T) {
	inClusterset(t, func(c *clusterset) {
		i := c.start(func(cfg *Config) {
			for n := range cfg.Remotes {
				cfg.Remotes[n].PodSubnets = []netip.Prefix{netip.MustParsePrefix("10.4.0.0/16")}
			}
		})
		s := svc("web")
		s.Namespace, s.Labels = "shop", nil
		c.aws.Put(t, "services", s)
		sl := kubetest.EndpointSlice(s, "web-1", "10.4.0.1", "10.2.0.1", "127.0.0.1", "169.254.169.254", "224.0.0.1", "10.4.0.256", "10.4.0.2")
		sl.Namespace = "shop"
		bad, good := strings.Repeat("x", 64)+".example", "web-0"
		sl.Endpoints[0].Hostname, sl.Endpoints[6].Hostname = &bad, &good
		c.aws.Put(t, "endpointslices", sl)
		c.export(c.aws, "web", 10)
		c.imported(c.gcp, "web", "aws 10.4.0.1:8080", "aws 10.4.0.2:8080")
		i.listed(t, "shop/web", func(s statuspage.Service) bool { return s.Refused["aws"] != "" })
		for _, sl := range kubetest.All[discoveryv1.EndpointSlice](c.gcp, "endpointslices", "shop") {
			for n := range sl.Endpoints {
				if e := &sl.Endpoints[n]; (e.Addresses[0] == "10.4.0.2") != (e.Hostname != nil && *e.Hostname == good) || e.NodeName != nil || e.TargetRef != nil {
					t.Errorf("%+v", e)
				}
			}
		}
	})
}

// Services with more ports, or other ones, than an API server would accept are refused alone;
// one with more than a derived Service has is imported in part.
func TestPortsOfImportsAreBounded(t *testing.T) {
	inClusterset(t, func(c *clusterset) {
		i := c.start()
		many := func(n int) func(*corev1.Service) {
			return func(s *corev1.Service) {
				s.Spec.Ports = nil
				for p := range n {
					s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", p), Protocol: corev1.ProtocolTCP, Port: int32(1 + p)})
				}
			}
		}
		for name, adjust := range map[string]func(*corev1.Service){
			"thousands": many(5000),
			"twice":     ports(corev1.ServicePort{Name: "a", Port: 80}, corev1.ServicePort{Name: "b", Port: 80}),
			"names":     ports(corev1.ServicePort{Name: strings.Repeat("x", 10_000), Port: 80}),
			"numbers":   ports(corev1.ServicePort{Name: "a", Port: 70_000}),
			"protocols": ports(corev1.ServicePort{Name: "a", Port: 80, Protocol: "ICMP"}),
		} {
			c.put(c.aws, svc(name, adjust), "10.4.0.1")
			c.export(c.aws, name, 10)
			wait(t, "the fault of "+name, func() error {
				st := i.Status().MultiCluster
				at := slices.IndexFunc(st.Imports, func(i statuspage.Import) bool { return i.Name == "shop/"+name })
				if at < 0 || st.Imports[at].Faults["aws"] == "" || len(st.Imports[at].Faults["aws"]) > 200 || st.Imports[at].Type != "" {
					return fmt.Errorf("%+v", st)
				}
				return nil
			})
		}
		c.put(c.aws, svc("hundreds", many(900)))
		c.export(c.aws, "hundreds", 10)
		wait(t, "an import with some of the ports", func() error {
			var im v1beta1.ServiceImport
			if c.gcp.Get("serviceimports", "shop", "hundreds", &im); len(im.Spec.Ports) != 100 || len(im.Spec.IPs) == 0 {
				return fmt.Errorf("%d ports, addresses %v", len(im.Spec.Ports), im.Spec.IPs)
			}
			return nil
		})
	})
}

// A cluster that begins to call itself otherwise leaves the imports, and returns.
func TestAClusterThatChangesItsName(t *testing.T) {
	inClusterset(t, func(c *clusterset) {
		c.start()
		called := func(name string) {
			c.export(c.aws, "web", 10, func(x *v1beta1.ServiceExport) {
				x.Status.Conditions = []metav1.Condition{{Type: mcs.ConditionCluster, Status: metav1.ConditionTrue, Message: name}}
			})
		}
		c.put(c.aws, svc("web"), "10.4.0.1")
		called("aws")
		c.put(c.gcp, svc("web"), "10.2.0.1")
		c.export(c.gcp, "web", 5)
		c.imported(c.gcp, "web", "aws 10.4.0.1:8080", "gcp 10.2.0.1:8080")
		called("gcp")
		c.imported(c.gcp, "web", "gcp 10.2.0.1:8080")
		called(strings.Repeat("not a name ", 1000))
		c.imported(c.gcp, "web", "aws 10.4.0.1:8080", "gcp 10.2.0.1:8080")
		called("merit")
		c.imported(c.gcp, "web", "gcp 10.2.0.1:8080")
		called("aws")
		c.imported(c.gcp, "web", "aws 10.4.0.1:8080", "gcp 10.2.0.1:8080")
	})
}

// collide have the same derived name in the namespace shop.
const collideA, collideB = "n12596888", "n62984384"

// Of two names with the same derived name, the second import takes nothing of the first one's:
// 50 bits are few for a remote that tries names.
func TestDerivedNamesThatCollide(t *testing.T) {
	if mcs.DerivedName("shop", collideA) != mcs.DerivedName("shop", collideB) {
		t.Fatal("they don't")
	}
	inClusterset(t, func(c *clusterset) {
		i := c.start()
		c.put(c.aws, svc(collideA), "10.4.0.1")
		c.export(c.aws, collideA, 10)
		before := c.imported(c.gcp, collideA, "aws 10.4.0.1:8080")
		c.put(c.merit, svc(collideB, ports(corev1.ServicePort{Name: "http", Port: 666, Protocol: corev1.ProtocolTCP})), "10.6.0.1")
		c.export(c.merit, collideB, 1e9)
		i.listed(t, "shop/"+collideB, func(s statuspage.Service) bool { return strings.Contains(s.Error, "not ours") })
		time.Sleep(2 * time.Minute)
		after := c.imported(c.gcp, collideA, "aws 10.4.0.1:8080")
		if before.ResourceVersion != after.ResourceVersion {
			t.Errorf("written again: %v", after)
		}
		for _, sl := range kubetest.All[discoveryv1.EndpointSlice](c.gcp, "endpointslices", "shop") {
			if sl.Labels[mcs.LabelServiceName] == collideB {
				t.Errorf("endpoints of the other one's Service: %v", sl)
			}
		}
		c.aws.Remove("serviceexports", "shop", collideA)
		c.imported(c.gcp, collideB, "merit 10.6.0.1:8666")
	})
}

// A user's Service with the name of a derived one is repaired only if its marks are those of
// the import. Slices are not endpoints of another one.
func TestForgedDerivedServices(t *testing.T) {
	name := mcs.DerivedName("shop", "web")
	for what, of := range map[string]struct {
		labels, annotations map[string]string
		ours                bool
	}{
		"no marks":             {nil, nil, false},
		"the label":            {map[string]string{mcs.LabelImported: "true"}, nil, false},
		"another import's":     {map[string]string{mcs.LabelImported: "true"}, map[string]string{mcs.AnnotImport: "db"}, false},
		"the annotation alone": {nil, map[string]string{mcs.AnnotImport: "web"}, false},
		"both":                 {map[string]string{mcs.LabelImported: "true"}, map[string]string{mcs.AnnotImport: "web"}, true},
	} {
		t.Run(what, func(t *testing.T) {
			inClusterset(t, func(c *clusterset) {
				owner := []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "a", UID: "b"}}
				c.gcp.Put(t, "services", &corev1.Service{
					ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: of.labels, Annotations: of.annotations, OwnerReferences: owner},
					Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "x"}, ExternalIPs: []string{"192.0.2.1"}},
				})
				c.put(c.aws, svc("web"), "10.4.0.1")
				c.export(c.aws, "web", 10)
				i := c.start()
				var s corev1.Service
				if of.ours {
					im := c.imported(c.gcp, "web", "aws 10.4.0.1:8080")
					wait(t, "the repair", func() error {
						s = corev1.Service{}
						c.gcp.Get("services", "shop", name, &s)
						if len(s.Spec.Selector)+len(s.Spec.ExternalIPs) > 0 || len(s.OwnerReferences) != 1 || s.OwnerReferences[0].UID != im.UID {
							return fmt.Errorf("%+v", s)
						}
						return nil
					})
					return
				}
				i.listed(t, "shop/web", func(s statuspage.Service) bool { return strings.Contains(s.Error, "not ours") })
				time.Sleep(2 * time.Minute)
				c.gcp.Get("services", "shop", name, &s)
				if s.Spec.Selector["app"] != "x" || s.OwnerReferences[0].UID != "b" {
					t.Errorf("changed: %+v", s)
				}
				for _, sl := range kubetest.All[discoveryv1.EndpointSlice](c.gcp, "endpointslices", "shop") {
					if sl.Labels[discoveryv1.LabelServiceName] == name {
						t.Errorf("endpoints of a foreign Service: %v", sl)
					}
				}
				c.gcp.Remove("services", "shop", name)
				c.imported(c.gcp, "web", "aws 10.4.0.1:8080")
			})
		})
	}
}

// Objects that other clusters' mirrors made are exported by none: clusters would import each
// other's imports.
func TestCopiesAreNotExported(t *testing.T) {
	inClusterset(t, func(c *clusterset) {
		for _, name := range []string{"gcp", "aws"} {
			c.startIn(name, func(cfg *Config) { cfg.GlobalSelector = selector(t, globalMark+"=true") })
		}
		c.put(c.merit, svc("web"), "10.6.0.1")
		c.export(c.merit, "web", 10)
		c.imported(c.aws, "web", "merit 10.6.0.1:8080")
		c.imported(c.gcp, "web", "merit 10.6.0.1:8080")
		// All that is in aws by now is exported there.
		for _, s := range kubetest.All[corev1.Service](c.aws, "services", "") {
			c.export(c.aws, s.Name, 1e6, func(x *v1beta1.ServiceExport) { x.Namespace = s.Namespace })
		}
		// The import's own name is that of no Service of aws: its slices belong to the derived one.
		c.export(c.aws, "web", 1e6)
		time.Sleep(time.Minute)
		before := len(c.gcp.Writes())
		time.Sleep(10 * time.Minute)
		c.imported(c.gcp, "web", "merit 10.6.0.1:8080")
		c.imported(c.aws, "web", "merit 10.6.0.1:8080")
		if writes := c.gcp.Writes(); len(writes) != before {
			t.Errorf("%v", writes[before:])
		}
		if all := kubetest.All[v1beta1.ServiceImport](c.gcp, "serviceimports", ""); len(all) != 1 {
			t.Errorf("%v", all)
		}
	})
}

// A drained cluster stays unused after a restart, as long as the endpoints of one that hasn't
// been read since are ready.
func TestRememberedEndpointsOfImportsCount(t *testing.T) {
	inClusterset(t, func(c *clusterset) {
		running := c.start()
		for api, ip := range map[*kubetest.API]string{c.aws: "10.4.0.1", c.merit: "10.6.0.1"} {
			c.put(api, svc("web"), ip)
			c.export(api, "web", 10)
		}
		c.imported(c.gcp, "web", "aws 10.4.0.1:8080", "merit 10.6.0.1:8080")
		c.merit.Put(t, "services", &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", Annotations: map[string]string{annotDrained: "true"}}})
		c.imported(c.gcp, "web", "aws 10.4.0.1:8080")
		running.stop()
		c.aws.Stop()
		c.start()
		time.Sleep(2 * firstImports)
		c.imported(c.gcp, "web", "aws 10.4.0.1:8080")
		c.aws.Start()
	})
}

// TestLocalClusterWithoutGlobalServices exports a Service that prefers near endpoints from the local
// cluster, which is drained then. There are no global services.
func TestLocalClusterWithoutGlobalServices(t *testing.T) {
	inClusterset(t, func(c *clusterset) {
		c.start()
		for api, ip := range map[*kubetest.API]string{c.gcp: "10.2.0.1", c.aws: "10.4.0.1"} {
			near := corev1.ServiceTrafficDistributionPreferClose
			c.put(api, svc("web", func(s *corev1.Service) { s.Spec.TrafficDistribution = &near }), ip)
			c.export(api, "web", 10)
		}
		c.imported(c.gcp, "web", "aws 10.4.0.1:8080", "gcp 10.2.0.1:8080")
		wait(t, "hints", func() error {
			for _, sl := range kubetest.All[discoveryv1.EndpointSlice](c.gcp, "endpointslices", "shop") {
				if sl.Labels[mcs.LabelServiceName] != "" && sl.Endpoints[0].Hints == nil {
					return fmt.Errorf("an endpoint of %s has none", sl.Labels[mcs.LabelSourceCluster])
				}
			}
			return nil
		})
		c.gcp.Put(t, "services", &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", Annotations: map[string]string{annotDrained: "true"}}})
		c.imported(c.gcp, "web", "aws 10.4.0.1:8080")
	})
}

// change is an event of a cluster for the import of one key.
type change struct {
	id    setID
	apply func(s *state)
}

// The import is that of what clusters say in the end, in whichever order and how often it is
// seen. All clusters have one order of the
// exports.
func TestOrderOfEventsDoesNotMatter(t *testing.T) {
	k := origin.Key{Namespace: "shop", Name: "web"}
	for seed := range uint64(rounds(500, 100)) {
		random := rand.New(rand.NewPCG(seed, 1))
		var events []change
		for _, cluster := range []string{"gcp", "aws", "merit"} {
			id := setOf(cluster, exported)
			events = append(events, change{id, func(s *state) { s.contact(id, true, false) }})
			if random.IntN(5) == 0 {
				continue
			}
			all := []corev1.ServicePort{{Name: "a", Port: int32(80 + random.IntN(2))}, {Name: "b", Port: int32(81 + random.IntN(2)), Protocol: corev1.ProtocolUDP}, {Name: "c", Port: 83}}
			service := kubetest.Service("web", nil, ports(all[:1+random.IntN(3)]...), func(s *corev1.Service) {
				if s.Namespace = "shop"; random.IntN(3) == 0 {
					s.Spec.ClusterIP = corev1.ClusterIPNone
				}
			})
			export := &mcs.Export{Created: time.Unix(random.Int64N(3), 0)}
			exported := origin.TrimService(service, nil)
			events = append(events,
				change{id, func(s *state) { s.sets[id].PutService(k, exported) }},
				change{id, func(s *state) { s.sets[id].PutExport(k, export) }},
				change{id, func(s *state) { s.sets[id].PutExport(k, export) }},
			)
			if random.IntN(3) == 0 { // it is there for a while
				passing := &mcs.Export{Created: time.Unix(-1, 0)}
				events = append([]change{{id, func(s *state) { s.sets[id].PutExport(k, passing) }}}, events...)
			}
		}
		first, order := map[string]string{}, ""
		for view := range 9 {
			local := []string{"gcp", "aws", "merit"}[view%3]
			clusters := testClusters()
			for i := range clusters {
				clusters[i].local = clusters[i].name == local
			}
			s := newExportState(clusters)
			var now *mcs.Import
			plan := func() {
				s.plans(func(want *Service, _ *Observed) {
					if now = nil; want.Imported != nil {
						now = &want.Imported.Import
					}
				})
			}
			// Those of one cluster stay in order; clusters are seen in any.
			by := map[setID][]change{}
			for _, e := range events {
				by[e.id] = append(by[e.id], e)
			}
			for len(by) > 0 {
				ids := slices.SortedFunc(maps.Keys(by), func(a, b setID) int { return strings.Compare(a.Cluster, b.Cluster) })
				id := ids[random.IntN(len(ids))]
				by[id][0].apply(s)
				if by[id] = by[id][1:]; len(by[id]) == 0 {
					delete(by, id)
				}
				if random.IntN(2) == 0 {
					plan()
				}
			}
			plan()
			text := fmt.Sprintf("%+v", now)
			if first[local] = cmp.Or(first[local], text); text != first[local] {
				t.Fatalf("seed %d: %s, then %s in %s", seed, first[local], text, local)
			}
			if now != nil {
				exporting := strings.Join(mcs.Exporting(now.Places), " ")
				if order = cmp.Or(order, exporting); exporting != order {
					t.Fatalf("seed %d: order %s, in %s %s", seed, order, local, exporting)
				}
			}
		}
	}
}
