package mirror

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/kube-semaphore/internal/keep"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
	"github.com/kube-semaphore/kube-semaphore/mirror/mcs"
	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

// clusterset is a set of three clusters with the namespace shop, whose controllers run.
type clusterset struct {
	*fakes
	t *testing.T
}

// inClusterset runs a test of a controller of gcp in a cluster set.
func inClusterset(t *testing.T, test func(c *clusterset)) {
	t.Helper()
	bubble(t, func(t *testing.T, f *fakes) {
		for _, api := range []*kubetest.API{f.gcp, f.aws, f.merit} {
			api.Put(t, "namespaces", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
		}
		test(&clusterset{f, t})
	})
}

// start runs the controller of gcp.
func (c *clusterset) start(adjust ...func(*Config)) *instance { return c.startIn("gcp", adjust...) }

// startIn runs the controller of a cluster.
func (c *clusterset) startIn(name string, adjust ...func(*Config)) *instance {
	c.t.Helper()
	cfg := Config{Cluster: name, Namespace: home, MultiCluster: true, Logger: slog.New(slog.NewTextHandler(c.t.Output(), nil)).With("in", name)}
	for _, other := range []string{"gcp", "aws", "merit"} {
		of := client(c.t, c.apis()[other])
		if other == name {
			cfg.Client = of
			continue
		}
		cfg.Remotes = append(cfg.Remotes, Remote{Name: other, Prefix: other, Client: func() (kube.Client, error) { return of, nil }})
	}
	for _, a := range adjust {
		a(&cfg)
	}
	controller := New(cfg)
	return &instance{controller, kubetest.Run(c.t, controller.Tasks(), controller.Lead)}
}

func (c *clusterset) apis() map[string]*kubetest.API {
	return map[string]*kubetest.API{"gcp": c.gcp, "aws": c.aws, "merit": c.merit}
}

// export creates an export of that age, in seconds.
func (c *clusterset) export(api *kubetest.API, name string, age int, adjust ...func(*v1beta1.ServiceExport)) {
	c.t.Helper()
	x := &v1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: name, CreationTimestamp: metav1.NewTime(epoch.Add(-time.Duration(age) * time.Second)),
	}}
	for _, a := range adjust {
		a(x)
	}
	api.Put(c.t, "serviceexports", x)
}

func (c *clusterset) put(api *kubetest.API, s *corev1.Service, ips ...string) {
	c.t.Helper()
	s.Labels = nil
	all := make([][2]string, 0, len(ips))
	for _, ip := range ips {
		all = append(all, [2]string{s.Name + "-" + strings.ReplaceAll(ip, ".", "-"), ip})
	}
	put(c.t, api, "shop", s, all...)
}

// imported waits until the import has these endpoints by cluster, such as "aws 10.4.0.1:80",
// and returns it.
func (c *clusterset) imported(api *kubetest.API, name string, want ...string) *v1beta1.ServiceImport {
	c.t.Helper()
	var i v1beta1.ServiceImport
	wait(c.t, "the import "+name, func() error {
		got := []string{}
		for _, sl := range kubetest.All[discoveryv1.EndpointSlice](api, "endpointslices", "shop") {
			if sl.Labels[mcs.LabelServiceName] != name {
				continue
			}
			for n := range sl.Endpoints {
				for _, p := range sl.Ports {
					got = append(got, fmt.Sprintf("%s %s:%d", sl.Labels[mcs.LabelSourceCluster], sl.Endpoints[n].Addresses[0], *p.Port))
				}
			}
		}
		slices.Sort(got)
		i = v1beta1.ServiceImport{}
		exists := api.Get("serviceimports", "shop", name, &i)
		if !slices.Equal(got, want) || exists != (len(want) > 0) {
			return fmt.Errorf("exists: %v, endpoints %v, want %v", exists, got, want)
		}
		if exists && i.Spec.Type == v1beta1.ClusterSetIP && len(i.Spec.IPs) == 0 {
			return fmt.Errorf("no addresses")
		}
		return nil
	})
	return &i
}

