package mirror

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-semaphore/kube-semaphore/internal/pace"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/synctest"
	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

// written are the names and sizes, as etcd has them, of the objects that are written to an API
// server.
type written struct {
	mu    sync.Mutex
	names []string
	bytes int
}

func writtenTo(api *kubetest.API) *written {
	w := &written{}
	api.Hook(func(h *kubetest.Hooks) {
		h.Admit = func(q kubetest.Request, o *unstructured.Unstructured) *metav1.Status {
			var object interface{ Size() int } = &corev1.Service{}
			if q.Resource == "endpointslices" {
				object = &discoveryv1.EndpointSlice{}
			} else if q.Resource != "services" {
				return nil
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, object); err != nil {
				w.bytes += 1 << 40
			}
			w.bytes += object.Size()
			w.names = append(w.names, q.Name)
			return nil
		}
	})
	return w
}

func (w *written) so() (names []string, bytes int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.names), w.bytes
}

// manyPorts makes a slice with many ports of long names, one of which is n.
func manyPorts(s *discoveryv1.EndpointSlice, n int) *discoveryv1.EndpointSlice {
	s.Ports = nil
	for i := range 100 {
		name, port := fmt.Sprintf("p%d-%s", i, strings.Repeat("x", 50)), int32(1+i)
		if i == 0 {
			port = int32(1 + n%60_000)
		}
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &name, Port: &port})
	}
	return s
}

// TestBytesAreBounded has a remote that rewrites large slices for one changed port, and small
// Services of it and of another remote that change now and then. The limits are a twentieth of the
// default ones.
func TestBytesAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakes) {
		const flooding, rate, burst = 4, pace.DefaultRate / 20, pace.DefaultBurst / 20
		seconds := rounds(60, 15)
		stored := writtenTo(f.gcp)
		flood := func(n int) {
			for i := range flooding {
				s := svc(fmt.Sprint("flood-", i))
				s.Namespace = "hostile"
				sl := manyPorts(kubetest.EndpointSlice(s, s.Name+"-1", fmt.Sprintf("10.2.9.%d", i)), n)
				sl.Namespace = s.Namespace
				if n == 0 {
					f.aws.Put(t, "services", s)
				}
				f.aws.Put(t, "endpointslices", sl)
			}
		}
		flood(0)
		put(t, f.aws, "shop", svc("web"), [2]string{"web-1", "10.2.0.1"}, [2]string{"web-2", "10.2.0.2"})
		put(t, f.merit, "shop", svc("web"), [2]string{"web-1", "10.6.0.1"}, [2]string{"web-2", "10.6.0.2"})
		c := f.controller(t, nil)
		c.apply.pace = pace.New(pace.Config[string]{
			Cluster: pace.Limit{Rate: rate, Burst: burst}, Total: pace.Limit{Rate: pace.DefaultTotalRate / 20, Burst: pace.DefaultTotalBurst / 20},
			Ready: c.turn,
		})
		i := &instance{c, kubetest.Run(t, c.Tasks(), c.Lead)}
		leadsTo(t, f.gcp, webName, "10.2.0.1", "10.2.0.2")
		leadsTo(t, f.gcp, "merit-shop-73736d-web", "10.6.0.1", "10.6.0.2")

		// next fails unless a slice is written before more than one large one is.
		next := func(what, slice string, before []string) {
			names, _ := stored.so()
			names = names[len(before):]
			large := 0
			for _, name := range names {
				switch {
				case strings.HasPrefix(name, slice+"-"):
					return
				case strings.Contains(name, "flood"):
					if large++; large > 1 {
						t.Errorf("%s is written after %d large ones", what, large)
						return
					}
				}
			}
			t.Errorf("%s isn't written", what)
		}
		_, first := stored.so()
		for n := range 10 * seconds {
			flood(1 + n)
			before, _ := stored.so()
			changes := n >= 60 && n%20 == 19 // when the burst is over
			if changes {
				put(t, f.aws, "shop", svc("web"), [2]string{"web-1", fmt.Sprintf("10.2.1.%d", n%250)})
				put(t, f.merit, "shop", svc("web"), [2]string{"web-1", fmt.Sprintf("10.6.1.%d", n%250)})
			}
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
			if changes {
				time.Sleep(400 * time.Millisecond) // several turns
				synctest.Wait()
				next("a change of the same remote", webName, before)
				next("a change of another remote", "merit-shop-73736d-web", before)
			}
		}
		_, last := stored.so()
		t.Logf("%d bytes in %d s", last-first, seconds)
		if most := burst + (seconds+seconds/4)*rate; last-first > most {
			t.Errorf("%d bytes in %d s, at most %d are allowed", last-first, seconds, most)
		}
		// The last round may have had time for everything.
		flood(1 + 10*seconds)
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		waiting := func(cluster string) int {
			for _, c := range i.Status().Clusters {
				if c.Name == cluster {
					return c.Waiting
				}
			}
			return -1
		}
		if aws, merit := waiting("aws"), waiting("merit"); aws == 0 || merit != 0 {
			t.Errorf("%d writes of aws wait, %d of merit", aws, merit)
		}
		wait(t, "everything", func() error {
			if n := waiting("aws"); n != 0 {
				return fmt.Errorf("%d writes wait", n)
			}
			return nil
		})
		for n := range flooding {
			var sl discoveryv1.EndpointSlice
			name := fmt.Sprint("aws-hostile-73736d-flood-", n)
			all := kubetest.All[discoveryv1.EndpointSlice](f.gcp, "endpointslices", home)
			at := slices.IndexFunc(all, func(s discoveryv1.EndpointSlice) bool { return s.Labels[discoveryv1.LabelServiceName] == name })
			if at < 0 {
				t.Fatalf("%s has no slice", name)
			}
			if sl = all[at]; *sl.Ports[0].Port != int32(2+10*seconds) {
				t.Errorf("%s has the port %d", name, *sl.Ports[0].Port)
			}
		}
	})
}

