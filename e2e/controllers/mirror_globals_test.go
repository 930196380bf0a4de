package controllers_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/mirror"
)

// in waits until a global service is annotated with these clusters.
func (b *mirrorBed) in(t *testing.T, want string) *corev1.Service {
	t.Helper()
	var got *corev1.Service
	wait(t, "the clusters of "+globalName, func() error {
		got = b.service(t, globalName)
		if list := got.Annotations[annotClusters]; list != want {
			return fmt.Errorf("%q, want %q", list, want)
		}
		return nil
	})
	return got
}

func (b *mirrorBed) testGlobal(t *testing.T) {
	i := b.start(t, nil)
	s := svc("web", global)
	must(t, putService(t.Context(), b.aws, "shop", s, slice(s, "web-1", "10.4.0.1")))
	b.leadsTo(t, globalName, "10.4.0.1")
	first := b.in(t, "aws")
	more := svc("web", global, ports(
		corev1.ServicePort{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP},
		corev1.ServicePort{Name: "metrics", Port: 9090, Protocol: corev1.ProtocolTCP},
	))
	// The slices of all three have one name.
	must(t, putService(t.Context(), b.merit, "shop", more, slice(more, "web-1", "10.6.0.1")))
	must(t, putService(t.Context(), b.gcp, "shop", s, slice(s, "web-1", "10.2.0.1")))
	b.leadsTo(t, globalName, "10.2.0.1", "10.4.0.1", "10.6.0.1")
	got := b.in(t, "aws,gcp,merit")
	if got.UID != first.UID {
		t.Error("created again")
	}
	if len(got.Spec.Ports) != 2 {
		t.Errorf("ports %+v", got.Spec.Ports)
	}
	for _, sl := range b.slices(t, globalName) {
		for _, e := range sl.Endpoints {
			if e.Hints != nil || e.NodeName != nil || e.Zone != nil || e.TargetRef != nil {
				t.Errorf("endpoint %+v", e)
			}
		}
	}
	// A global service isn't mirrored as well.
	b.settled(t, i)

	must(t, removeService(t.Context(), b.aws, "shop", "web"))
	b.leadsTo(t, globalName, "10.2.0.1", "10.6.0.1")
	b.in(t, "gcp,merit")
	must(t, removeService(t.Context(), b.merit, "shop", "web"))
	b.leadsTo(t, globalName, "10.2.0.1")
	if got := b.in(t, "gcp"); len(got.Spec.Ports) != 1 {
		t.Errorf("ports %+v", got.Spec.Ports)
	}
	// Without the label it is no longer global.
	patchService(t, b.gcp, "shop", "web", `{"metadata":{"labels":{"mirror.semaphore.uw.io/global-service":null}}}`)
	b.gone(t, globalName)
}

// testMirrorsOfMirrors runs the mirrors of two clusters with selectors that exclude services,
// and so match each other's mirrors.
func (b *mirrorBed) testMirrorsOfMirrors(t *testing.T) {
	everything := func(cfg *mirror.Config, remote *testbed.Cluster) {
		cfg.MirrorSelector, cfg.GlobalSelector = selector(t, mirrorMark+"!=false"), selector(t, globalMark+"!=false")
		client := b.clientOf(t, remote, false)
		cfg.Remotes = []mirror.Remote{{
			Name: remote.Name, Prefix: remote.Name, PodSubnets: remote.PodSubnets, Tier: 1,
			Client: func() (kube.Client, error) { return client, nil },
		}}
	}
	plain := func(s *corev1.Service) { s.Labels = nil }
	add := func(name, inAWS, inGCP string) {
		t.Helper()
		s := svc(name, plain)
		must(t, putService(t.Context(), b.aws, "shop", s, slice(s, name+"-1", inAWS)))
		must(t, putService(t.Context(), b.gcp, "shop", s, slice(s, name+"-1", inGCP)))
	}
	// The second one has mirrors to read when it starts.
	add("web", "10.4.0.1", "10.2.0.1")
	here := b.start(t, func(cfg *mirror.Config) { everything(cfg, b.aws) })
	b.leadsTo(t, globalName, "10.2.0.1", "10.4.0.1")
	there := b.start(t, func(cfg *mirror.Config) {
		cfg.Cluster, cfg.Client = b.aws.Name, b.clientOf(t, b.aws, true)
		everything(cfg, b.gcp)
	})
	add("last", "10.4.0.2", "10.2.0.2")
	b.leadsTo(t, "gl-shop-73736d-last", "10.2.0.2", "10.4.0.2")
	for _, c := range []struct {
		in     *testbed.Cluster
		remote string
		i      *mirrorInstance
	}{{b.gcp, "aws", here}, {b.aws, "gcp", there}} {
		var want []string
		for _, service := range []string{"default-73736d-kubernetes", "shop-73736d-last", "shop-73736d-web"} {
			want = append(want, c.remote+"-"+service, "gl-"+service)
		}
		slices.Sort(want)
		names := func() (got []string) {
			list, err := c.in.Client().CoreV1().Services(home).List(t.Context(), metav1.ListOptions{})
			must(t, err)
			for i := range list.Items {
				got = append(got, list.Items[i].Name)
			}
			slices.Sort(got)
			return got
		}
		wait(t, "the services in "+c.in.Name, func() error {
			if got := names(); len(got) < len(want) {
				return fmt.Errorf("%v, want %v", got, want)
			}
			return nil
		})
		c.i.still(t)
		if got := names(); !slices.Equal(got, want) {
			t.Errorf("services in %s: %v, want %v", c.in.Name, got, want)
		}
	}
}

