package mirror

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

// TestEndpointsFollowWhileTheServiceIsRefused makes the API server refuse changes of a Service.
func TestEndpointsFollowWhileTheServiceIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakes) {
		put(t, f.aws, "shop", svc("web"), [2]string{"web-1", "10.4.0.1"})
		i := f.start(t, nil)
		leadsTo(t, f.gcp, webName, "10.4.0.1")
		refuse(f.gcp, "patch services")
		other := ports(corev1.ServicePort{Name: "http", Port: 81, Protocol: corev1.ProtocolTCP})
		put(t, f.aws, "shop", svc("web", other), [2]string{"web-1", "10.4.0.2"})
		leadsTo(t, f.gcp, webName, "10.4.0.2")
		i.listed(t, webName, func(s statuspage.Service) bool { return strings.Contains(s.Error, "patch service") })
		f.gcp.Hook(func(h *kubetest.Hooks) { h.Fail = nil })
		i.listed(t, webName, func(s statuspage.Service) bool { return s.Error == "" })
	})
}

// TestRemovalsThatHang never answers changes of a Service, and later answers them after 20 s.
func TestRemovalsThatHang(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakes) {
		put(t, f.aws, "shop", svc("web"), [2]string{"web-1", "10.4.0.1"})
		i := f.start(t, nil)
		leadsTo(t, f.gcp, webName, "10.4.0.1")
		f.gcp.Hook(func(h *kubetest.Hooks) { h.Silent = func(r kubetest.Request) bool { return r.Resource == "services" } })
		other := ports(corev1.ServicePort{Name: "http", Port: 81, Protocol: corev1.ProtocolTCP})
		put(t, f.aws, "shop", svc("web", other))
		time.Sleep(time.Second)
		f.aws.Remove("endpointslices", "shop", "web-1")
		put(t, f.aws, "shop", svc("web", other), [2]string{"web-2", "10.4.0.2"})
		leadsTo(t, f.gcp, webName, "10.4.0.2")
		f.gcp.Hook(func(h *kubetest.Hooks) {
			h.Silent, h.Before = nil, func(r kubetest.Request) {
				if r.Resource == "services" {
					time.Sleep(20 * time.Second)
				}
			}
		})
		time.Sleep(5 * time.Minute)
		i.listed(t, webName, func(s statuspage.Service) bool { return s.Error == "" })
	})
}

// TestEndpointsLeaveWhileNewSlicesAreRefused makes the API server refuse new slices, as with a
// quota.
func TestEndpointsLeaveWhileNewSlicesAreRefused(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakes) {
		s := svc("web")
		put(t, f.aws, "shop", s, [2]string{"web-1", "10.4.0.1"}, [2]string{"web-2", "10.4.0.2"})
		f.start(t, nil)
		leadsTo(t, f.gcp, webName, "10.4.0.1", "10.4.0.2")
		refuse(f.gcp, "create endpointslices")
		put(t, f.aws, "shop", s, [2]string{"web-3", "10.4.0.3"})
		f.aws.Remove("endpointslices", "shop", "web-1")
		leadsTo(t, f.gcp, webName, "10.4.0.2")
	})
}

