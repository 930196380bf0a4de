package keep

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/logtest"
)

// TestOverridesDecideWhenToWrite follows one object. Numbers are fingerprints.
func TestOverridesDecideWhenToWrite(t *testing.T) {
	const second, ms = time.Second, time.Millisecond
	type step struct {
		after   time.Duration // since the step before
		want    uint64
		wait    time.Duration // 0: it is written
		open    bool          // afterwards
		changed bool          // the response differs
	}
	for _, c := range []struct {
		name  string
		steps []step
	}{
		{"a changed desired state never waits", []step{
			{0, 1, 0, false, false}, {0, 2, 0, false, false}, {0, 3, 0, false, false}, {0, 0, 0, false, false}, {0, 3, 0, false, false},
		}},
		{"the first repetition doesn't wait", []step{
			{0, 1, 0, false, false}, {second, 1, 0, false, false},
		}},
		{"nor does the next, after a quiet time", []step{
			{0, 1, 0, false, false}, {second, 1, 0, false, false}, {2 * LongestWait, 1, 0, false, false}, {2 * LongestWait, 1, 0, false, false},
		}},
		{"others wait longer each time", []step{
			{0, 1, 0, false, false}, {0, 1, 0, false, false},
			{0, 1, 250 * ms, false, false}, {250 * ms, 1, 0, true, false},
			{0, 1, 500 * ms, true, false}, {500 * ms, 1, 0, true, false},
			{0, 1, second, true, false}, {second, 1, 0, true, false},
			{0, 1, 2 * second, true, false}, {2 * second, 1, 0, true, false},
			{0, 1, 4 * second, true, false}, {4 * second, 1, 0, true, false},
			{0, 1, 8 * second, true, false}, {8 * second, 1, 0, true, false},
			{0, 1, 16 * second, true, false}, {16 * second, 1, 0, true, false},
			{32 * second, 1, 0, true, false}, {64 * second, 1, 0, true, false}, {128 * second, 1, 0, true, false},
			{256 * second, 1, 0, true, false}, {512 * second, 1, 0, true, false}, {0, 1, LongestWait, true, false},
			{LongestWait, 1, 0, true, false}, {LongestWait - second, 1, second, true, false},
			// A change of the desired state doesn't, and ends nothing.
			{0, 2, 0, true, false}, {0, 3, 0, true, false}, {0, 3, LongestWait, true, false}, {0, 4, 0, true, false},
		}},
		{"one that the API server changes isn't repeated soon", []step{
			{0, 1, 0, true, true}, {second, 1, LongestWait - second, true, false}, {0, 2, 0, true, true}, {0, 2, LongestWait, true, false},
			// Later it lasts.
			{LongestWait, 2, 0, false, false}, {0, 3, 0, false, false},
		}},
		{"those that last for a while don't", []step{
			{0, 1, 0, false, false}, {Lasting, 1, 0, false, false}, {Lasting, 1, 0, false, false},
			{Lasting, 1, 0, false, false}, {0, 1, 0, false, false}, {0, 1, 250 * ms, false, false},
		}},
		{"an object that is deleted again, too", []step{
			{0, 1, 0, false, false}, {0, 0, 0, false, false}, {0, 0, 0, false, false}, {0, 0, 250 * ms, false, false}, {250 * ms, 0, 0, true, false},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			o, now := NewOverrides[string](slog.New(slog.DiscardHandler)), time.Unix(1e9, 0)
			for i, s := range c.steps {
				now = now.Add(s.after)
				if wait := o.Wait(now, "k", "a", s.want); wait != s.wait {
					t.Fatalf("step %d waits %v, want %v", i, wait, s.wait)
				}
				if s.wait == 0 {
					o.Wrote(t.Context(), now, "k", "a", s.want, !s.changed)
				}
				if open := len(o.Open(now)["k"]) > 0; open != s.open {
					t.Fatalf("step %d: overridden: %v", i, open)
				}
			}
		})
	}
}

// TestMemoryOfOverridesIsBounded creates and deletes many objects, as a hostile remote may,
// beside an object that another client changes.
func TestMemoryOfOverridesIsBounded(t *testing.T) {
	for _, c := range []struct {
		name      string
		writes    int // of each object
		most      int
		forgotten bool // the object that another client changes
	}{
		{"written once", 1, manyWrites, false},
		{"overridden", 3, 2 * maxWrites, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			o, now := NewOverrides[string](slog.New(slog.DiscardHandler)), time.Unix(1e9, 0)
			for range 12 {
				o.Wrote(t.Context(), now, "fought over", "service a", 1, true)
			}
			most := 0
			for i := range 2 * maxWrites {
				now = now.Add(100 * time.Microsecond)
				key := fmt.Sprintf("key-%d", i)
				for range c.writes {
					o.Wait(now, key, "service a", 1)
					o.Wrote(t.Context(), now, key, "service a", 1, true)
				}
				most = max(most, o.count)
			}
			if most > c.most+1 || o.count < len(o.last) {
				t.Errorf("%d writes are remembered, want %d at most; now %d of %d objects", most, c.most, o.count, len(o.last))
			}
			if forgotten := len(o.last["fought over"]) == 0; forgotten != c.forgotten {
				t.Errorf("an object that was overridden is forgotten: %v", forgotten)
			}
			now = now.Add(2 * LongestWait)
			o.Wait(now, "another", "service a", 1)
			if o.count > 0 || len(o.last) > 0 {
				t.Errorf("%d writes are left", o.count)
			}
		})
	}
}

func TestOverridesAreReportedUntilTheyEnd(t *testing.T) {
	log := &logtest.Buffer{}
	o, now := NewOverrides[string](slog.New(slog.NewTextHandler(log, nil))), time.Unix(1e9, 0)
	for key, writes := range map[string]int{"a": 1, "b": 2, "c": 3} {
		for range writes {
			o.Wrote(t.Context(), now, key, "service "+key, 1, true)
		}
	}
	open := o.Open(now)
	if len(open) != 1 || open["c"][0].String() != "service c: an admission policy or another client changes it after each write" ||
		open["c"][0].Next.Sub(now) != 2*firstWait {
		t.Errorf("%+v", open)
	}
	if text := log.String(); strings.Count(text, "write overridden") != 1 {
		t.Errorf("one overridden object, logged:\n%s", text)
	}
	// Once a write has lasted, the other client has stopped.
	now = now.Add(2*firstWait + Lasting)
	if open := o.Open(now); len(open) > 0 {
		t.Errorf("%+v", open)
	}
	// The next change is the first one again.
	o.Wrote(t.Context(), now, "c", "service c", 1, true)
	if open := o.Open(now); len(open) > 0 {
		t.Errorf("%+v", open)
	}
}