// testDeparted lets a remote leave: first while it is still configured, as long as agents have
// tunnels to it.
func (b *mirrorBed) testDeparted(t *testing.T) {
	grace := func(cfg *mirror.Config) { cfg.RemovalGrace = time.Hour }
	i := b.start(t, grace)
	web := svc("web", global)
	must(t, putService(t.Context(), b.aws, "shop", web, slice(web, "web-1", "10.4.0.1")))
	must(t, putService(t.Context(), b.merit, "shop", web, slice(web, "web-1", "10.6.0.1")))
	must(t, putService(t.Context(), b.merit, "shop", svc("api"), slice(svc("api"), "api-1", "10.6.0.2")))
	b.leadsTo(t, globalName, "10.4.0.1", "10.6.0.1")
	b.leadsTo(t, "merit-shop-73736d-api", "10.6.0.2")
	i.stop()

	for name, remotes := range map[string]int{"still configured": 2, "no longer configured": 1} {
		i = b.start(t, func(cfg *mirror.Config) {
			grace(cfg)
			cfg.Remotes, cfg.Departed = cfg.Remotes[:remotes], []string{"merit"}
		})
		b.leadsTo(t, globalName, "10.4.0.1")
		b.in(t, "aws")
		b.gone(t, "merit-shop-73736d-api")
		wait(t, "nothing left of what is "+name, func() error {
			if former := i.Status().Former; len(former) > 0 {
				return fmt.Errorf("%+v", former)
			}
			return nil
		})
		i.stop()
		i = b.start(t, grace)
		b.leadsTo(t, globalName, "10.4.0.1", "10.6.0.1")
		b.leadsTo(t, "merit-shop-73736d-api", "10.6.0.2")
		i.stop()
	}
}

func (b *mirrorBed) testConflicts(t *testing.T) {
	i := b.start(t, nil)
	younger := svc("web", global, headless, ports(corev1.ServicePort{Name: "http", Port: 81, Protocol: corev1.ProtocolTCP}))
	older := svc("web", global)
	must(t, putService(t.Context(), b.merit, "shop", older, slice(older, "web-1", "10.6.0.1")))
	anotherSecond(t)
	must(t, putService(t.Context(), b.aws, "shop", younger, slice(younger, "web-1", "10.4.0.1")))
	b.leadsTo(t, globalName, "10.4.0.1", "10.6.0.1")
	b.in(t, "aws,merit")
	check := func() {
		t.Helper()
		b.settled(t, i)
		if got := b.service(t, globalName); len(got.Spec.Ports) != 1 || got.Spec.Ports[0].Port != 80 || got.Spec.ClusterIP == corev1.ClusterIPNone {
			t.Errorf("address %s, ports %+v: not those of the oldest", got.Spec.ClusterIP, got.Spec.Ports)
		}
	}
	check()
	i.listed(t, globalName, func(s statuspage.Service) bool {
		return slices.Equal(s.Conflicts, []statuspage.Conflict{{Cluster: "aws", What: "headless or not"}, {Cluster: "aws", What: "port http 81/TCP: http 80/TCP elsewhere"}})
	})
	b.recorded(t, globalName, "Conflict")
	accepted := func(want string) {
		t.Helper()
		wait(t, "the order of acceptance", func() error {
			if got := b.service(t, globalName).Annotations[annotAccepted]; got != want {
				return fmt.Errorf("%q, want %q", got, want)
			}
			return nil
		})
	}
	accepted("merit,aws")
	// In whichever order the remotes are read.
	for range 3 {
		i.stop()
		i = b.start(t, nil)
		check()
	}
	// The remote that joins last decides nothing, however old its object is.
	must(t, removeService(t.Context(), b.aws, "shop", "web"))
	accepted("merit")
	must(t, removeService(t.Context(), b.merit, "shop", "web"))
	b.gone(t, globalName)
	private := younger.DeepCopy()
	private.Labels = nil
	must(t, putService(t.Context(), b.merit, "shop", private))
	anotherSecond(t)
	must(t, putService(t.Context(), b.aws, "shop", older, slice(older, "web-1", "10.4.0.1")))
	b.leadsTo(t, globalName, "10.4.0.1")
	uid := b.service(t, globalName).UID
	must(t, putService(t.Context(), b.merit, "shop", younger, slice(younger, "web-1", "10.6.0.1")))
	b.leadsTo(t, globalName, "10.4.0.1", "10.6.0.1")
	check()
	accepted("aws,merit")
	if b.service(t, globalName).UID != uid {
		t.Error("created again for the remote that came last")
	}
}

