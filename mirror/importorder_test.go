package mirror

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
	"github.com/kube-semaphore/kube-semaphore/mirror/mcs"
)

// httpPort makes a Service serve a port of that name alone.
func httpPort(number int32) func(*corev1.Service) {
	return ports(corev1.ServicePort{Name: "http", Protocol: corev1.ProtocolTCP, Port: number})
}

// answers waits until requests of a cluster's clients to a port of an import are answered by
// these endpoints, as in "aws 10.4.0.1".
func (c *clusterset) answers(api *kubetest.API, name string, number int32, want ...string) {
	c.t.Helper()
	wait(c.t, fmt.Sprintf("answers from port %d of %s", number, name), func() error {
		var i v1beta1.ServiceImport
		if !api.Get("serviceimports", "shop", name, &i) {
			return fmt.Errorf("there is no import")
		}
		var derived corev1.Service
		ports, got := map[string]bool{}, []string{}
		if api.Get("services", "shop", mcs.DerivedName("shop", name), &derived); len(derived.Spec.Ports) != len(i.Spec.Ports) {
			return fmt.Errorf("the import has the ports %v, its Service %v", i.Spec.Ports, derived.Spec.Ports)
		}
		for _, p := range derived.Spec.Ports {
			ports[p.Name] = p.Port == number
		}
		for _, sl := range kubetest.All[discoveryv1.EndpointSlice](api, "endpointslices", "shop") {
			if sl.Labels[mcs.LabelServiceName] != name || !slices.ContainsFunc(sl.Ports, func(p discoveryv1.EndpointPort) bool { return ports[*p.Name] }) {
				continue
			}
			for n := range sl.Endpoints {
				got = append(got, sl.Labels[mcs.LabelSourceCluster]+" "+sl.Endpoints[n].Addresses[0])
			}
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			return fmt.Errorf("%q, want %q; ports %v", got, want, i.Spec.Ports)
		}
		return nil
	})
}

// offers makes a cluster have the Service web with one endpoint, and exports it unless it is
// exported.
func (c *clusterset) offers(name string, number int32, address string) {
	c.t.Helper()
	c.put(c.apis()[name], svc("web", httpPort(number)), address)
	if !c.apis()[name].Get("serviceexports", "shop", "web", &v1beta1.ServiceExport{}) {
		c.export(c.apis()[name], "web", -int(time.Since(epoch).Seconds()))
	}
}

// A neighbour exports a name before the cluster that has the Service, with another port.
func TestAClusterServesItselfWhatOthersExportedFirst(t *testing.T) {
	inClusterset(t, func(c *clusterset) {
		for _, name := range []string{"gcp", "aws", "merit"} {
			c.startIn(name)
		}
		c.put(c.aws, svc("web", httpPort(80)), "10.4.0.1")
		c.offers("gcp", 81, "10.2.0.1")
		c.answers(c.aws, "web", 81, "gcp 10.2.0.1")
		c.offers("aws", 80, "10.4.0.1")
		c.answers(c.aws, "web", 80, "aws 10.4.0.1")
		// What was served before goes on.
		for _, api := range c.apis() {
			c.answers(api, "web", 81, "gcp 10.2.0.1")
		}
		c.conflict(c.aws, "web", "PortConflict")
		c.conflict(c.gcp, "web", "PortConflict")
	})
}

// An export is deleted and created again, as tools for deployment do, while a neighbour changes
// its port.
func TestAnExportThatIsCreatedAgainKeepsItsPlace(t *testing.T) {
	inClusterset(t, func(c *clusterset) {
		for _, name := range []string{"gcp", "aws", "merit"} {
			c.startIn(name)
		}
		c.offers("aws", 80, "10.4.0.1")
		for _, api := range c.apis() {
			c.answers(api, "web", 80, "aws 10.4.0.1")
		}
		c.offers("gcp", 80, "10.2.0.1")
		c.answers(c.merit, "web", 80, "aws 10.4.0.1", "gcp 10.2.0.1")
		again := func(after time.Duration) {
			t.Helper()
			c.aws.Remove("serviceexports", "shop", "web")
			c.answers(c.merit, "web", 80, "gcp 10.2.0.1")
			time.Sleep(after)
			c.offers("gcp", 81, "10.2.0.1")
			c.answers(c.merit, "web", 81, "gcp 10.2.0.1")
			c.offers("aws", 80, "10.4.0.1")
			c.answers(c.aws, "web", 80, "aws 10.4.0.1")
		}
		again(9 * time.Minute)
		c.answers(c.merit, "web", 80, "aws 10.4.0.1")
		c.offers("gcp", 80, "10.2.0.1")
		c.answers(c.merit, "web", 80, "aws 10.4.0.1", "gcp 10.2.0.1")
		again(11 * time.Minute)
		c.answers(c.merit, "web", 81, "gcp 10.2.0.1")
		c.answers(c.merit, "web", 80)
	})
}

