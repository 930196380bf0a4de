package mirror

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kube-semaphore/kube-semaphore/internal/keep"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/synctest"
)

// all adds all services to the writer for a time, each 20 ms.
func (i *instance) all(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		i.mu.Lock()
		i.state.touchAll()
		i.mu.Unlock()
		i.trigger.Fire()
	}
	synctest.Wait()
}

func lag(api *kubetest.API, resources ...string) {
	api.Hook(func(h *kubetest.Hooks) { h.Lag = kubetest.Lagging(resources...) })
}

func caughtUp(api *kubetest.API) { api.Hook(func(h *kubetest.Hooks) { h.Lag = nil }) }

// reached returns the addresses of all slices.
func reached(api *kubetest.API) (all []string) {
	for _, sl := range kubetest.All[discoveryv1.EndpointSlice](api, "endpointslices", "") {
		for i := range sl.Endpoints {
			all = append(all, sl.Endpoints[i].Addresses...)
		}
	}
	slices.Sort(all)
	return all
}

// TestWatchThatLags publishes, changes and withdraws a service of aws while the watches of the local
// cluster show nothing. Whatever compares it meanwhile, there are few writes, and what must go is gone
// as soon as they have caught up.
func TestWatchThatLags(t *testing.T) {
	address := func(n int) string { return fmt.Sprintf("10.4.0.%d", n) }
	web := func(c *clusterset, of string, n int) {
		s := svc("web")
		switch of {
		case "global":
			global(s)
		case "import":
			s.Labels = nil
			c.export(c.aws, "web", 1)
		}
		put(c.t, c.aws, "shop", s, [2]string{"web-1", address(n)})
	}
	gone := func(c *clusterset) {
		c.aws.Remove("serviceexports", "shop", "web")
		c.aws.Remove("endpointslices", "shop", "web-1")
		c.aws.Remove("services", "shop", "web")
	}
	for _, of := range []string{"mirror", "global", "import"} {
		t.Run(of, func(t *testing.T) {
			inClusterset(t, func(c *clusterset) {
				i := c.start(func(cfg *Config) {
					cfg.MirrorSelector, cfg.GlobalSelector = selector(t, mirrorMark+"=true"), selector(t, globalMark+"=true")
				})
				time.Sleep(time.Minute)
				step := func(what string, most int, want []string, do ...func()) {
					t.Helper()
					lag(c.gcp)
					before := len(c.gcp.Writes())
					for _, f := range do {
						f()
						i.all(1500 * time.Millisecond)
					}
					if n := len(c.gcp.Writes()) - before; n < 1 || n > most {
						t.Errorf("%s: %d writes, want %d at most: %v", what, n, most, c.gcp.Writes()[before:])
					}
					time.Sleep(importSpacing)
					caughtUp(c.gcp)
					time.Sleep(4*passSpacing + shortestRetry)
					synctest.Wait()
					if got := reached(c.gcp); !slices.Equal(got, want) {
						t.Errorf("%s: endpoints %v, want %v", what, got, want)
					}
					time.Sleep(time.Minute)
					synctest.Wait()
					before = len(c.gcp.Writes())
					i.all(time.Second)
					time.Sleep(time.Hour)
					if all := c.gcp.Writes()[before:]; len(all) > 0 {
						t.Errorf("%s: %v at rest", what, all)
					}
					if past := i.past.Open(time.Now()); len(past) > 0 {
						t.Errorf("%s: overridden %v", what, past)
					}
				}
				step("created and changed", 40, []string{address(2)}, func() { web(c, of, 1) }, func() { web(c, of, 2) })
				step("changed twice", 30, []string{address(4)}, func() { web(c, of, 3) }, func() { web(c, of, 4) })
				step("changed and changed back", 30, []string{address(4)}, func() { web(c, of, 5) }, func() { web(c, of, 4) })
				step("deleted", 40, nil, func() { gone(c) })
				step("created and deleted", 40, nil, func() { web(c, of, 6) }, func() { gone(c) })
				web(c, of, 7)
				time.Sleep(time.Minute)
				step("deleted and created", 40, []string{address(8)}, func() { gone(c) }, func() { web(c, of, 8) })
			})
		})
	}
}

// TestImportKeepsItsAddressesWhileAWatchLags creates an import while one of the watches of its objects
// shows nothing: it is never written without the addresses that it had.
func TestImportKeepsItsAddressesWhileAWatchLags(t *testing.T) {
	for _, lagging := range []string{"services", "serviceimports", "endpointslices"} {
		t.Run(lagging, func(t *testing.T) {
			inClusterset(t, func(c *clusterset) {
				c.put(c.aws, svc("web"), "10.4.0.1")
				i := c.start()
				time.Sleep(time.Minute)
				c.gcp.Hook(func(h *kubetest.Hooks) {
					h.Lag = kubetest.Lagging(lagging)
					h.Admit = func(q kubetest.Request, o *unstructured.Unstructured) *metav1.Status {
						if ips, _, _ := unstructured.NestedSlice(o.Object, "spec", "ips"); q.Resource == "serviceimports" && len(ips) == 0 {
							t.Errorf("%v without addresses", q)
						}
						return nil
					}
				})
				c.export(c.aws, "web", 1)
				i.all(10 * time.Second)
				if n := len(c.gcp.Writes()); n > 40 {
					t.Errorf("%d writes: %v", n, c.gcp.Writes())
				}
				caughtUp(c.gcp)
				c.imported(c.gcp, "web", "aws 10.4.0.1:8080")
				time.Sleep(time.Minute)
				before := len(c.gcp.Writes())
				i.all(time.Second)
				if all := c.gcp.Writes()[before:]; len(all) > 0 {
					t.Errorf("%v at rest", all)
				}
			})
		})
	}
}

// TestObjectsDeletedRightAfterTheirCreation deletes each new object once, before a watch has shown it.
func TestObjectsDeletedRightAfterTheirCreation(t *testing.T) {
	inClusterset(t, func(c *clusterset) {
		c.start(func(cfg *Config) { cfg.MirrorSelector = selector(t, mirrorMark+"=true") })
		time.Sleep(time.Minute)
		deleted := map[kubetest.Request]bool{}
		c.gcp.Hook(func(h *kubetest.Hooks) {
			h.Lag = kubetest.Lagging()
			h.Answer = func(q kubetest.Request) {
				if q.Verb == kubetest.Create && q.Resource != "events" && !deleted[q] {
					deleted[q] = true
					c.gcp.Remove(q.Resource, q.Namespace, q.Name)
				}
			}
		})
		put(t, c.aws, "shop", svc("web"), [2]string{"web-1", "10.4.0.1"})
		c.put(c.aws, svc("api"), "10.4.0.2")
		c.export(c.aws, "api", 1)
		time.Sleep(time.Second)
		c.gcp.Restore(c.gcp.Save()) // no event says that anything has changed
		caughtUp(c.gcp)
		time.Sleep(2 * keep.Recheck)
		leadsTo(t, c.gcp, webName, "10.4.0.1")
		c.imported(c.gcp, "api", "aws 10.4.0.2:8080")
		var s corev1.Service
		if len(deleted) < 5 || !c.gcp.Get("services", home, webName, &s) {
			t.Errorf("deleted %v", deleted)
		}
	})
}