// conflict waits for the Conflict condition of an export.
func (c *clusterset) conflict(api *kubetest.API, name string, want string) {
	c.t.Helper()
	wait(c.t, "the condition of "+name, func() error {
		var x v1beta1.ServiceExport
		api.Get("serviceexports", "shop", name, &x)
		for _, condition := range x.Status.Conditions {
			if condition.Type == "Conflict" {
				if condition.Reason == want {
					return nil
				}
				return fmt.Errorf("%s: %s, want %s", condition.Reason, condition.Message, want)
			}
		}
		return fmt.Errorf("no condition")
	})
}

func TestImport(t *testing.T) {
	inClusterset(t, func(c *clusterset) {
		c.start()
		c.put(c.aws, svc("web"), "10.4.0.1")
		c.export(c.aws, "web", 10)
		started := time.Now()
		i := c.imported(c.gcp, "web", "aws 10.4.0.1:8080")
		if took := time.Since(started); took > time.Second {
			t.Errorf("first seen after %v, with all clusters there", took)
		}
		derived := mcs.DerivedName("shop", "web")
		var s corev1.Service
		if !c.gcp.Get("services", "shop", derived, &s) || !slices.Equal(i.Spec.IPs, []string{s.Spec.ClusterIP}) || s.Spec.Selector != nil {
			t.Errorf("import %v, derived service %v", i.Spec, s.Spec)
		}
		c.put(c.gcp, svc("web"), "10.2.0.1")
		c.export(c.gcp, "web", 5)
		c.imported(c.gcp, "web", "aws 10.4.0.1:8080", "gcp 10.2.0.1:8080")
		c.conflict(c.gcp, "web", "NoConflicts")
		c.aws.Remove("serviceexports", "shop", "web")
		c.imported(c.gcp, "web", "gcp 10.2.0.1:8080")
		c.gcp.Remove("serviceexports", "shop", "web")
		c.imported(c.gcp, "web")
		if c.gcp.Get("services", "shop", derived, &s) {
			t.Error("the derived service is still there")
		}
	})
}

// What was deleted counts no more while a finalizer of another controller holds it: neither an
// export, nor a slice, which its controller replaces and no longer updates. A Service counts as long
// as its own cluster serves it, which is until it is gone.
func TestObjectsHeldByFinalizers(t *testing.T) {
	inClusterset(t, func(c *clusterset) {
		c.start()
		held := []string{"example.com/hold"}
		for _, name := range []string{"export", "slice", "service"} {
			s := svc(name, func(s *corev1.Service) { s.Finalizers = held })
			c.put(c.aws, s, "10.4.0.1")
			other := kubetest.EndpointSlice(s, name+"-held", "10.4.0.2")
			other.Namespace, other.Finalizers = "shop", held
			c.aws.Put(t, "endpointslices", other)
			c.export(c.aws, name, 10, func(x *v1beta1.ServiceExport) { x.Finalizers = held })
			c.put(c.gcp, svc(name), "10.2.0.1")
			c.export(c.gcp, name, 5, func(x *v1beta1.ServiceExport) { x.Finalizers = held })
			c.imported(c.gcp, name, "aws 10.4.0.1:8080", "aws 10.4.0.2:8080", "gcp 10.2.0.1:8080")
		}
		c.aws.Remove("serviceexports", "shop", "export")
		c.imported(c.gcp, "export", "gcp 10.2.0.1:8080")
		c.gcp.Remove("serviceexports", "shop", "export")
		c.imported(c.gcp, "export")
		c.aws.Remove("endpointslices", "shop", "slice-held")
		c.imported(c.gcp, "slice", "aws 10.4.0.1:8080", "gcp 10.2.0.1:8080")
		c.aws.Remove("services", "shop", "service")
		time.Sleep(time.Minute)
		c.imported(c.gcp, "service", "aws 10.4.0.1:8080", "aws 10.4.0.2:8080", "gcp 10.2.0.1:8080")
	})
}