// The same, of the only export that there was.
func TestTheOnlyExportKeepsItsPlace(t *testing.T) {
	inClusterset(t, func(c *clusterset) {
		c.startIn("merit")
		c.offers("aws", 80, "10.4.0.1")
		c.answers(c.merit, "web", 80, "aws 10.4.0.1")
		c.aws.Remove("serviceexports", "shop", "web")
		c.imported(c.merit, "web")
		time.Sleep(time.Minute)
		c.offers("gcp", 81, "10.2.0.1")
		c.answers(c.merit, "web", 81, "gcp 10.2.0.1")
		c.offers("aws", 80, "10.4.0.1")
		c.answers(c.merit, "web", 80, "aws 10.4.0.1")
		c.answers(c.merit, "web", 81)
	})
}

// A mirror restarts while a neighbour doesn't answer, and a Service moves to another port.
func TestASilentClusterDecidesNothingForOthers(t *testing.T) {
	inClusterset(t, func(c *clusterset) {
		running := map[string]*instance{}
		for _, name := range []string{"aws", "merit"} {
			running[name] = c.startIn(name)
		}
		c.offers("aws", 80, "10.4.0.1")
		c.answers(c.merit, "web", 80, "aws 10.4.0.1")
		c.offers("gcp", 80, "10.2.0.1")
		c.answers(c.merit, "web", 80, "aws 10.4.0.1", "gcp 10.2.0.1")
		c.answers(c.aws, "web", 80, "aws 10.4.0.1", "gcp 10.2.0.1")
		c.gcp.Stop()
		for name, i := range running {
			i.stop()
			running[name] = c.startIn(name)
		}
		time.Sleep(time.Minute)
		c.answers(c.merit, "web", 80, "aws 10.4.0.1", "gcp 10.2.0.1")
		c.offers("aws", 8080, "10.4.0.1")
		for _, api := range []*kubetest.API{c.aws, c.merit} {
			c.answers(api, "web", 8080, "aws 10.4.0.1")
		}
		time.Sleep(10 * time.Minute)
		c.answers(c.merit, "web", 8080, "aws 10.4.0.1")
		// What the silent one serves at a port that others have keeps its endpoints.
		c.offers("aws", 80, "10.4.0.1")
		c.answers(c.merit, "web", 80, "aws 10.4.0.1")
		c.gcp.Start()
		c.answers(c.merit, "web", 80, "aws 10.4.0.1", "gcp 10.2.0.1")
		c.answers(c.aws, "web", 80, "aws 10.4.0.1", "gcp 10.2.0.1")
	})
}

// A port is renamed, cluster after cluster, while clients go on.
func TestAPortIsRenamedClusterAfterCluster(t *testing.T) {
	inClusterset(t, func(c *clusterset) {
		for _, name := range []string{"gcp", "aws", "merit"} {
			c.startIn(name)
		}
		c.offers("aws", 80, "10.4.0.1")
		c.answers(c.merit, "web", 80, "aws 10.4.0.1")
		c.offers("gcp", 80, "10.2.0.1")
		all := func() {
			t.Helper()
			for _, api := range c.apis() {
				c.answers(api, "web", 80, "aws 10.4.0.1", "gcp 10.2.0.1")
			}
		}
		all()
		renamed := svc("web", ports(corev1.ServicePort{Name: "web", Protocol: corev1.ProtocolTCP, Port: 80}))
		c.put(c.aws, renamed, "10.4.0.1")
		c.conflict(c.aws, "web", "PortConflict")
		c.conflict(c.gcp, "web", "PortConflict")
		all()
		c.put(c.gcp, renamed, "10.2.0.1")
		c.conflict(c.gcp, "web", "NoConflicts")
		all()
	})
}

