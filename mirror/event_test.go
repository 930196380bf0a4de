package mirror

import (
	"fmt"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

// TestWorkPerEventIsConstant counts the allocations of an event, which don't depend on the
// load of the machine as time does.
func TestWorkPerEventIsConstant(t *testing.T) {
	cost := func(n int) float64 { return testing.AllocsPerRun(50, events(t, n)) }
	services := rounds(5000, 1000)
	few, many := cost(50), cost(services)
	if t.Logf("%.0f allocations with 50 services, %.0f with %d", few, many, services); many > few*1.25 {
		t.Errorf("an event costs %.0f allocations with %d services, and %.0f with 50", many, services, few)
	}
}

// events returns what takes in one changed endpoint, where there are so many services of
// ten endpoints, and writes what follows.
func events(t testing.TB, n int) (event func()) {
	w, id := newWorld(), setOf("aws", mirrored)
	name := func(i int) origin.Key { return origin.Key{Namespace: "shop", Name: fmt.Sprintf("web-%05d", i)} }
	addresses := func(i int) (all []string) {
		for e := range 10 {
			all = append(all, fmt.Sprintf("10.4.%d.%d", i%251, 1+(i+e)%249))
		}
		return all
	}
	for i := range n {
		w.has(id, name(i), "slice", addresses(i)...)
		w.origin(id, name(i), newOrigin(name(i), 1, 80, origin.Traits{}))
	}
	w.settle(t)
	round := 0
	return func() {
		round++
		w.has(id, name(round%n), "slice", addresses(round+7)...)
		w.each(func(want *Service, have *Observed) {
			for _, c := range w.sums.Diff(have, want) {
				w.putSlice(c.Slice.object(home, want, ""))
				o := w.sums.observedSlice(w.slices[c.Name])
				w.local.home.slices.Wrote(o)
				w.local.home.slices.Observe([]kube.Change[ObservedSlice]{{Key: c.Name, After: o}}, true)
			}
		})
		w.local.update(w.now, w.touch)
	}
}
