package mirror

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/internal/run"
)

const webName = "aws-shop-73736d-web"

// refusing has requests fail whose verb, resource and name contain a text.
func refusing(text string) func(verb, resource, name string) *metav1.Status {
	return func(verb, resource, name string) *metav1.Status {
		if strings.Contains(verb+" "+resource+" "+name, text) {
			return failure(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
		}
		return nil
	}
}

// TestARefusedServiceHasItsEndpoints has the API server refuse each change to a
// Service. What it leads to changes nevertheless.
func TestARefusedServiceHasItsEndpoints(t *testing.T) {
	f, s := newFakes(t), svc("web")
	f.aws.has(t, "shop", s, slice(s, "web-1", "10.4.0.1"))
	i := f.start(t, nil)
	f.gcp.comes(t, webName, "10.4.0.1")
	f.gcp.fails(refusing("patch services"))
	f.aws.has(t, "shop", svc("web", ports(corev1.ServicePort{Name: "http", Port: 81, Protocol: corev1.ProtocolTCP})), slice(s, "web-1", "10.4.0.2"))
	f.gcp.comes(t, webName, "10.4.0.2")
	i.listed(t, webName, func(s ServiceStatus) bool { return strings.Contains(s.Error, "patch service") })
	f.gcp.fails(nil)
	i.listed(t, webName, func(s ServiceStatus) bool { return s.Error == "" })
}

// TestDeadPodsLoseTrafficWithoutRoomForNewOnes has the API server refuse new slices,
// as with a quota.
func TestDeadPodsLoseTrafficWithoutRoomForNewOnes(t *testing.T) {
	f, s := newFakes(t), svc("web")
	f.aws.has(t, "shop", s, slice(s, "web-1", "10.4.0.1"), slice(s, "web-2", "10.4.0.2"))
	f.start(t, nil)
	f.gcp.comes(t, webName, "10.4.0.1", "10.4.0.2")
	f.gcp.fails(refusing("create endpointslices"))
	f.aws.has(t, "shop", s, slice(s, "web-3", "10.4.0.3"))
	f.aws.take("endpointslices", "shop", "web-1")
	f.gcp.comes(t, webName, "10.4.0.2")
}

// TestABadPartIsRejectedAlone has a remote take part in a global service with what no
// API server takes.
func TestABadPartIsRejectedAlone(t *testing.T) {
	web, app := Key{"shop", "web"}, "a/b/c"
	aws, merit := setID{"aws", merged}, setID{"merit", merged}
	for name, bad := range map[string]corev1.ServicePort{
		"name":        {Name: "A_B", Port: 81, Protocol: corev1.ProtocolTCP},
		"number":      {Name: "b", Port: 70000, Protocol: corev1.ProtocolTCP},
		"protocol":    {Name: "b", Port: 81, Protocol: "ICMP"},
		"appProtocol": {Name: "b", Port: 81, Protocol: corev1.ProtocolTCP, AppProtocol: &app},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			w.says(t, aws, newOrigin(web, 1, 80, Traits{}))
			hostile := svc("web", ports(bad))
			hostile.Namespace = "shop"
			o := trimOrigin(hostile, nil)
			if o.Reject == "" {
				t.Fatal("not rejected")
			}
			w.has(merit, web, "bad", "10.6.0.1")
			w.says(t, merit, o)
			s := w.memo.services[globalName]
			if s == nil || !slices.Equal(s.Clusters, []string{"aws"}) || len(s.Spec.Ports) != 1 || len(s.Slices) != 0 {
				t.Errorf("%+v", s)
			}
			sl, _ := trimSlice(&discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "bad", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
				Ports:      []discoveryv1.EndpointPort{{Name: &bad.Name, Port: &bad.Port, Protocol: &bad.Protocol, AppProtocol: bad.AppProtocol}},
			})
			if sl.Reject == "" {
				t.Error("its slice is not rejected")
			}
		})
	}
}