// A cluster that exported first and doesn't answer keeps its port, under another name where the
// local export needs the name.
func TestASilentClusterKeepsWhatItServes(t *testing.T) {
	inClusterset(t, func(c *clusterset) {
		running := map[string]*instance{}
		for _, name := range []string{"aws", "merit"} {
			running[name] = c.startIn(name)
		}
		c.offers("gcp", 80, "10.2.0.1")
		c.answers(c.merit, "web", 80, "gcp 10.2.0.1")
		c.answers(c.aws, "web", 80, "gcp 10.2.0.1")
		c.offers("aws", 80, "10.4.0.1")
		c.answers(c.aws, "web", 80, "aws 10.4.0.1", "gcp 10.2.0.1")
		c.answers(c.merit, "web", 80, "aws 10.4.0.1", "gcp 10.2.0.1")
		c.gcp.Stop()
		for name, i := range running {
			i.stop()
			c.startIn(name)
		}
		c.offers("aws", 8080, "10.4.0.1")
		c.answers(c.aws, "web", 8080, "aws 10.4.0.1")
		for _, api := range []*kubetest.API{c.aws, c.merit} {
			c.answers(api, "web", 80, "gcp 10.2.0.1")
		}
		c.gcp.Start()
		time.Sleep(time.Minute)
		c.answers(c.aws, "web", 8080, "aws 10.4.0.1")
		for _, api := range []*kubetest.API{c.aws, c.merit} {
			c.answers(api, "web", 80, "gcp 10.2.0.1")
		}
	})
}

// importing lets the exports of aws be imported in some namespaces.
func importing(namespaces ...string) func(*Config) {
	return func(cfg *Config) {
		for i := range cfg.Remotes {
			if r := &cfg.Remotes[i]; r.Name == "aws" {
				r.Imports = func(namespace string) bool { return slices.Contains(namespaces, namespace) }
			}
		}
	}
}

// What a remote had exported goes when its namespace is refused, also if the remote never answers
// after that.
func TestNamespacesOfASilentRemoteAreRefused(t *testing.T) {
	inClusterset(t, func(c *clusterset) {
		for api, ip := range map[*kubetest.API]string{c.aws: "10.4.0.1", c.merit: "10.6.0.1"} {
			c.put(api, svc("web"), ip)
			c.export(api, "web", 10)
		}
		c.put(c.aws, svc("db"), "10.4.0.2")
		c.export(c.aws, "db", 10)
		i := c.start()
		c.imported(c.gcp, "web", "aws 10.4.0.1:8080", "merit 10.6.0.1:8080")
		c.imported(c.gcp, "db", "aws 10.4.0.2:8080")
		i.stop()
		c.aws.Stop()
		i = c.start(importing("shop"))
		time.Sleep(2 * firstImports)
		c.imported(c.gcp, "web", "aws 10.4.0.1:8080", "merit 10.6.0.1:8080")
		c.imported(c.gcp, "db", "aws 10.4.0.2:8080")
		i.stop()
		c.start(importing())
		c.imported(c.gcp, "web", "merit 10.6.0.1:8080")
		wait(t, "the end of db", func() error {
			if c.gcp.Get("serviceimports", "shop", "db", &v1beta1.ServiceImport{}) {
				return errors.New("it still exists")
			}
			return nil
		})
		c.aws.Start()
	})
}

// A remote may export in some namespaces only.
func TestExportsOfOtherNamespacesAreRefused(t *testing.T) {
	inClusterset(t, func(c *clusterset) {
		c.gcp.Put(t, "namespaces", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system"}})
		for api, ip := range map[*kubetest.API]string{c.aws: "10.4.0.1", c.merit: "10.6.0.1"} {
			c.put(api, svc("web"), ip)
			c.export(api, "web", 10)
		}
		put(t, c.aws, "kube-system", svc("dns", func(s *corev1.Service) { s.Labels = nil }), [2]string{"dns-1", "10.4.0.2"})
		c.export(c.aws, "dns", 10, func(x *v1beta1.ServiceExport) { x.Namespace = "kube-system" })
		i := c.start(importing("shop"))
		c.imported(c.gcp, "web", "aws 10.4.0.1:8080", "merit 10.6.0.1:8080")
		refused := func(i *instance, want map[string][]string) {
			t.Helper()
			wait(t, "the status of imports", func() error {
				got := map[string][]string{}
				for _, im := range i.Status().MultiCluster.Imports {
					got[im.Name] = im.Refused
					if !im.InOrder() {
						return fmt.Errorf("%+v", im)
					}
				}
				if fmt.Sprint(got) != fmt.Sprint(want) {
					return fmt.Errorf("%v, want %v", got, want)
				}
				return nil
			})
		}
		refused(i, map[string][]string{"shop/web": nil, "kube-system/dns": {"aws"}})
		// What was imported before goes when the setting changes.
		i.stop()
		i = c.start(importing())
		c.imported(c.gcp, "web", "merit 10.6.0.1:8080")
		refused(i, map[string][]string{"shop/web": {"aws"}, "kube-system/dns": {"aws"}})
		if all := kubetest.All[v1beta1.ServiceImport](c.gcp, "serviceimports", "kube-system"); len(all) > 0 {
			t.Errorf("%v", all)
		}
	})
}