// With internalTrafficPolicy Local a request stays on its node, or fails, as in the exporting
// cluster: so says the derived Service, and the cluster's own endpoints have their nodes. Those of
// others have none, as their nodes may have the names of ours.
func TestInternalTrafficPolicyLocal(t *testing.T) {
	inClusterset(t, func(c *clusterset) {
		c.start()
		policy := func(p corev1.ServiceInternalTrafficPolicy) func(*corev1.Service) {
			return func(s *corev1.Service) { s.Spec.InternalTrafficPolicy = &p }
		}
		nodes := func(want corev1.ServiceInternalTrafficPolicy, all ...string) {
			t.Helper()
			wait(t, "the policy "+string(want), func() error {
				var i v1beta1.ServiceImport
				var s corev1.Service
				c.gcp.Get("serviceimports", "shop", "web", &i)
				c.gcp.Get("services", "shop", mcs.DerivedName("shop", "web"), &s)
				if i.Spec.InternalTrafficPolicy == nil || *i.Spec.InternalTrafficPolicy != want || s.Spec.InternalTrafficPolicy == nil || *s.Spec.InternalTrafficPolicy != want {
					return fmt.Errorf("import %+v, derived service %+v", i.Spec, s.Spec)
				}
				var got []string
				for _, sl := range kubetest.All[discoveryv1.EndpointSlice](c.gcp, "endpointslices", "shop") {
					for n := range sl.Endpoints {
						if node := sl.Endpoints[n].NodeName; sl.Labels[mcs.LabelSourceCluster] != "" && node != nil {
							got = append(got, sl.Endpoints[n].Addresses[0]+" "+*node)
						}
					}
				}
				if !slices.Equal(got, all) {
					return fmt.Errorf("nodes of endpoints %q, want %q", got, all)
				}
				return nil
			})
		}
		c.put(c.aws, svc("web", policy(corev1.ServiceInternalTrafficPolicyLocal)), "10.4.0.1")
		c.export(c.aws, "web", 10)
		c.put(c.gcp, svc("web", policy(corev1.ServiceInternalTrafficPolicyLocal)), "10.2.0.1")
		c.export(c.gcp, "web", 5)
		c.imported(c.gcp, "web", "aws 10.4.0.1:8080", "gcp 10.2.0.1:8080")
		nodes(corev1.ServiceInternalTrafficPolicyLocal, "10.2.0.1 node-1")
		for _, api := range []*kubetest.API{c.aws, c.gcp} {
			c.put(api, svc("web", policy(corev1.ServiceInternalTrafficPolicyCluster)))
		}
		nodes(corev1.ServiceInternalTrafficPolicyCluster)
	})
}

// headless makes a service headless.
func headless(s *corev1.Service) { s.Spec.ClusterIP = corev1.ClusterIPNone }

// A headless import has the families of the cluster, unless they can't be found.
func TestFamiliesOfHeadlessImports(t *testing.T) {
	for name, want := range map[string][]corev1.IPFamily{"found": {corev1.IPv4Protocol}, "refused": nil} {
		t.Run(name, func(t *testing.T) {
			inClusterset(t, func(c *clusterset) {
				if want == nil {
					refuse(c.gcp, "create services families-")
				}
				c.put(c.aws, svc("db", headless), "10.4.0.1")
				c.export(c.aws, "db", 10)
				c.start()
				i := c.imported(c.gcp, "db", "aws 10.4.0.1:8080")
				if i.Spec.Type != v1beta1.Headless || !slices.Equal(i.Spec.IPFamilies, want) {
					t.Errorf("%+v", i.Spec)
				}
			})
		})
	}
}