// TestEndpointsLeaveWhileAnotherOneOfTheirSliceIsRefused has an admission webhook that refuses
// an address, while another one leaves, or is no longer ready.
func TestEndpointsLeaveWhileAnotherOneOfTheirSliceIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakes) {
		s := svc("web")
		put(t, f.aws, "shop", s)
		sl := kubetest.EndpointSlice(s, "web-1", "10.4.0.1", "10.4.0.2")
		sl.Namespace = "shop"
		f.aws.Put(t, "endpointslices", sl)
		f.start(t, nil)
		leadsTo(t, f.gcp, webName, "10.4.0.1", "10.4.0.2")
		var admit func(kubetest.Request, *unstructured.Unstructured) *metav1.Status
		f.gcp.Hook(func(h *kubetest.Hooks) {
			h.Admit = func(_ kubetest.Request, o *unstructured.Unstructured) *metav1.Status {
				if text, _ := o.MarshalJSON(); strings.Contains(string(text), "10.4.0.3") {
					return kubetest.Failure(422, metav1.StatusReasonInvalid)
				}
				return nil
			}
		})
		sl = kubetest.EndpointSlice(s, "web-1", "10.4.0.2", "10.4.0.3")
		sl.Namespace = "shop"
		f.aws.Put(t, "endpointslices", sl)
		leadsTo(t, f.gcp, webName, "10.4.0.2")
		// One that is no longer ready stays.
		f.gcp.Hook(func(h *kubetest.Hooks) { h.Admit, admit = nil, h.Admit })
		sl.Endpoints = kubetest.Endpoints("10.4.0.1", "10.4.0.2")
		f.aws.Put(t, "endpointslices", sl)
		leadsTo(t, f.gcp, webName, "10.4.0.1", "10.4.0.2")
		f.gcp.Hook(func(h *kubetest.Hooks) { h.Admit = admit })
		no := false
		sl.Endpoints = kubetest.Endpoints("10.4.0.1", "10.4.0.2", "10.4.0.3")
		sl.Endpoints[0].Conditions.Ready = &no
		f.aws.Put(t, "endpointslices", sl)
		time.Sleep(settle)
		local := kubetest.All[discoveryv1.EndpointSlice](f.gcp, "endpointslices", home)[0]
		if e := local.Endpoints; len(e) != 2 || *e[0].Conditions.Ready || !*e[1].Conditions.Ready {
			t.Errorf("endpoints %v", e)
		}
		f.gcp.Hook(func(h *kubetest.Hooks) { h.Admit = nil })
		leadsTo(t, f.gcp, webName, "10.4.0.1", "10.4.0.2", "10.4.0.3")
		sl.Endpoints = sl.Endpoints[1:]
		f.aws.Put(t, "endpointslices", sl)
		leadsTo(t, f.gcp, webName, "10.4.0.2", "10.4.0.3")
	})
}

// TestBadPartIsRejectedAlone adds a part to a global service that no API server accepts.
func TestBadPartIsRejectedAlone(t *testing.T) {
	web, app := origin.Key{Namespace: "shop", Name: "web"}, "a/b/c"
	aws, merit := setOf("aws", merged), setOf("merit", merged)
	for name, bad := range map[string]corev1.ServicePort{
		"name":        {Name: "A_B", Port: 81, Protocol: corev1.ProtocolTCP},
		"number":      {Name: "b", Port: 70000, Protocol: corev1.ProtocolTCP},
		"protocol":    {Name: "b", Port: 81, Protocol: "ICMP"},
		"appProtocol": {Name: "b", Port: 81, Protocol: corev1.ProtocolTCP, AppProtocol: &app},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			w.says(t, aws, newOrigin(web, 1, 80, origin.Traits{}))
			hostile := svc("web", ports(bad))
			hostile.Namespace = "shop"
			o := origin.TrimService(hostile, nil)
			if o.Reject == "" {
				t.Fatal("not rejected")
			}
			w.has(merit, web, "bad", "10.6.0.1")
			w.says(t, merit, o)
			s := w.plans[globalName]
			if s == nil || !slices.Equal(s.Clusters, []string{"aws"}) || len(s.Spec.Ports) != 1 || len(s.Slices) != 0 {
				t.Errorf("%+v", s)
			}
			sl, _ := origin.TrimSlice(&discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "bad", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
				Ports:      []discoveryv1.EndpointPort{{Name: &bad.Name, Port: &bad.Port, Protocol: &bad.Protocol, AppProtocol: bad.AppProtocol}},
			}, nil)
			if sl.Reject == "" {
				t.Error("its slice is not rejected")
			}
		})
	}
}

