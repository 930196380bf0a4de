package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// elapse lets time go by in the bubble, and everything happen that is due.
func elapse(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestWriterMakesEachChangeOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sets := newFakeSets()
		r := startWriter(t, sets, nil)
		r.want(t, object("a", "10.4.0.1"), object("b", "10.4.0.2"))
		synctest.Wait()
		r.want(t, object("a", "10.4.0.1"))
		elapse(time.Second)
		if diff := cmp.Diff(map[string]string{"gcp-ns-a": "10.4.0.1/32"}, sets.content()); diff != "" {
			t.Errorf("sets (-want +got):\n%s", diff)
		}
		if len(sets.seen()) != 3 {
			t.Errorf("requests %v, want two creations and a deletion", sets.seen())
		}
	})
}

func TestWriterMakesOneWriteOfManyQuickChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sets := newFakeSets()
		r := startWriter(t, sets, nil)
		r.want(t, object("a", "10.4.0.1"))
		synctest.Wait()
		if n := len(sets.seen()); n != 1 {
			t.Fatalf("%d requests at once, want the first change without delay", n)
		}
		for i := range 100 {
			elapse(time.Millisecond)
			r.want(t, object("a", fmt.Sprintf("10.4.0.%d", i+2)))
		}
		elapse(time.Second)
		if diff := cmp.Diff(map[string]string{"gcp-ns-a": "10.4.0.101/32"}, sets.content()); diff != "" {
			t.Errorf("sets (-want +got):\n%s", diff)
		}
		if n := len(sets.seen()); n < 4 || n > 6 {
			t.Errorf("%d requests for 100 changes in 100 ms, want about one each %v", n, writeSpacing)
		}
	})
}

func TestWriterDoesNotLetFailuresHoldUpOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sets := newFakeSets()
		var broken atomic.Bool
		broken.Store(true)
		sets.fail = func(_, name string) error {
			if broken.Load() && strings.HasPrefix(name, "gcp-ns-bad") {
				return errors.New("refused")
			}
			return nil
		}
		r := startWriter(t, sets, nil)
		var all []Object
		want := map[string]string{}
		for i := range 3 * workers {
			all = append(all, object(fmt.Sprintf("bad-%d", i), "10.4.0.1"), object(fmt.Sprintf("good-%d", i), "10.4.0.2"))
			want[fmt.Sprintf("gcp-ns-good-%d", i)] = "10.4.0.2/32"
		}
		r.want(t, all...)
		synctest.Wait()
		if diff := cmp.Diff(want, sets.content()); diff != "" {
			t.Errorf("sets (-want +got):\n%s", diff)
		}
		if n := len(r.failures()); n != 3*workers {
			t.Errorf("%d failures told, want %d", n, 3*workers)
		}

		// Passes that go on don't shorten the waits, which grow.
		for range 600 {
			elapse(100 * time.Millisecond)
			r.want(t, all...)
		}
		attempts := slices.DeleteFunc(sets.seen(), func(request string) bool { return request != "create gcp-ns-bad-0" })
		if n := len(attempts); n < 5 || n > 12 {
			t.Errorf("%d attempts in a minute, want a few", n)
		}
		if n := strings.Count(r.log.String(), "level=ERROR"); n != 1 {
			t.Errorf("%d errors logged, want one:\n%s", n, r.log)
		}

		broken.Store(false)
		elapse(2 * lastRetry)
		if n := len(sets.content()); n != len(all) || len(r.failures()) > 0 || r.backlog() > 0 {
			t.Errorf("%d of %d sets, failures %v, %d to write", n, len(all), r.failures(), r.backlog())
		}
		if !strings.Contains(r.log.String(), "can be written again") {
			t.Errorf("recovery isn't logged:\n%s", r.log)
		}
	})
}

func TestWriterFindsOutWhatSomebodyElseDid(t *testing.T) {
	for name, test := range map[string]struct {
		verb   string
		meddle func(f *fakeSets)
		want   map[string]string // after the next pass
	}{
		"edited before our patch": {
			verbPatch, func(f *fakeSets) { f.put(networkSetNamed("a", labelsOf("a"), "0.0.0.0/0")) },
			map[string]string{"gcp-ns-a": "10.4.0.2/32"},
		},
		"deleted before our patch": {
			verbPatch, func(f *fakeSets) { delete(f.sets, "gcp-ns-a") },
			map[string]string{"gcp-ns-a": "10.4.0.2/32"},
		},
		"taken before our patch": {
			verbPatch, func(f *fakeSets) { f.put(networkSetNamed("a", nil, "192.0.2.0/24")) },
			map[string]string{"gcp-ns-a": "192.0.2.0/24", gcp("a").candidate(1, 1): "10.4.0.2/32"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sets := newFakeSets()
				sets.take(networkSetNamed("a", labelsOf("a"), "10.4.0.1/32"))
				once := false
				sets.meddle = func(f *fakeSets, verb, _ string) {
					if verb == test.verb && !once {
						once = true
						test.meddle(f)
					}
				}
				r := startWriter(t, sets, nil)
				pass := func() {
					known := r.ledger.view()
					objects, err := Plan("gcp", map[Identity][]netip.Addr{gcp("a"): addrs("10.4.0.2")}, known.sets, 0)
					if err != nil {
						t.Error(err)
					}
					r.set(t.Context(), Diff("gcp", known.sets, objects), known.writes)
				}
				pass()
				<-r.outdated
				pass()
				elapse(time.Second)
				if diff := cmp.Diff(test.want, sets.content()); diff != "" {
					t.Errorf("sets (-want +got):\n%s", diff)
				}
				if len(r.failures()) > 0 {
					t.Errorf("failures %v: this is none", r.failures())
				}
			})
		})
	}
}

func TestWriterNeverTouchesWhatTurnedForeign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sets := newFakeSets()
		sets.take(networkSetNamed("a", labelsOf("a"), "10.4.0.1/32"))
		r := startWriter(t, sets, nil)
		known := r.ledger.view()
		// Between the pass and the deletion somebody takes the object over.
		sets.take(networkSetNamed("a", nil, "10.4.0.1/32"))
		r.set(t.Context(), Diff("gcp", known.sets, nil), known.writes)
		<-r.outdated
		elapse(time.Second)
		if diff := cmp.Diff(map[string]string{"gcp-ns-a": "10.4.0.1/32"}, sets.content()); diff != "" {
			t.Errorf("sets (-want +got):\n%s", diff)
		}
	})
}

func TestWriterWithAWatchThatLagsWritesOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sets := newFakeSets()
		r := startWriter(t, sets, func() ([]Observed, bool) { return nil, true })
		for range 100 {
			r.want(t, object("a", "10.4.0.1"))
			elapse(10 * time.Millisecond)
		}
		if diff := cmp.Diff([]string{"create gcp-ns-a"}, sets.seen()); diff != "" {
			t.Errorf("requests (-want +got):\n%s", diff)
		}
	})
}