// All clusters come to one import, in whichever order things happen, apart from their own ports.
func TestClustersAgree(t *testing.T) {
	tcp := func(name string, port int32) corev1.ServicePort {
		return corev1.ServicePort{Name: name, Protocol: corev1.ProtocolTCP, Port: port}
	}
	for _, order := range [][]string{{"gcp", "aws", "merit"}, {"merit", "aws", "gcp"}, {"aws", "merit", "gcp"}} {
		t.Run(strings.Join(order, " "), func(t *testing.T) {
			inClusterset(t, func(c *clusterset) {
				age := map[string]int{"gcp": 30, "aws": 20, "merit": 10}
				list := map[string][]corev1.ServicePort{
					"gcp": {tcp("a", 80), tcp("b", 81)}, "aws": {tcp("a", 80), tcp("c", 82)}, "merit": {tcp("a", 90)},
				}
				for i, name := range order {
					c.put(c.apis()[name], svc("web", ports(list[name]...)), fmt.Sprintf("10.%d.0.1", 2+i))
					c.export(c.apis()[name], "web", age[name])
				}
				for _, name := range order {
					c.startIn(name)
				}
				specs := map[string]string{}
				for name, api := range c.apis() {
					c.conflict(api, "web", "PortConflict")
					wait(t, "the import in "+name, func() error {
						var i v1beta1.ServiceImport
						api.Get("serviceimports", "shop", "web", &i)
						if len(i.Spec.IPs) == 0 || len(i.Status.Clusters) == 0 {
							return fmt.Errorf("incomplete: %v", i)
						}
						var got []string
						for _, p := range i.Spec.Ports {
							got = append(got, fmt.Sprint(p.Name, p.Port))
						}
						i.Spec.IPs, i.Spec.Ports = nil, nil
						delete(i.Annotations, mcs.AnnotExports) // the ports of each cluster are in it
						specs[name] = fmt.Sprint(i.Spec, i.Labels, i.Annotations, i.Status.Clusters)
						want := map[string][]string{"gcp": {"a80", "b81", "c82"}, "aws": {"a80", "c82", "b81"}, "merit": {"a90", "a-8080", "b81", "c82"}}
						if !slices.Equal(got, want[name]) {
							return fmt.Errorf("ports %v, want %v", got, want[name])
						}
						return nil
					})
				}
				if specs["gcp"] != specs["aws"] || specs["gcp"] != specs["merit"] {
					t.Errorf("imports differ:\n%v\n%v\n%v", specs["gcp"], specs["aws"], specs["merit"])
				}
			})
		})
	}
}

// An import is first seen complete: it waits until all clusters have been read.
func TestAnImportIsFirstSeenComplete(t *testing.T) {
	inClusterset(t, func(c *clusterset) {
		c.put(c.gcp, svc("db", headless), "10.2.0.1")
		c.export(c.gcp, "db", 10)
		c.put(c.aws, svc("db"), "10.4.0.1")
		c.export(c.aws, "db", 20)
		c.aws.Stop()
		started := time.Now()
		c.start()
		time.Sleep(10 * time.Second)
		if all := kubetest.All[v1beta1.ServiceImport](c.gcp, "serviceimports", ""); len(all) > 0 {
			t.Fatalf("first seen after %v: %v", time.Since(started), all)
		}
		c.aws.Start()
		if i := c.imported(c.gcp, "db", "aws 10.4.0.1:8080", "gcp 10.2.0.1:8080"); i.Spec.Type != v1beta1.ClusterSetIP {
			t.Errorf("%v", i.Spec)
		}
		c.conflict(c.gcp, "db", "TypeConflict")
	})
}

// A cluster that stays away doesn't hold up imports for ever.
func TestImportsWaitForALimitedTime(t *testing.T) {
	inClusterset(t, func(c *clusterset) {
		c.put(c.gcp, svc("web"), "10.2.0.1")
		c.export(c.gcp, "web", 10)
		c.aws.Stop()
		c.start()
		c.imported(c.gcp, "web", "gcp 10.2.0.1:8080")
		c.aws.Start()
	})
}

// After a restart a cluster that can't be read keeps its part of a running import.
func TestARestartKeepsImports(t *testing.T) {
	inClusterset(t, func(c *clusterset) {
		running := c.start()
		c.put(c.aws, svc("web"), "10.4.0.1")
		c.export(c.aws, "web", 10)
		c.put(c.merit, svc("web"), "10.6.0.1")
		c.export(c.merit, "web", 5)
		before := c.imported(c.gcp, "web", "aws 10.4.0.1:8080", "merit 10.6.0.1:8080")
		running.stop()
		c.aws.Stop()
		c.start()
		time.Sleep(2 * firstImports)
		after := c.imported(c.gcp, "web", "aws 10.4.0.1:8080", "merit 10.6.0.1:8080")
		if before.ResourceVersion != after.ResourceVersion {
			t.Errorf("written again: %v, then %v", before, after)
		}
		c.merit.Remove("serviceexports", "shop", "web")
		c.imported(c.gcp, "web", "aws 10.4.0.1:8080")
		c.aws.Start()
		c.aws.Remove("serviceexports", "shop", "web")
		c.imported(c.gcp, "web")
	})
}