// TestRemoteIsBounded adds more objects to a remote than its bounds allow.
func TestRemoteIsBounded(t *testing.T) {
	clusters := testClusters()
	aws, merit := setOf("aws", mirrored), setOf("merit", mirrored)
	key := func(n int) origin.Key {
		return origin.Key{Namespace: fmt.Sprint("shop-", n%2), Name: fmt.Sprintf("web-%02d", n)} // a namespace has half of the room
	}
	fill := func(w *world, from, to int) {
		for n := from; n < to; n++ {
			w.has(aws, key(n), fmt.Sprintf("slice-%02d", n), fmt.Sprintf("10.4.0.%d", n+1), fmt.Sprintf("10.4.1.%d", n+1))
			w.origin(aws, key(n), newOrigin(key(n), int64(100-n), 80, origin.Traits{}))
		}
	}
	addresses := func(w *world) (n int) {
		for name := range w.services {
			n += len(w.leads(name))
		}
		return n
	}
	for _, c := range []struct {
		name                        string
		bounds                      Bounds
		services, slices, addresses int
	}{
		{"services", Bounds{Services: 4}, 4, 4, 8},
		{"slices", Bounds{Slices: 4}, 10, 4, 8},
		{"addresses", Bounds{Addresses: 7}, 10, 4, 7},
		{"all within", Bounds{10, 10, 20}, 10, 10, 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			bounded := slices.Clone(clusters)
			bounded[1].bounds = c.bounds
			w := newWorld(bounded...)
			fill(w, 0, 10)
			w.origin(merit, key(0), newOrigin(key(0), 1, 80, origin.Traits{}))
			w.settle(t)
			check := func(when string) {
				t.Helper()
				if len(w.services) != c.services+1 || addresses(w) != c.addresses {
					t.Fatalf("%s: %d services, %d addresses", when, len(w.services)-1, addresses(w))
				}
			}
			check("at first")
			before := w.version
			w.again()
			w.settle(t)
			if check("after a restart"); w.version != before {
				t.Errorf("a restart wrote %d objects", w.version-before)
			}
			// The room of a service that goes is used by others.
			for name, s := range w.plans {
				if s.Origin.Cluster == "aws" && len(s.Slices) > 0 {
					t.Logf("%s goes", name)
					w.origin(aws, s.Origin.Key, nil)
					w.slice(aws, s.Slices[0].origin, nil)
					break
				}
			}
			w.settle(t)
			if c.name != "all within" && (addresses(w) != c.addresses || c.bounds.Services > 0 && len(w.services) != c.services+1) {
				t.Errorf("free room is not used: %d services, %d addresses", len(w.services)-1, addresses(w))
			}
		})
	}
	t.Run("existing services stay", func(t *testing.T) {
		w := newWorld(clusters...)
		fill(w, 0, 10)
		w.settle(t)
		uid := w.services[Name("c1", key(9))].UID
		bounded := slices.Clone(clusters)
		bounded[1].bounds = Bounds{3, 3, 3}
		before, said := w.state, w.said
		w.restart(bounded...)
		for _, id := range w.order {
			for _, k := range keysOf(before.sets[id]) {
				w.origin(id, k, before.sets[id].Service(k))
			}
			for sl := range said[id] {
				w.slice(id, nil, sl)
			}
			w.contact(id, true, false)
		}
		fill(w, 10, 12)
		w.settle(t)
		if len(w.services) != 10 || addresses(w) != 20 || w.services[Name("c1", key(9))].UID != uid {
			t.Errorf("%d services and %d addresses of 10 and 20", len(w.services), addresses(w))
		}
		// Existing services follow their origins, with as many addresses as they have.
		sl := w.sets[aws].Slices(key(1))["slice-01"]
		w.slice(aws, sl, nil)
		w.has(aws, key(1), "slice-01", "10.4.0.2", "10.4.9.9")
		w.settle(t)
		if got := w.leads(Name("c1", key(1))); !slices.Equal(got, []string{"10.4.0.2", "10.4.9.9"}) {
			t.Errorf("it leads to %v", got)
		}
	})
}