// TestManySlicesDontDelayRemovals: while thousands of slices of one cluster are to be written, the
// endpoint of another one leaves their service.
func TestManySlicesDontDelayRemovals(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakes) {
		put(t, f.gcp, "shop", svc("web", global), [2]string{"web-1", "10.2.0.1"})
		put(t, f.merit, "shop", svc("web", global), [2]string{"web-1", "10.6.0.1"})
		f.gcp.Hook(func(h *kubetest.Hooks) { h.Answer = func(kubetest.Request) { time.Sleep(10 * time.Millisecond) } })
		i := f.start(t, func(cfg *Config) { cfg.GlobalSelector = selector(t, globalMark+"=true") })
		leadsTo(t, f.gcp, globalName, "10.2.0.1", "10.6.0.1")
		for n := range rounds(10_000, 2_000) {
			put(t, f.aws, "shop", svc("web", global), [2]string{fmt.Sprint("web-", n), fmt.Sprintf("10.4.%d.%d", n/250, 1+n%250)})
		}
		before := count(f.gcp, "create endpointslices")
		wait(t, "the first slices", func() error {
			if n := count(f.gcp, "create endpointslices") - before; n < 10 {
				return fmt.Errorf("%d", n)
			}
			return nil
		})
		f.merit.Remove("endpointslices", "shop", "web-1")
		wait(t, "a removal", func() error {
			if count(f.gcp, "delete endpointslices") == 0 {
				return errors.New("not yet")
			}
			return nil
		})
		if n := count(f.gcp, "create endpointslices") - before; n > 500 {
			t.Errorf("%d slices were written before", n)
		}
		i.stop()
		time.Sleep(time.Second) // until a last write is answered
	})
}