// anotherSecond waits until new objects have a later creation time than existing ones: its
// resolution is a second.
func anotherSecond(t *testing.T) {
	t.Helper()
	created := time.Now()
	wait(t, "another second", func() error {
		if time.Now().Unix() <= created.Unix() {
			return errors.New("not yet")
		}
		return nil
	})
}

func (b *mirrorBed) testStale(t *testing.T) {
	i := b.start(t, func(cfg *mirror.Config) { cfg.Remotes[1].StaleAfter = 3 * time.Second })
	s := svc("web", global)
	must(t, putService(t.Context(), b.aws, "shop", s, slice(s, "web-1", "10.4.0.1")))
	must(t, putService(t.Context(), b.merit, "shop", s, slice(s, "web-1", "10.6.0.1")))
	must(t, putService(t.Context(), b.merit, "shop", svc("own"), slice(svc("own"), "own-1", "10.6.0.2")))
	b.leadsTo(t, "merit-shop-73736d-own", "10.6.0.2")
	only := svc("only", global)
	must(t, putService(t.Context(), b.merit, "shop", only, slice(only, "only-1", "10.6.0.3")))
	b.leadsTo(t, globalName, "10.4.0.1", "10.6.0.1")
	b.leadsTo(t, "gl-shop-73736d-only", "10.6.0.3")

	b.merit.StopAPI()
	b.leadsTo(t, globalName, "10.4.0.1")
	b.in(t, "aws,merit")
	// The last endpoints of a service, and mirrors, are retained.
	b.leadsTo(t, "gl-shop-73736d-only", "10.6.0.3")
	b.leadsTo(t, "merit-shop-73736d-own", "10.6.0.2")
	// The clusters in contact have no ready endpoint: outdated ones are better than none.
	sl := slice(s, "web-1", "10.4.0.1")
	no := false
	sl.Endpoints[0].Conditions.Ready = &no
	must(t, putSlice(t.Context(), b.aws, "shop", sl))
	b.leadsTo(t, globalName, "10.4.0.1", "10.6.0.1")
	must(t, putSlice(t.Context(), b.aws, "shop", slice(s, "web-1", "10.4.0.1")))
	b.leadsTo(t, globalName, "10.4.0.1")

	must(t, b.merit.StartAPI(t.Context()))
	b.leadsTo(t, globalName, "10.4.0.1", "10.6.0.1")
	i.stop()
}

func (b *mirrorBed) testRestart(t *testing.T) {
	i := b.start(t, nil)
	web, api := svc("web", global), svc("api")
	must(t, putService(t.Context(), b.aws, "shop", web, slice(web, "web-1", "10.4.0.1")))
	must(t, putService(t.Context(), b.gcp, "shop", web, slice(web, "web-1", "10.2.0.1")))
	must(t, putService(t.Context(), b.aws, "shop", api, slice(api, "api-1", "10.4.0.2"), slice(api, "api-2", "10.4.0.3")))
	must(t, putService(t.Context(), b.merit, "shop", svc("old"), slice(svc("old"), "old-1", "10.6.0.4")))
	b.quiet(t, i)
	i.stop()

	i = b.start(t, nil)
	if n := b.quiet(t, i); n != 0 {
		t.Errorf("%d writes after a restart with nothing to do", n)
	}
	i.stop()

	// Only endpoints that were deleted meanwhile are removed.
	must(t, b.aws.Client().DiscoveryV1().EndpointSlices("shop").Delete(t.Context(), "api-2", metav1.DeleteOptions{}))
	must(t, removeService(t.Context(), b.merit, "shop", "old"))
	uid := b.service(t, globalName).UID
	i = b.start(t, nil)
	b.leadsTo(t, "aws-shop-73736d-api", "10.4.0.2")
	b.gone(t, "merit-shop-73736d-old")
	if n := b.quiet(t, i); n != 3 {
		t.Errorf("%d writes, want 3 deletions", n)
	}
	if b.service(t, globalName).UID != uid {
		t.Error("created again")
	}
}