// TestFreedQuotaIsUsed deletes a service that used the quota of many others, more than are
// retried at a time.
func TestFreedQuotaIsUsed(t *testing.T) {
	const bound, others = 2 * mostNext, 5 * mostNext
	for name, bounds := range map[string]Bounds{"slices": {Slices: 2 * bound}, "addresses": {Addresses: 2 * bound}, "both": {Slices: 2 * bound, Addresses: 2 * bound}} { // a namespace has half
		t.Run(name, func(t *testing.T) {
			clusters := testClusters()
			clusters[1].bounds = bounds
			w, id, large := newWorld(clusters...), setOf("aws", mirrored), origin.Key{Namespace: "shop", Name: "large"}
			for n := range bound {
				w.has(id, large, fmt.Sprintf("large-%d", n), fmt.Sprintf("10.4.0.%d", n))
			}
			w.origin(id, large, newOrigin(large, 1, 80, origin.Traits{}))
			w.settle(t)
			for n := range others {
				k := origin.Key{Namespace: "shop", Name: fmt.Sprintf("web-%d", n)}
				w.has(id, k, k.Name, fmt.Sprintf("10.4.%d.%d", 1+n/200, 1+n%200))
				w.origin(id, k, newOrigin(k, 1, 80, origin.Traits{}))
			}
			w.settle(t)
			w.origin(id, large, nil)
			w.settle(t)
			used := 0
			for name := range w.services {
				used += len(w.leads(name))
			}
			if used != bound {
				t.Errorf("%d addresses in the room of %d", used, bound)
			}
			w.checkRooms(t)
		})
	}
}

// TestFailuresOfOneRemotesServicesDontDelayAnothers makes the local API server answer writes of
// one remote's services never, or with errors.
func TestFailuresOfOneRemotesServicesDontDelayAnothers(t *testing.T) {
	for name, interfere := range map[string]func(api *kubetest.API){
		"errors": func(api *kubetest.API) { refuse(api, " aws-") },
		"never": func(api *kubetest.API) {
			api.Hook(func(h *kubetest.Hooks) {
				h.Silent = func(r kubetest.Request) bool { return strings.HasPrefix(r.Name, "aws-") }
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, f *fakes) {
				interfere(f.gcp)
				for n := range 4 * DefaultWorkers {
					name := fmt.Sprintf("web-%d", n)
					put(t, f.aws, "shop", svc(name), [2]string{name, "10.4.0.1"})
				}
				i := f.start(t, nil)
				wait(t, "services of aws", func() error {
					if n := len(i.Status().Services); n < DefaultWorkers {
						return fmt.Errorf("%d", n)
					}
					return nil
				})
				put(t, f.merit, "shop", svc("web"), [2]string{"web-1", "10.6.0.1"})
				leadsTo(t, f.gcp, "merit-shop-73736d-web", "10.6.0.1")
			})
		})
	}
}

// TestUnreachableRemoteDoesntDelayOthers starts with a remote that never answers and has no
// mirrors.
func TestUnreachableRemoteDoesntDelayOthers(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakes) {
		f.merit.Stop()
		put(t, f.aws, "shop", svc("web"), [2]string{"web-1", "10.4.0.1"})
		i := f.start(t, nil)
		leadsTo(t, f.gcp, webName, "10.4.0.1")
		if err := i.Ready(); err != nil {
			t.Errorf("not ready: %v", err)
		}
		wait(t, "the status of merit", func() error {
			for _, c := range i.Status().Clusters {
				if c.Name != "merit" {
					continue
				}
				if services := c.Watches[0]; services.Synced || services.Error == "" {
					return fmt.Errorf("%+v", services)
				}
				return nil
			}
			return errors.New("not listed")
		})
	})
}

// TestListsAreQuorumReads checks that no list may be served from an API server's watch
// cache, which may lack writes of the previous leader.
func TestListsAreQuorumReads(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakes) {
		put(t, f.aws, "shop", svc("web"), [2]string{"web-1", "10.4.0.1"})
		f.start(t, nil)
		leadsTo(t, f.gcp, webName, "10.4.0.1")
		for _, api := range []*kubetest.API{f.gcp, f.aws} {
			if lists := api.Lists(); len(lists) == 0 || slices.Contains(lists, "0") {
				t.Errorf("lists at the versions %q", lists)
			}
		}
	})
}

