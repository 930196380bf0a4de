package mirror

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
)

// script is a feed with scripted results.
type script struct {
	feed[Origin]
	stale   bool
	changes []kube.Change[Origin]
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
func (f *script) Changes() ([]kube.Change[Origin], bool) {
	all := f.changes
	f.changes = nil
	return all, true
}

func (f *script) adds(n int) {
	for i := range n {
		o := &Origin{Key: Key{"shop", fmt.Sprintf("web-%d", i)}}
		f.changes = append(f.changes, kube.Change[Origin]{Key: o.String(), After: o})
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
		{"listed again", func(f *script) { f.stale = false; f.adds(parts * partOfTap) }, []bool{true, true, false, false}},
		{"listed again, unchanged", func(f *script) { f.stale = false }, []bool{false}},
		{"listed again at that moment", func(f *script) {
			f.then = func() { f.stale = false; f.adds(parts * partOfTap) }
		}, []bool{true, true, true, false}},
		{"with something left from before", func(f *script) {
			f.adds(2 * partOfTap)
			f.then = func() { f.stale = false }
		}, []bool{true, true, false}},
		{"and unreachable again", func(f *script) {
			f.stale = false
			f.adds(parts * partOfTap)
			f.then = func() { f.stale = true }
		}, []bool{true, true, true, true, true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &script{stale: true}
			tap := &tap[Origin]{feed: f}
			tap.take(nil) // synced, and stale
			c.happens(f)
			var got []bool
			for range c.want {
				handed := 0
				tap.take(func(*kube.Change[Origin]) { handed++ })
				if handed > partOfTap {
					t.Errorf("%d at a time", handed)
				}
				got = append(got, tap.stale)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("stale %v, want %v", got, c.want)
			}
		})
	}
}

// TestEndedGracePeriodIsDue ends a grace period between a pass and the call of due.
func TestEndedGracePeriodIsDue(t *testing.T) {
	c := New(Config{Cluster: "gcp", Namespace: home, Logger: slog.New(slog.DiscardHandler)})
	end := time.Now().Add(-time.Second)
	if c.snapshot.setRemoveAt(end); !c.due().IsZero() {
		t.Error("due before the mirror namespace has been read")
	}
	c.ready = true
	if due := c.due(); !due.Equal(end) {
		t.Errorf("due %v, want %v", due, end)
	}
	if c.snapshot.setRemoveAt(time.Time{}); !c.due().IsZero() {
		t.Error("due after the removal")
	}
}
