package controllers_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

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

// testDrain drains a remote that has endpoints of both families, while the local cluster has some
// of one.
func (b *mirrorBed) testDrain(t *testing.T) {
	i := b.start(t, nil)
	both := svc("web", global, func(s *corev1.Service) {
		policy := corev1.IPFamilyPolicyPreferDualStack
		s.Spec.IPFamilyPolicy = &policy
	})
	must(t, putService(t.Context(), b.aws, "shop", both, slice(both, "web-1", "10.4.0.1"), slice(both, "web-6", "fd00:10:4::1")))
	must(t, putService(t.Context(), b.gcp, "shop", both, slice(both, "web-1", "10.2.0.1")))
	b.leadsTo(t, globalName, "10.2.0.1", "10.4.0.1", "fd00:10:4::1")
	drained := func(value string) {
		t.Helper()
		patchService(t, b.aws, metav1.NamespaceDefault, "kubernetes", `{"metadata":{"annotations":{"mirror.semaphore.uw.io/drained":`+value+`}}}`)
	}
	t.Cleanup(func() {
		_, err := b.aws.Client().CoreV1().Services(metav1.NamespaceDefault).Patch(context.WithoutCancel(t.Context()), "kubernetes",
			types.MergePatchType, []byte(`{"metadata":{"annotations":{"mirror.semaphore.uw.io/drained":null}}}`), metav1.PatchOptions{})
		must(t, err)
	})
	drained(`"true"`)
	b.leadsTo(t, globalName, "10.2.0.1", "fd00:10:4::1")
	i.listed(t, globalName, func(s statuspage.Service) bool {
		return slices.Equal(s.Drained, []string{"aws"}) && slices.Equal(s.Needed["aws"], []string{"IPv6 http"})
	})
	must(t, putSlice(t.Context(), b.gcp, "shop", slice(both, "web-6", "fd00:10:2::1")))
	b.leadsTo(t, globalName, "10.2.0.1", "fd00:10:2::1")
	drained("null")
	b.leadsTo(t, globalName, "10.2.0.1", "10.4.0.1", "fd00:10:2::1", "fd00:10:4::1")
	b.settled(t, i)
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

func (b *mirrorBed) testLocalFirst(t *testing.T) {
	node := func(name, zone string) {
		t.Helper()
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if zone != "" {
			n.Labels = map[string]string{corev1.LabelTopologyZone: zone}
		}
		_, err := b.gcp.Client().CoreV1().Nodes().Create(t.Context(), n, metav1.CreateOptions{})
		must(t, err)
		t.Cleanup(func() {
			if err := b.gcp.Client().CoreV1().Nodes().Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	hinted := func(want map[string][]string) {
		t.Helper()
		wait(t, "hints", func() error {
			got := map[string][]string{}
			for _, sl := range b.slices(t, globalName) {
				for _, e := range sl.Endpoints {
					if e.Hints == nil {
						continue
					}
					for _, z := range e.Hints.ForZones {
						got[e.Addresses[0]] = append(got[e.Addresses[0]], z.Name)
					}
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				return fmt.Errorf("%v, want %v", got, want)
			}
			return nil
		})
	}
	b.start(t, nil)
	s := svc("web", global, localFirst)
	must(t, putService(t.Context(), b.aws, "shop", s, slice(s, "web-1", "10.4.0.1")))
	must(t, putService(t.Context(), b.gcp, "shop", s, slice(s, "web-1", "10.2.0.1")))
	// Without nodes, or with nodes without a zone, the zone is the one without a name.
	hinted(map[string][]string{"10.2.0.1": {""}, "10.4.0.1": {"remote.mirror.semaphore.uw.io"}})
	node("one", "b")
	hinted(map[string][]string{"10.2.0.1": {"b"}, "10.4.0.1": {"remote.mirror.semaphore.uw.io"}})
	node("two", "a")
	node("three", "")
	hinted(map[string][]string{"10.2.0.1": {"", "a", "b"}, "10.4.0.1": {"remote.mirror.semaphore.uw.io"}})
	if d := b.service(t, globalName).Spec.TrafficDistribution; d == nil || *d != corev1.ServiceTrafficDistributionPreferClose {
		t.Errorf("traffic distribution %v", d)
	}

	// Only with the label.
	for _, c := range []interface{ Client() kubernetes.Interface }{b.aws, b.gcp} {
		u, err := c.Client().CoreV1().Services("shop").Get(t.Context(), "web", metav1.GetOptions{})
		must(t, err)
		delete(u.Labels, firstMark)
		_, err = c.Client().CoreV1().Services("shop").Update(t.Context(), u, metav1.UpdateOptions{})
		must(t, err)
	}
	hinted(map[string][]string{})
	wait(t, "no traffic distribution", func() error {
		if d := b.service(t, globalName).Spec.TrafficDistribution; d != nil {
			return errors.New(*d)
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

func (b *mirrorBed) testOrphans(t *testing.T) {
	i := b.start(t, nil)
	web := svc("web", global)
	must(t, putService(t.Context(), b.aws, "shop", web, slice(web, "web-1", "10.4.0.1")))
	must(t, putService(t.Context(), b.merit, "shop", web, slice(web, "web-1", "10.6.0.1")))
	must(t, putService(t.Context(), b.aws, "shop", svc("api"), slice(svc("api"), "api-1", "10.4.0.2")))
	must(t, putService(t.Context(), b.merit, "shop", svc("api"), slice(svc("api"), "api-1", "10.6.0.2")))
	b.quiet(t, i)
	i.stop()

	// The prefix of aws is another one, and merit is no longer configured.
	without := func(cfg *mirror.Config) {
		cfg.Remotes = cfg.Remotes[:1]
		cfg.Remotes[0].Prefix = "amazon"
	}
	i = b.start(t, without)
	b.leadsTo(t, "amazon-shop-73736d-api", "10.4.0.2")
	b.gone(t, "aws-shop-73736d-api")
	b.gone(t, "merit-shop-73736d-api")
	b.leadsTo(t, globalName, "10.4.0.1")
	b.in(t, "aws")
	b.settled(t, i)
	i.stop()

	i = b.start(t, func(cfg *mirror.Config) { cfg.GlobalSelector = nil })
	b.gone(t, globalName)
	b.leadsTo(t, "merit-shop-73736d-api", "10.6.0.2")
	b.leadsTo(t, "aws-shop-73736d-api", "10.4.0.2")
	i.stop()
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