// An import whose last export ended while no controller ran is removed, once its cluster has
// been read.
func TestARestartRemovesImports(t *testing.T) {
	inClusterset(t, func(c *clusterset) {
		running := c.start()
		c.put(c.aws, svc("web"), "10.4.0.1")
		c.export(c.aws, "web", 10)
		c.imported(c.gcp, "web", "aws 10.4.0.1:8080")
		running.stop()
		c.aws.Remove("serviceexports", "shop", "web")
		c.start()
		c.imported(c.gcp, "web")
	})
}

// The same, if the objects of imports are read last.
func TestImportsThatAreReadLastAreReconciled(t *testing.T) {
	s, k := newExports(0, 0), origin.Key{Namespace: "shop", Name: "web"}
	s.importsKnown = false
	object := (&mcs.Import{Places: []mcs.Place{{Cluster: "aws"}}}).Object(k.Namespace, k.Name, nil, nil)
	o := s.sums.observedImport(object)
	s.local.imports.Observe([]kube.Change[ObservedImport]{{Key: o.Name, After: o}}, true)
	s.local.update(s.now, s.touch)
	s.take()
	s.importsKnown = true
	s.touchAll()
	all := 0
	s.plans(func(want *Service, have *Observed) {
		all++
		if changes := s.sums.Diff(have, want); len(changes) != 1 || changes[0].Verb != verbDelete {
			t.Errorf("%+v", changes)
		}
	})
	if all != 1 {
		t.Fatalf("looked at %d", all)
	}
}

// An export that states an earlier time, or a type of its own, doesn't seize a running import.
func TestANewExportDoesNotSeizeAnImport(t *testing.T) {
	inClusterset(t, func(c *clusterset) {
		c.start()
		c.put(c.aws, svc("web"), "10.4.0.1")
		c.export(c.aws, "web", 10)
		before := c.imported(c.gcp, "web", "aws 10.4.0.1:8080")
		c.put(c.merit, svc("web", ports(corev1.ServicePort{Name: "http", Protocol: corev1.ProtocolTCP, Port: 666}), headless), "10.6.0.1")
		c.export(c.merit, "web", 1e9)
		c.put(c.gcp, svc("web"), "10.2.0.1")
		c.export(c.gcp, "web", 1)
		after := c.imported(c.gcp, "web", "aws 10.4.0.1:8080", "gcp 10.2.0.1:8080")
		if fmt.Sprint(before.Spec) != fmt.Sprint(after.Spec) {
			t.Errorf("before %v\nafter %v", before.Spec, after.Spec)
		}
		c.conflict(c.gcp, "web", "PortConflict,TypeConflict")
	})
}

// Ports that lost aren't served, nor are slices without a port.
func TestPortsThatLostAreNotServed(t *testing.T) {
	for _, name := range []string{"http", ""} {
		t.Run("named "+name, func(t *testing.T) {
			inClusterset(t, func(c *clusterset) {
				c.put(c.gcp, svc("web", ports(corev1.ServicePort{Name: name, Protocol: corev1.ProtocolTCP, Port: 42})), "10.2.0.1")
				c.export(c.gcp, "web", 10)
				c.put(c.aws, svc("web", ports(corev1.ServicePort{Name: name, Protocol: corev1.ProtocolTCP, Port: 4242})), "10.4.0.1")
				c.export(c.aws, "web", 5)
				c.start()
				c.imported(c.gcp, "web", "gcp 10.2.0.1:8042")
				c.conflict(c.gcp, "web", "PortConflict")
				for _, sl := range kubetest.All[discoveryv1.EndpointSlice](c.gcp, "endpointslices", "shop") {
					if sl.Labels[mcs.LabelSourceCluster] == "aws" {
						t.Errorf("a slice of aws: %v", sl)
					}
				}
			})
		})
	}
}

