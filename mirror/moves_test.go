package mirror

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-semaphore/kube-semaphore/internal/pace"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

// TestEndpointsMoveWithoutAGap moves endpoints between slices at random, each to a slice with a
// lower number, adds and removes others, and looks at what exists after each single write.
func TestEndpointsMoveWithoutAGap(t *testing.T) {
	id, web := setOf("aws", mirrored), origin.Key{Namespace: "shop", Name: "web"}
	for round := range rounds(200, 50) {
		r := rand.New(rand.NewPCG(uint64(round), 17))
		w := newWorld()
		w.origin(id, web, newOrigin(web, 1, 80, origin.Traits{}))
		in := map[string]int{} // slice of each address
		for range 30 {
			before := w.leads(Name("c1", web))
			for n := range 12 {
				address := fmt.Sprintf("10.4.0.%d", 1+n)
				switch at, exists := in[address]; {
				case !exists && r.IntN(3) == 0:
					in[address] = r.IntN(6)
				case exists && at > 0 && r.IntN(3) == 0:
					in[address] = r.IntN(at)
				case exists && r.IntN(5) == 0:
					delete(in, address)
				}
			}
			for n := range 6 {
				var addresses []string
				for address, at := range in {
					if at == n {
						addresses = append(addresses, address)
					}
				}
				slices.Sort(addresses)
				if name := fmt.Sprintf("web-%d", n); len(addresses) > 0 {
					w.has(id, web, name, addresses...)
				} else if sl := w.sets[id].Slices(web)[name]; sl != nil {
					w.slice(id, sl, nil)
				}
			}
			w.each(func(want *Service, have *Observed) {
				for _, c := range w.sums.Diff(have, want) {
					w.do(want, []Change{c}, nil)
					now := w.leads(want.Name)
					for _, address := range before {
						if _, stays := in[address]; stays && !slices.Contains(now, address) {
							t.Fatalf("round %d: %s is missing after %s of %s", round, address, c.Verb, c.Name)
						}
					}
				}
			})
			w.show()
		}
	}
}

// TestMovedEndpointsStayUntilTheirSliceIsWritten: the slice that gets an endpoint waits for its turn
// to be written, and the one that has it could be deleted at once.
func TestMovedEndpointsStayUntilTheirSliceIsWritten(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakes) {
		s := svc("web")
		put(t, f.aws, "shop", s, [2]string{"web-1", "10.4.0.1"})
		c := f.controller(t, nil)
		c.apply.pace = pace.New(pace.Config[string]{
			Cluster: pace.Limit{Rate: 1 << 10, Burst: 8 << 10}, Total: pace.Limit{Rate: 1 << 20, Burst: 1 << 20}, Ready: c.turn,
		})
		kubetest.Run(t, c.Tasks(), c.Lead)
		leadsTo(t, f.gcp, webName, "10.4.0.1")
		// Another one takes what may be written in a minute.
		put(t, f.aws, "shop", svc("large"))
		large := manyPorts(kubetest.EndpointSlice(svc("large"), "large-1", "10.4.0.9"), 1)
		large.Namespace = "shop"
		f.aws.Put(t, "endpointslices", large)
		leadsTo(t, f.gcp, "aws-shop-73736d-large", "10.4.0.9")
		sl := manyPorts(kubetest.EndpointSlice(s, "web-2", "10.4.0.1"), 1)
		sl.Namespace = "shop"
		f.aws.Put(t, "endpointslices", sl)
		f.aws.Remove("endpointslices", "shop", "web-1")
		for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
			all := slices.DeleteFunc(kubetest.All[discoveryv1.EndpointSlice](f.gcp, "endpointslices", home), func(s discoveryv1.EndpointSlice) bool {
				return s.Labels[discoveryv1.LabelServiceName] != webName
			})
			if !slices.ContainsFunc(all, func(s discoveryv1.EndpointSlice) bool { return len(s.Endpoints) == 1 }) {
				t.Fatalf("no endpoint after %v", time.Since(began))
			}
			if len(all) == 1 && len(all[0].Ports) > 1 {
				return
			}
			if time.Since(began) > 5*time.Minute {
				t.Fatalf("not moved: %d slices", len(all))
			}
		}
	})
}