// TestServiceThatTurnsForeignLosesOurSlices removes our annotations and labels from a
// mirror, as another owner of the Service would.
func TestServiceThatTurnsForeignLosesOurSlices(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakes) {
		put(t, f.aws, "shop", svc("web"), [2]string{"web-1", "10.4.0.1"})
		i := f.start(t, nil)
		foreign := leadsTo(t, f.gcp, webName, "10.4.0.1")
		foreign.Labels, foreign.Annotations = nil, map[string]string{"owner": "me"}
		f.gcp.Put(t, "services", foreign)
		leadsTo(t, f.gcp, webName)
		i.listed(t, webName, func(s statuspage.Service) bool { return strings.Contains(s.Error, errForeign.Error()) })
		var now corev1.Service
		if f.gcp.Get("services", home, webName, &now); now.Annotations["owner"] != "me" || len(now.Labels) > 0 {
			t.Errorf("changed: %v %v", now.Labels, now.Annotations)
		}
		// Once it is deleted, ours is created at once.
		f.gcp.Remove("services", home, webName)
		leadsTo(t, f.gcp, webName, "10.4.0.1")
	})
}

// TestMirrorsOfARemovedRemoteAreRetained removes a remote from the configuration.
func TestMirrorsOfARemovedRemoteAreRetained(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakes) {
		put(t, f.aws, "shop", svc("web"), [2]string{"web-1", "10.4.0.1"})
		put(t, f.aws, "shop", svc("both", global), [2]string{"both-1", "10.4.0.2"})
		put(t, f.merit, "shop", svc("both", global), [2]string{"both-1", "10.6.0.2"})
		merge := func(cfg *Config) { cfg.GlobalSelector = selector(t, globalMark+"=true") }
		const bothName = "gl-shop-73736d-both"
		i := f.start(t, merge)
		uid := leadsTo(t, f.gcp, webName, "10.4.0.1").UID
		leadsTo(t, f.gcp, bothName, "10.4.0.2", "10.6.0.2")
		i.stop()

		without := func(grace time.Duration) func(*Config) {
			return func(cfg *Config) {
				merge(cfg)
				cfg.Remotes, cfg.RemovalGrace = cfg.Remotes[1:], grace
			}
		}
		i = f.start(t, without(time.Hour))
		i.listed(t, webName, func(s statuspage.Service) bool {
			return s.RemovedAt != nil && time.Until(*s.RemovedAt) > 0 && strings.Contains(s.Held, "aws, which is no longer configured")
		})
		// The tunnel to it is likely removed, too.
		leadsTo(t, f.gcp, bothName, "10.6.0.2")
		i.listed(t, bothName, func(s statuspage.Service) bool { return s.RemovedAt != nil && strings.Contains(s.Held, "part of aws") })
		i.stop()

		// With another name the remote is the same: its mirrors keep their addresses.
		i = f.start(t, func(cfg *Config) {
			merge(cfg)
			cfg.Remotes[0].Name, cfg.RemovalGrace = "amazon", time.Hour
		})
		wait(t, "the new name", func() error {
			var s corev1.Service
			if f.gcp.Get("services", home, webName, &s); s.UID != uid {
				t.Fatalf("created again: %s", s.UID)
			} else if s.Annotations[annotCluster] != "amazon" {
				return fmt.Errorf("%v", s.Annotations)
			}
			return nil
		})
		leadsTo(t, f.gcp, webName, "10.4.0.1")
		leadsTo(t, f.gcp, bothName, "10.4.0.2", "10.6.0.2")
		i.stop()

		f.start(t, without(time.Millisecond))
		wait(t, "its removal", func() error {
			if f.gcp.Get("services", home, webName, &corev1.Service{}) {
				return errors.New("it exists")
			}
			return nil
		})
		leadsTo(t, f.gcp, bothName, "10.6.0.2")
	})
}

