package feeds

import (
	"slices"
	"strconv"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
)

// script is a feed with scripted results.
type script struct {
	feed[int]
	stale   bool
	changes []kube.Change[int]
	// then is called once, after Stale has answered.
	then func()
}

// Stale implements feed.
func (f *script) Stale() bool {
	stale := f.stale
	if f.then != nil {
		f.then()
		f.then = nil
	}
	return stale
}

// Changes implements feed.
func (f *script) Changes() ([]kube.Change[int], bool) {
	all := f.changes
	f.changes = nil
	return all, true
}

func (f *script) adds(n int) {
	for i := range n {
		f.changes = append(f.changes, kube.Change[int]{Key: strconv.Itoa(i), After: &i})
	}
}

// TestPartsAreStaleUntilTheLastOne lists a remote again after an
// outage. The old objects are used until all changes have been returned.
func TestPartsAreStaleUntilTheLastOne(t *testing.T) {
	const parts = 3
	for _, c := range []struct {
		name    string
		happens func(f *script) // from stale on
		want    []bool          // stale, take by take
	}{
		{"nothing", func(*script) {}, []bool{true, true}},
		{"listed again", func(f *script) { f.stale = false; f.adds(parts * Part) }, []bool{true, true, false, false}},
		{"listed again, unchanged", func(f *script) { f.stale = false }, []bool{false}},
		{"listed again at that moment", func(f *script) {
			f.then = func() { f.stale = false; f.adds(parts * Part) }
		}, []bool{true, true, true, false}},
		{"with something left from before", func(f *script) {
			f.adds(2 * Part)
			f.then = func() { f.stale = false }
		}, []bool{true, true, false}},
		{"and unreachable again", func(f *script) {
			f.stale = false
			f.adds(parts * Part)
			f.then = func() { f.stale = true }
		}, []bool{true, true, true, true, true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &script{stale: true}
			tap := &Tap[int]{feed: f}
			tap.Take(nil) // synced, and stale
			c.happens(f)
			var got []bool
			for range c.want {
				handed := 0
				tap.Take(func(*kube.Change[int]) { handed++ })
				if handed > Part {
					t.Errorf("%d at a time", handed)
				}
				got = append(got, tap.Outdated)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("stale %v, want %v", got, c.want)
			}
		})
	}
}
