package mirror

import (
	"fmt"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/internal/keep"
)

// BenchmarkEvent is the cost of one changed endpoint, from what a feed hands out to
// what is written being known, where there are so many services of ten endpoints.
// It must not grow with them.
func BenchmarkEvent(b *testing.B) {
	for _, n := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprintf("%d services", n), func(b *testing.B) {
			w, id := newWorld(), setID{"aws", mirrored}
			name := func(i int) Key { return Key{"shop", fmt.Sprintf("web-%05d", i)} }
			addresses := func(i int) (all []string) {
				for e := range 10 {
					all = append(all, fmt.Sprintf("10.4.%d.%d", i%251, 1+(i+e)%249))
				}
				return all
			}
			for i := range n {
				w.has(id, name(i), "slice", addresses(i)...)
				w.origin(id, name(i), newOrigin(name(i), 1, 80, Traits{}))
			}
			desired := Desired(w.Snapshot, w.memo)
			w.seen()
			for i := range desired {
				want, have := w.want(w.memo, desired[i].Name)
				w.do(&want, Diff(have, want), nil)
			}
			w.show()
			Desired(w.Snapshot, w.memo)
			w.seen()
			changes, round := 0, 0
			for b.Loop() {
				round++
				w.has(id, name(round%n), "slice", addresses(round+7)...)
				for _, s := range Desired(w.Snapshot, w.memo) {
					want, have := w.want(w.memo, s.Name)
					for _, c := range Diff(have, want) {
						changes++
						w.putSlice(c.Slice.object(home, want.Name))
						o := w.sums.observedSlice(w.slices[c.Name])
						w.local.slices.Wrote(o)
						w.local.slices.Observe([]keep.Change[ObservedSlice]{{Name: c.Name, After: o}}, true)
					}
				}
				w.seen()
				w.observe()
			}
			if changes < round/2 {
				b.Fatalf("%d changes for %d events", changes, round)
			}
		})
	}
}