// TestReplacedServiceIsNotMissing: a Service that is deleted to be created again stays until it can
// be created.
func TestReplacedServiceIsNotMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &applier{pace: pace.New(pace.Config[string]{Cluster: pace.Limit{Rate: 1000, Burst: 1000}, Ready: func(string, bool) {}})}
		a.pace.Take("others", pace.Write{Cluster: "aws", Namespace: "shop", Object: "x", Bytes: 10_000})
		want := &Service{Name: webName, Origin: origin.ID{Cluster: "aws", Key: origin.Key{Namespace: "shop", Name: "web"}}}
		changes := []Change{
			{Verb: verbDelete, Object: aService, Name: webName},
			{Verb: verbCreate, Object: aService, Name: webName},
			{Verb: verbDelete, Object: aSlice, Name: webName + "-1"},
		}
		never := func(int) bool { return false }
		if may := a.turns("aws", want, changes, never, never); !slices.Equal(may, []bool{false, false, true}) {
			t.Errorf("%v", may)
		}
		time.Sleep(time.Minute)
		if may := a.turns("aws", want, changes, never, never); !slices.Equal(may, []bool{true, true, true}) {
			t.Errorf("%v later", may)
		}
	})
}

// TestPacedChanges: what counts is the whole object, for the cluster that it is from.
func TestPacedChanges(t *testing.T) {
	sums, web := newSummer(), origin.Key{Namespace: "shop", Name: "web"}
	w := newWorld()
	w.says(t, setOf("aws", merged), newOrigin(web, 1, 80, origin.Traits{}))
	w.says(t, setOf("merit", merged), newOrigin(web, 1, 80, origin.Traits{}))
	service := *w.plans[globalName]
	sl := Slice{Name: "s", Cluster: "merit", size: 5000, origin: &origin.Slice{Name: "web-1", Service: web}}
	imported := Service{Name: web.String(), Origin: origin.ID{Cluster: origin.ClusterSet, Key: web}, Imported: &Imported{}}
	imported.Imported.Labels = map[string]string{"x": strings.Repeat("y", 3000)}
	kept := Slice{Name: "kept", Cluster: "merit", size: 7000, origin: &origin.Slice{Service: web}, kept: &ObservedSlice{}}
	for _, c := range []struct {
		change  Change
		want    *Service
		cluster string
		least   int
		most    int
	}{
		{Change{Verb: verbDelete, Object: aSlice, Name: "s", Slice: &sl}, &service, "aws", 0, 0},
		{Change{Verb: verbPatch, Object: aSlice, Name: "s", Slice: &sl}, &service, "merit", 5000, 5300},
		{Change{Verb: verbPatch, Object: aSlice, Name: "kept", Slice: &kept}, &service, "merit", 7000, 7300},
		{Change{Verb: verbPatch, Object: aService, Name: globalName}, &service, "aws", 300, 1000},
		{Change{Verb: verbCreate, Object: anImport, Name: web.String()}, &imported, "aws", 3000, 4000},
		{Change{Verb: verbPatch, Object: aDerived, Name: web.String()}, &imported, "aws", 200, 1000},
		{Change{Verb: verbPatch, Object: exportStatus, Name: web.String()}, &imported, "aws", 1000, 2000},
	} {
		got := c.change.paced("aws", c.want)
		if got.Cluster != c.cluster || got.Namespace != "shop" || got.Bytes < c.least || got.Bytes > c.most {
			t.Errorf("%s %s: %+v", c.change.Verb, c.change.Object, got)
		}
	}
	// What a slice takes is measured when it is desired.
	size := func(sl *origin.Slice) int {
		of := service
		of.Slices = []Slice{{Name: "s", Cluster: "aws", origin: sl}}
		of.seal(sums, &Observed{}, &w.local.answers)
		if made := sums.observedSlice(of.Slices[0].object("", &of, "")); made.size != of.Slices[0].size {
			t.Errorf("%d bytes, written %d", of.Slices[0].size, made.size)
		}
		return of.Slices[0].size
	}
	empty := size(&origin.Slice{Service: web, Family: discoveryv1.AddressTypeIPv4})
	many := size(&origin.Slice{Service: web, Family: discoveryv1.AddressTypeIPv4, Ports: manyPorts(&discoveryv1.EndpointSlice{}, 1).Ports})
	if empty < 200 || many < empty+100*50 {
		t.Errorf("%d bytes without ports, %d with many", empty, many)
	}
}