// Objects of others stay: another implementation's import, and a Service with the name of a
// derived one.
func TestForeignObjectsOfImportsStay(t *testing.T) {
	inClusterset(t, func(c *clusterset) {
		c.gcp.Put(t, "serviceimports", &v1beta1.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: v1beta1.ServiceImportSpec{Type: v1beta1.ClusterSetIP, IPs: []string{"1.2.3.4"}}})
		c.gcp.Put(t, "services", &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: mcs.DerivedName("shop", "db")}})
		i := c.start()
		for _, name := range []string{"web", "db"} {
			c.put(c.aws, svc(name), "10.4.0.1")
			c.export(c.aws, name, 10)
			i.listed(t, "shop/"+name, func(s statuspage.Service) bool { return strings.Contains(s.Error, "not ours") })
		}
		var im v1beta1.ServiceImport
		var s corev1.Service
		c.gcp.Get("serviceimports", "shop", "web", &im)
		c.gcp.Get("services", "shop", mcs.DerivedName("shop", "db"), &s)
		if !slices.Equal(im.Spec.IPs, []string{"1.2.3.4"}) || len(s.Labels) > 0 {
			t.Errorf("changed: %v, %v", im, s)
		}
	})
}

func TestImportsFollowNamespaces(t *testing.T) {
	inClusterset(t, func(c *clusterset) {
		c.gcp.Remove("namespaces", "", "shop")
		c.start()
		c.put(c.aws, svc("web"), "10.4.0.1")
		c.export(c.aws, "web", 10)
		time.Sleep(time.Minute)
		if all := kubetest.All[v1beta1.ServiceImport](c.gcp, "serviceimports", ""); len(all) > 0 {
			t.Fatalf("%v", all)
		}
		c.gcp.Put(t, "namespaces", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
		c.imported(c.gcp, "web", "aws 10.4.0.1:8080")
	})
}

// What is imported, mirrored or called by another name isn't exported.
func TestWhatIsNotExported(t *testing.T) {
	inClusterset(t, func(c *clusterset) {
		c.start()
		derived := mcs.DerivedName("shop", "other")
		c.put(c.aws, svc(derived), "10.4.0.1")
		c.export(c.aws, derived, 10)
		c.put(c.aws, svc("made", func(s *corev1.Service) { s.Annotations = map[string]string{annotCluster: "merit"} }), "10.4.0.2")
		c.export(c.aws, "made", 10)
		c.put(c.aws, svc("away", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }))
		c.export(c.aws, "away", 10)
		c.put(c.aws, svc("alias"), "10.4.0.3")
		c.export(c.aws, "alias", 10, func(x *v1beta1.ServiceExport) {
			x.Status.Conditions = []metav1.Condition{{Type: mcs.ConditionCluster, Status: metav1.ConditionTrue, Message: "aws2"}}
		})
		c.gcp.Put(t, "namespaces", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: home}})
		put(t, c.aws, home, svc("inner", func(s *corev1.Service) { s.Labels = nil }), [2]string{"inner-1", "10.4.0.5"})
		c.export(c.aws, "inner", 10, func(x *v1beta1.ServiceExport) { x.Namespace = home })
		c.put(c.aws, svc("last"), "10.4.0.4")
		c.export(c.aws, "last", 10)
		c.imported(c.gcp, "last", "aws 10.4.0.4:8080")
		if all := kubetest.All[v1beta1.ServiceImport](c.gcp, "serviceimports", ""); len(all) != 1 {
			t.Errorf("%v", all)
		}
	})
}