// TestARemoteIsBounded has one remote have more than it may.
func TestARemoteIsBounded(t *testing.T) {
	clusters := testClusters()
	aws, merit := setID{"aws", mirrored}, setID{"merit", mirrored}
	key := func(n int) Key { return Key{"shop", fmt.Sprintf("web-%02d", n)} }
	fill := func(w *world, from, to int) {
		for n := from; n < to; n++ {
			w.has(aws, key(n), fmt.Sprintf("slice-%02d", n), fmt.Sprintf("10.4.0.%d", n+1), fmt.Sprintf("10.4.1.%d", n+1))
			w.origin(aws, key(n), newOrigin(key(n), int64(100-n), 80, Traits{}))
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
			w.origin(merit, key(0), newOrigin(key(0), 1, 80, Traits{}))
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
			// What goes makes room for what waits.
			for name, s := range w.memo.services {
				if s.Origin.Cluster == "aws" && len(s.Slices) > 0 {
					t.Logf("%s goes", name)
					w.origin(aws, s.Origin.Key, nil)
					w.slice(aws, s.Slices[0].origin, nil)
					break
				}
			}
			w.settle(t)
			if c.name != "all within" && (addresses(w) != c.addresses || c.bounds.Services > 0 && len(w.services) != c.services+1) {
				t.Errorf("the room that became free is not used: %d services, %d addresses", len(w.services)-1, addresses(w))
			}
		})
	}
	t.Run("what is there stays", func(t *testing.T) {
		w := newWorld(clusters...)
		fill(w, 0, 10)
		w.settle(t)
		uid := w.services[Name("c1", key(9))].UID
		bounded := slices.Clone(clusters)
		bounded[1].bounds = Bounds{3, 3, 3}
		before := w.Snapshot
		w.restart(bounded...)
		for _, id := range w.order {
			for k, o := range before.sets[id].origins {
				w.origin(id, k, o)
			}
			for _, all := range before.sets[id].slices {
				for _, sl := range all {
					w.slice(id, nil, sl)
				}
			}
			w.contact(id, true, false)
		}
		fill(w, 10, 12)
		w.settle(t)
		if len(w.services) != 10 || addresses(w) != 20 || w.services[Name("c1", key(9))].UID != uid {
			t.Errorf("%d services and %d addresses of 10 and 20", len(w.services), addresses(w))
		}
		// What is there goes on to follow its origin, without new addresses.
		sl := w.sets[aws].slices[key(1)]["slice-01"]
		w.slice(aws, sl, nil)
		w.has(aws, key(1), "slice-01", "10.4.0.2", "10.4.9.9")
		w.settle(t)
		if got := w.leads(Name("c1", key(1))); !slices.Equal(got, []string{"10.4.0.2"}) {
			t.Errorf("it leads to %v", got)
		}
	})
}

// TestRoomThatBecomesFreeIsUsed has one service go that took the room of many others:
// more than are tried again at a time.
func TestRoomThatBecomesFreeIsUsed(t *testing.T) {
	const bound, others = 2 * refillings, 5 * refillings
	for name, bounds := range map[string]Bounds{"slices": {Slices: bound}, "addresses": {Addresses: bound}, "both": {Slices: bound, Addresses: bound}} {
		t.Run(name, func(t *testing.T) {
			clusters := testClusters()
			clusters[1].bounds = bounds
			w, id, large := newWorld(clusters...), setID{"aws", mirrored}, Key{"shop", "large"}
			for n := range bound {
				w.has(id, large, fmt.Sprintf("large-%d", n), fmt.Sprintf("10.4.0.%d", n))
			}
			w.origin(id, large, newOrigin(large, 1, 80, Traits{}))
			w.settle(t)
			for n := range others {
				k := Key{"shop", fmt.Sprintf("web-%d", n)}
				w.has(id, k, k.Name, fmt.Sprintf("10.4.%d.%d", 1+n/200, 1+n%200))
				w.origin(id, k, newOrigin(k, 1, 80, Traits{}))
			}
			w.settle(t)
			w.origin(id, large, nil)
			for range others {
				if w.settle(t); !w.memo.more {
					break
				}
			}
			used := 0
			for name := range w.services {
				used += len(w.leads(name))
			}
			if w.memo.more || used != bound {
				t.Errorf("%d addresses in the room of %d, more to come: %v", used, bound, w.memo.more)
			}
			w.checkRooms(t)
		})
	}
}