// TestDepartedRemoteIsIgnored restarts with a remote that left in order and is still configured.
func TestDepartedRemoteIsIgnored(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakes) {
		put(t, f.aws, "shop", svc("web"), [2]string{"web-1", "10.4.0.1"})
		put(t, f.aws, "shop", svc("both", global), [2]string{"both-1", "10.4.0.2"})
		put(t, f.merit, "shop", svc("both", global), [2]string{"both-1", "10.6.0.2"})
		const bothName = "gl-shop-73736d-both"
		merge := func(cfg *Config) {
			cfg.GlobalSelector, cfg.RemovalGrace = selector(t, globalMark+"=true"), time.Hour
		}
		i := f.start(t, merge)
		leadsTo(t, f.gcp, webName, "10.4.0.1")
		leadsTo(t, f.gcp, bothName, "10.4.0.2", "10.6.0.2")
		i.stop()
		i = f.start(t, func(cfg *Config) {
			merge(cfg)
			cfg.Departed = []string{"aws", "another"}
		})
		leadsTo(t, f.gcp, bothName, "10.6.0.2")
		wait(t, "the end of its mirrors and slices", func() error {
			status := i.Status()
			if len(status.Former) > 0 || !slices.Equal(status.Departed, []string{"aws"}) {
				return fmt.Errorf("former %+v, departed %v", status.Former, status.Departed)
			}
			return nil
		})
		if got := names(f.gcp); !slices.Equal(got, []string{bothName}) {
			t.Errorf("services %v", got)
		}
		i.stop()
		// The cluster itself leaves all others.
		put(t, f.gcp, "shop", svc("both", global), [2]string{"both-1", "10.2.0.2"})
		i = f.start(t, func(cfg *Config) {
			merge(cfg)
			cfg.Departed = []string{"aws", "merit"}
		})
		leadsTo(t, f.gcp, bothName, "10.2.0.2")
		i.stop()
		f.gcp.Remove("services", "shop", "both")
		f.gcp.Remove("endpointslices", "shop", "both-1")
		// Until it is no longer listed as departed.
		f.start(t, merge)
		leadsTo(t, f.gcp, webName, "10.4.0.1")
		leadsTo(t, f.gcp, bothName, "10.4.0.2", "10.6.0.2")
	})
}

// TestFinalizerCostsOneRequest delays the deletion of a mirror by a finalizer.
func TestFinalizerCostsOneRequest(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakes) {
		put(t, f.aws, "shop", svc("web"), [2]string{"web-1", "10.4.0.1"})
		i := f.start(t, nil)
		held := leadsTo(t, f.gcp, webName, "10.4.0.1")
		held.Finalizers = []string{"example.org/slow"}
		f.gcp.Put(t, "services", held)
		f.aws.Remove("endpointslices", "shop", "web-1")
		f.aws.Remove("services", "shop", "web")
		i.listed(t, webName, func(s statuspage.Service) bool { return strings.Contains(s.Held, "finalizer") })
		deletions := func() (n int) {
			for _, r := range f.gcp.Writes() {
				if r.Verb == kubetest.Delete && r.Resource == "services" && r.Name == webName {
					n++
				}
			}
			return n
		}
		// A request with an outdated version is repeated. From here on the deletion is known.
		asked := deletions()
		for n := range 10 {
			put(t, f.aws, "shop", svc("other"), [2]string{"other-1", fmt.Sprintf("10.4.1.%d", n)})
			leadsTo(t, f.gcp, "aws-shop-73736d-other", fmt.Sprintf("10.4.1.%d", n))
		}
		if n := deletions(); asked == 0 || asked > 10 || n > asked {
			t.Errorf("%d requests to delete it until the deletion was known, %d afterwards", asked, n-asked)
		}
		// Its origin exists again before it is gone: it must be created again.
		put(t, f.aws, "shop", svc("web"), [2]string{"web-1", "10.4.0.3"})
		f.gcp.Get("services", home, webName, held)
		held.Finalizers = nil
		f.gcp.Put(t, "services", held)
		f.gcp.Remove("services", home, webName)
		if again := leadsTo(t, f.gcp, webName, "10.4.0.3"); again.UID == held.UID {
			t.Error("the one that was deleted still exists")
		}
	})
}

// TestLocalServerFromABackupConverges restores the local API server from a backup.
func TestLocalServerFromABackupConverges(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakes) {
		put(t, f.aws, "shop", svc("web"), [2]string{"web-1", "10.4.0.1"})
		f.start(t, nil)
		leadsTo(t, f.gcp, webName, "10.4.0.1")
		backup := f.gcp.Save()
		for n := range 20 {
			put(t, f.aws, "shop", svc("web"), [2]string{"web-1", fmt.Sprintf("10.4.1.%d", n)})
			leadsTo(t, f.gcp, webName, fmt.Sprintf("10.4.1.%d", n))
		}
		f.gcp.Restore(backup)
		leadsTo(t, f.gcp, webName, "10.4.1.19")
	})
}