func (b *mirrorBed) testRestartBlind(t *testing.T) {
	i := b.start(t, nil)
	both, only := svc("web", global), svc("only", global)
	must(t, putService(t.Context(), b.aws, "shop", both, slice(both, "web-1", "10.4.0.1")))
	must(t, putService(t.Context(), b.merit, "shop", both, slice(both, "web-1", "10.6.0.1")))
	must(t, putService(t.Context(), b.merit, "shop", only, slice(only, "only-1", "10.6.0.2")))
	must(t, putService(t.Context(), b.merit, "shop", svc("api"), slice(svc("api"), "api-1", "10.6.0.3")))
	b.quiet(t, i)
	i.stop()

	b.merit.StopAPI()
	i = b.start(t, nil)
	// Endpoints of merit stay, also where the other cluster changes.
	must(t, putService(t.Context(), b.aws, "shop", both, slice(both, "web-1", "10.4.0.1", "10.4.0.2")))
	b.leadsTo(t, globalName, "10.4.0.1", "10.4.0.2", "10.6.0.1")
	b.in(t, "aws,merit")
	must(t, removeService(t.Context(), b.aws, "shop", "web"))
	b.leadsTo(t, globalName, "10.6.0.1")
	b.in(t, "merit")
	b.leadsTo(t, "gl-shop-73736d-only", "10.6.0.2")
	b.leadsTo(t, "merit-shop-73736d-api", "10.6.0.3")
	if err := i.Ready(); err != nil {
		t.Errorf("not ready although everything known is written: %v", err)
	}
	i.listed(t, "merit-shop-73736d-api", func(s statuspage.Service) bool { return s.Held != "" })
	i.stop()

	// After a second restart merit is in contact again.
	i = b.start(t, nil)
	wait(t, "the local state", i.Ready)
	must(t, b.merit.StartAPI(t.Context()))
	must(t, removeService(t.Context(), b.merit, "shop", "only"))
	b.gone(t, "gl-shop-73736d-only")
	b.leadsTo(t, globalName, "10.6.0.1")
	b.settled(t, i)
}

func (b *mirrorBed) testTakeover(t *testing.T) {
	// Objects as the original tool leaves them.
	left := func(name string, mark labels.Set, annotations map[string]string) *corev1.Service {
		s := svc(name, func(s *corev1.Service) {
			s.Labels, s.Annotations, s.Spec.Selector = mark, annotations, nil
		})
		must(t, putService(t.Context(), b.gcp, home, s))
		return b.service(t, name)
	}
	prefixed := func(prefix string) labels.Set { return labels.Set{labelMirrored: "true", labelPrefix: prefix} }
	kept := left("aws-shop-73736d-api", prefixed("aws"), nil)
	left("aws-shop-73736d-gone", prefixed("aws"), nil)
	left("ancient-shop-73736d-api", prefixed("ancient"), nil)
	merged := left(globalName, labels.Set{labelGlobal: "true"}, map[string]string{annotClusters: "aws,gcp"})
	old := slice(svc("web"), "gl-web-1", "10.4.0.1")
	old.Labels = map[string]string{
		discoveryv1.LabelServiceName: globalName, discoveryv1.LabelManagedBy: programs.ServiceMirror,
		"mirrored-endpoint-slice": "true", "mirror-endpointslice-sync-name": "aws",
	}
	must(t, putSlice(t.Context(), b.gcp, home, old))

	web, api := svc("web", global), svc("api")
	must(t, putService(t.Context(), b.aws, "shop", web, slice(web, "web-1", "10.4.0.1")))
	must(t, putService(t.Context(), b.aws, "shop", api, slice(api, "api-1", "10.4.0.2")))
	i := b.start(t, nil)
	b.settled(t, i)
	b.gone(t, "aws-shop-73736d-gone")
	b.gone(t, "ancient-shop-73736d-api")
	if got := b.service(t, kept.Name); got.UID != kept.UID || got.Annotations[annotName] != "api" {
		t.Errorf("mirror created again, or not marked: %v", got.Annotations)
	}
	if got := b.in(t, "aws"); got.UID != merged.UID {
		t.Error("global service created again")
	}
	b.leadsTo(t, globalName, "10.4.0.1")
}