// A pass that finds nothing to do writes nothing.
func TestImportsAreNotWrittenAgain(t *testing.T) {
	inClusterset(t, func(c *clusterset) {
		c.startIn("gcp")
		c.startIn("aws")
		c.put(c.aws, svc("web"), "10.4.0.1")
		c.export(c.aws, "web", 10)
		c.put(c.gcp, svc("web"), "10.2.0.1")
		c.export(c.gcp, "web", 5)
		c.imported(c.gcp, "web", "aws 10.4.0.1:8080", "gcp 10.2.0.1:8080")
		c.conflict(c.gcp, "web", "NoConflicts")
		c.conflict(c.aws, "web", "NoConflicts")
		time.Sleep(time.Minute)
		before := len(c.gcp.Writes()) + len(c.aws.Writes())
		time.Sleep(10 * time.Minute)
		if writes := append(c.gcp.Writes(), c.aws.Writes()...); len(writes) != before {
			t.Errorf("%d writes: %v", len(writes)-before, writes[max(0, len(writes)-10):])
		}
	})
}

// Neither an admission webhook nor a client that removes owners again and again gets a write
// for each time.
func TestOwnersThatAreRemovedAgain(t *testing.T) {
	for name, strip := range map[string]func(c *clusterset){
		"by an admission webhook": func(c *clusterset) {
			c.gcp.Hook(func(h *kubetest.Hooks) {
				h.Admit = func(r kubetest.Request, o *unstructured.Unstructured) *metav1.Status {
					if r.Resource != "serviceimports" {
						o.SetOwnerReferences(nil)
					}
					return nil
				}
			})
		},
		"by another client": func(c *clusterset) {
			c.gcp.Hook(func(h *kubetest.Hooks) {
				h.Answer = func(kubetest.Request) {
					for _, resource := range []string{"services", "endpointslices"} {
						for _, o := range kubetest.All[metav1.PartialObjectMetadata](c.gcp, resource, "shop") {
							if len(o.OwnerReferences) > 0 {
								var whole map[string]any
								c.gcp.Get(resource, "shop", o.Name, &whole)
								stripped := &unstructured.Unstructured{Object: whole}
								stripped.SetOwnerReferences(nil)
								c.gcp.Put(c.t, resource, stripped)
							}
						}
					}
				}
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			inClusterset(t, func(c *clusterset) {
				strip(c)
				c.start()
				c.put(c.aws, svc("web"), "10.4.0.1")
				c.export(c.aws, "web", 10)
				c.imported(c.gcp, "web", "aws 10.4.0.1:8080")
				before := len(c.gcp.Writes())
				time.Sleep(10 * time.Minute)
				if writes := len(c.gcp.Writes()) - before; writes > 60 {
					t.Errorf("%d writes in ten minutes", writes)
				}
			})
		})
	}
}

// Objects may be deleted with their import, by the garbage collector, between a pass and the
// write: their feeds then no longer show them.
func TestObjectsThatGoBeforeTheyAreDeleted(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakes) {
		sums, k := newSummer(), origin.Key{Namespace: "shop", Name: "web"}
		a := &applier{client: client(t, f.gcp), sums: sums, local: newLocal(func() {}), log: slog.New(slog.DiscardHandler), count: func(string, string) {}}
		w := &Service{Name: k.String(), Imported: &Imported{Import: mcs.Import{Spec: mcs.Spec{Traits: mcs.Traits{IPv4: true}}}}}
		have := &Observed{
			Import:  sums.observedImport((&mcs.Import{}).Object(k.Namespace, k.Name, nil, nil)),
			Service: sums.observedDerived(w.object(home, "uid")),
			Slices:  map[string]*ObservedSlice{"shop/web-1": {identity: identity{Meta: keep.Meta{Name: "shop/web-1"}}}},
		}
		want := &Service{Name: k.String(), Absent: true}
		for _, c := range []Change{
			{Verb: verbDelete, Object: anImport, have: have.Import.identity},
			{Verb: verbDelete, Object: aDerived, have: have.Service.identity},
			{Verb: verbDelete, Object: aSlice, Name: "shop/web-1", have: have.Slices["shop/web-1"].identity},
		} {
			if _, err := a.change(t.Context(), have, want, &c); err != nil {
				t.Errorf("%s: %v", c.Object, err)
			}
		}
	})
}