// TestOneRemotesFailuresDontDelayAnothers has the local API server answer requests
// about one remote's services never, or with errors.
func TestOneRemotesFailuresDontDelayAnothers(t *testing.T) {
	for name, happens := range map[string]func(f *fakeAPI){
		"errors": func(f *fakeAPI) { f.fail = refusing(" aws-") },
		"never": func(f *fakeAPI) {
			f.silent = func(_, _, name string) bool { return strings.HasPrefix(name, "aws-") }
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakes(t)
			happens(f.gcp)
			for n := range 4 * DefaultWorkers {
				s := svc(fmt.Sprintf("web-%d", n))
				f.aws.has(t, "shop", s, slice(s, s.Name, "10.4.0.1"))
			}
			i := f.start(t, nil)
			wait(t, "services of aws", func() error {
				if len(i.Status().Services) < 4*DefaultWorkers {
					return errors.New("not yet")
				}
				return nil
			})
			s := svc("web")
			f.merit.has(t, "shop", s, slice(s, "web-1", "10.6.0.1"))
			f.gcp.comes(t, "merit-shop-73736d-web", "10.6.0.1")
		})
	}
}

// TestOneRemotesFloodOfEventsDoesntDelayAnothers has one remote say more at once than a
// pass takes in, and another one a single thing after that: it is in the next pass, and
// the flood in as many as it takes, each of which asks for the one after it.
func TestOneRemotesFloodOfEventsDoesntDelayAnothers(t *testing.T) {
	const flood = 3*partOfTap + 1
	f := newFakes(t)
	c := f.controller(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	for _, task := range c.Tasks() {
		if task != run.Task(c.loop) {
			running.Go(func() { _ = task.Run(ctx) })
		}
	}
	source := func(cluster string) *source {
		return c.sources[slices.IndexFunc(c.sources, func(s *source) bool { return s.id.cluster == cluster })]
	}
	wait(t, "all to be read", func() error {
		c.pass(time.Now())
		if !c.ready || !source("aws").origins.synced || !source("merit").origins.synced {
			return errors.New("not yet")
		}
		return nil
	})
	for n := range flood {
		f.aws.has(t, "shop", svc(fmt.Sprintf("web-%d", n)))
	}
	wait(t, "the flood", func() error {
		if n := source("aws").origins.Len(); n < flood {
			return fmt.Errorf("%d of %d", n, flood)
		}
		return nil
	})
	f.merit.has(t, "shop", svc("web"))
	wait(t, "the single one", func() error {
		if source("merit").origins.Len() == 0 {
			return errors.New("not yet")
		}
		return nil
	})
	for n := range flood/partOfTap + 1 {
		c.trigger.Fire()
		<-c.trigger.C()
		names, _ := c.pass(time.Now())
		var more bool
		select {
		case <-c.trigger.C():
			more = true
		default:
		}
		left := flood - n*partOfTap
		if aws := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !strings.HasPrefix(name, "aws-") }); len(aws) != min(left, partOfTap) {
			t.Errorf("pass %d has %d services of the flood", n, len(aws))
		}
		if has := slices.Contains(names, "merit-shop-73736d-web"); has != (n == 0) {
			t.Errorf("pass %d has the other remote's service: %v", n, has)
		}
		if !more && left > partOfTap {
			t.Errorf("pass %d doesn't ask for another one", n)
		}
	}
}

// TestADeadRemoteKeepsNobodyFromWork starts with a remote that never answers and has
// left nothing here.
func TestADeadRemoteKeepsNobodyFromWork(t *testing.T) {
	f, s := newFakes(t), svc("web")
	f.merit.server.Close()
	f.aws.has(t, "shop", s, slice(s, "web-1", "10.4.0.1"))
	i := f.start(t, nil)
	f.gcp.comes(t, webName, "10.4.0.1")
	if err := i.Ready(); err != nil {
		t.Errorf("not ready: %v", err)
	}
	wait(t, "the status of merit", func() error {
		if services, _ := i.watches(t, "merit"); services.Synced || services.Error == "" {
			return fmt.Errorf("%+v", services)
		}
		return nil
	})
}

// TestWhatIsReadIsNotOld holds that no list is one that the server had at some time:
// what a former leader made seconds ago would be missing.
func TestWhatIsReadIsNotOld(t *testing.T) {
	f, s := newFakes(t), svc("web")
	f.aws.has(t, "shop", s, slice(s, "web-1", "10.4.0.1"))
	f.start(t, nil)
	f.gcp.comes(t, webName, "10.4.0.1")
	for _, api := range []*fakeAPI{f.gcp, f.aws} {
		api.mu.Lock()
		for _, from := range api.lists {
			if from == "0" {
				t.Error("a list at version 0")
			}
		}
		api.mu.Unlock()
	}
}

// TestATakenServiceLosesOurSlices has a person take a mirror over.
func TestATakenServiceLosesOurSlices(t *testing.T) {
	f, s := newFakes(t), svc("web")
	f.aws.has(t, "shop", s, slice(s, "web-1", "10.4.0.1"))
	i := f.start(t, nil)
	taken := f.gcp.comes(t, webName, "10.4.0.1")
	taken.Labels, taken.Annotations = nil, map[string]string{"owner": "me"}
	f.gcp.put(t, "services", taken)
	f.gcp.comes(t, webName)
	i.listed(t, webName, func(s ServiceStatus) bool { return strings.Contains(s.Error, errForeign.Error()) })
	var now corev1.Service
	if f.gcp.get("services", home, webName, &now); now.Annotations["owner"] != "me" || len(now.Labels) > 0 {
		t.Errorf("changed: %v %v", now.Labels, now.Annotations)
	}
	// When it is gone, ours takes its place at once.
	f.gcp.take("services", home, webName)
	f.gcp.comes(t, webName, "10.4.0.1")
}

// TestARemovedRemoteLingers takes a remote out of the configuration.
func TestARemovedRemoteLingers(t *testing.T) {
	f, s := newFakes(t), svc("web")
	f.aws.has(t, "shop", s, slice(s, "web-1", "10.4.0.1"))
	both := svc("both", global)
	f.aws.has(t, "shop", both, slice(both, "both-1", "10.4.0.2"))
	f.merit.has(t, "shop", both, slice(both, "both-1", "10.6.0.2"))
	merge := func(cfg *Config) { cfg.GlobalSelector = selector(t, globalMark+"=true") }
	const bothName = "gl-shop-73736d-both"
	i := f.start(t, merge)
	uid := f.gcp.comes(t, webName, "10.4.0.1").UID
	f.gcp.comes(t, bothName, "10.4.0.2", "10.6.0.2")
	i.stop()

	without := func(grace time.Duration) func(*Config) {
		return func(cfg *Config) {
			merge(cfg)
			cfg.Remotes, cfg.RemovalGrace = cfg.Remotes[1:], grace
		}
	}
	i = f.start(t, without(time.Hour))
	i.listed(t, webName, func(s ServiceStatus) bool {
		return s.RemovedAt != nil && time.Until(*s.RemovedAt) > 0 && strings.Contains(s.Held, "aws, which is no longer configured")
	})
	f.gcp.comes(t, bothName, "10.4.0.2", "10.6.0.2")
	i.stop()

	// Called another name, it is the same: its mirrors keep their addresses.
	i = f.start(t, func(cfg *Config) {
		merge(cfg)
		cfg.Remotes[0].Name, cfg.RemovalGrace = "amazon", time.Hour
	})
	wait(t, "the new name", func() error {
		var s corev1.Service
		if f.gcp.get("services", home, webName, &s); s.UID != uid {
			t.Fatalf("made anew: %s", s.UID)
		} else if s.Annotations[annotCluster] != "amazon" {
			return fmt.Errorf("%v", s.Annotations)
		}
		return nil
	})
	f.gcp.comes(t, webName, "10.4.0.1")
	i.stop()

	i = f.start(t, without(time.Millisecond))
	wait(t, "its end", func() error {
		if f.gcp.get("services", home, webName, &corev1.Service{}) {
			return errors.New("still there")
		}
		return nil
	})
	f.gcp.comes(t, bothName, "10.6.0.2")
	i.stop()
}

// TestAFinalizerCostsOneRequest has something hold up the end of a mirror.
func TestAFinalizerCostsOneRequest(t *testing.T) {
	f, s := newFakes(t), svc("web")
	f.aws.has(t, "shop", s, slice(s, "web-1", "10.4.0.1"))
	i := f.start(t, nil)
	held := f.gcp.comes(t, webName, "10.4.0.1")
	held.Finalizers = []string{"example.org/slow"}
	f.gcp.put(t, "services", held)
	f.aws.take("endpointslices", "shop", "web-1")
	f.aws.take("services", "shop", "web")
	i.listed(t, webName, func(s ServiceStatus) bool { return strings.Contains(s.Held, "finalizer") })
	// Who asks with a version that is outdated asks again; from here on all know that it goes.
	asked := f.gcp.written("delete services " + webName)
	other := svc("other")
	for n := range 10 {
		f.aws.has(t, "shop", other, slice(other, "other-1", fmt.Sprintf("10.4.1.%d", n)))
		f.gcp.comes(t, "aws-shop-73736d-other", fmt.Sprintf("10.4.1.%d", n))
	}
	if n := f.gcp.written("delete services " + webName); asked == 0 || asked > 10 || n > asked {
		t.Errorf("%d requests to delete it until it was known to go, %d afterwards", asked, n-asked)
	}
	// Its origin is back before it is gone: then it must be made anew.
	f.aws.has(t, "shop", s, slice(s, "web-1", "10.4.0.3"))
	f.gcp.mu.Lock()
	f.gcp.objects[key("services", home, webName)].SetFinalizers(nil)
	f.gcp.remove("services", f.gcp.objects[key("services", home, webName)])
	f.gcp.mu.Unlock()
	if again := f.gcp.comes(t, webName, "10.4.0.3"); again.UID == held.UID {
		t.Error("the one that went is still there")
	}
}

// TestEndpointsGoWhenNobodyAsksForThem switches the deprecated kind off.
func TestEndpointsGoWhenNobodyAsksForThem(t *testing.T) {
	f, s := newFakes(t), svc("web")
	f.aws.has(t, "shop", s, slice(s, "web-1", "10.4.0.1"))
	others := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: home, Name: "others"}} //nolint:staticcheck // See observedEndpoints.
	f.gcp.put(t, "endpoints", others)
	i := f.start(t, func(cfg *Config) { cfg.LegacyEndpoints = true })
	there := func(name string) bool { return f.gcp.get("endpoints", home, name, &metav1.PartialObjectMetadata{}) }
	wait(t, "endpoints", func() error {
		if !there(webName) {
			return errors.New("none")
		}
		return nil
	})
	i.stop()
	f.start(t, nil)
	wait(t, "their end", func() error {
		if there(webName) {
			return errors.New("still there")
		}
		return nil
	})
	if !there("others") {
		t.Error("somebody else's are gone")
	}
	f.gcp.comes(t, webName, "10.4.0.1")
}

// TestALocalServerFromABackupConverges has the local API server forget what it did
// of late.
func TestALocalServerFromABackupConverges(t *testing.T) {
	f, s := newFakes(t), svc("web")
	f.aws.has(t, "shop", s, slice(s, "web-1", "10.4.0.1"))
	f.start(t, nil)
	f.gcp.comes(t, webName, "10.4.0.1")
	backup := f.gcp.save()
	for n := range 20 {
		f.aws.has(t, "shop", s, slice(s, "web-1", fmt.Sprintf("10.4.1.%d", n)))
		f.gcp.comes(t, webName, fmt.Sprintf("10.4.1.%d", n))
	}
	f.gcp.restore(backup)
	f.gcp.comes(t, webName, "10.4.1.19")
}
