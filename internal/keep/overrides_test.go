package keep

import (
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/logtest"
)

// TestOverridesDecideWhenToWrite follows one object. Numbers are fingerprints.
func TestOverridesDecideWhenToWrite(t *testing.T) {
	const second, ms = time.Second, time.Millisecond
	type step struct {
		after      time.Duration // since the step before
		have, want uint64
		urgent     bool
		wait       time.Duration
		got        uint64 // response, if wait is 0
		open       bool   // afterwards
	}
	for _, c := range []struct {
		name  string
		steps []step
	}{
		{"writes that last never wait", []step{
			{0, 0, 1, false, 0, 1, false}, {0, 1, 2, false, 0, 2, false}, {0, 2, 3, false, 0, 3, false}, {0, 3, 0, false, 0, 0, false}, {0, 0, 3, false, 0, 3, false},
		}},
		{"one that comes back otherwise isn't repeated", []step{
			{0, 0, 1, false, 0, 9, true}, {second, 9, 1, false, Calm - second, 0, true}, {Calm / 2, 9, 1, true, Calm/2 - second, 0, true},
		}},
		{"it is, when the desired state changes", []step{
			{0, 0, 1, false, 0, 9, true}, {second, 9, 2, false, 0, 8, true}, {second, 8, 2, false, Calm - second, 0, true},
		}},
		{"or the observed state", []step{
			{0, 0, 1, false, 0, 9, true}, {second, 7, 1, false, 0, 9, true}, {second, 9, 1, false, Calm - second, 0, true},
		}},
		{"or after a time, and then it lasts", []step{
			{0, 0, 1, false, 0, 9, true}, {Calm, 9, 1, false, 0, 1, false}, {0, 1, 2, false, 0, 2, false},
		}},
		{"the first change by another is repaired at once", []step{
			{0, 0, 1, false, 0, 1, false}, {second, 5, 1, false, 0, 1, false},
		}},
		{"also the next, after a quiet time", []step{
			{0, 0, 1, false, 0, 1, false}, {second, 5, 1, false, 0, 1, false}, {Calm, 6, 1, false, 0, 1, false}, {Calm, 5, 1, false, 0, 1, false},
		}},
		{"others wait longer each time", []step{
			{0, 0, 1, false, 0, 1, false}, {0, 5, 1, false, 0, 1, false},
			{0, 5, 1, false, 250 * ms, 0, false}, {250 * ms, 5, 1, false, 0, 1, true},
			{0, 5, 1, false, 500 * ms, 0, true}, {500 * ms, 5, 1, false, 0, 1, true},
			{0, 5, 1, false, second, 0, true}, {second, 5, 1, false, 0, 1, true},
			{0, 5, 1, false, 2 * second, 0, true}, {2 * second, 5, 1, false, 0, 1, true},
			{0, 5, 1, false, 4 * second, 0, true}, {4 * second, 5, 1, false, 0, 1, true},
			{0, 5, 1, false, 8 * second, 0, true}, {8 * second, 5, 1, false, 0, 1, true},
			{0, 5, 1, true, longestUrgent, 0, true}, {0, 5, 1, false, 16 * second, 0, true}, {16 * second, 5, 1, false, 0, 1, true},
			{32 * second, 5, 1, false, 0, 1, true}, {64 * second, 5, 1, false, 0, 1, true}, {128 * second, 5, 1, false, 0, 1, true},
			{256 * second, 5, 1, false, 0, 1, true}, {0, 5, 1, false, longestWait, 0, true}, {longestWait, 5, 1, false, 0, 1, true},
			{longestWait - second, 5, 1, false, second, 0, true}, {0, 5, 1, true, 0, 1, true},
			// A change of the desired state doesn't.
			{0, 5, 2, false, 0, 2, true}, {0, 5, 3, false, 0, 3, true}, {0, 5, 3, false, longestWait, 0, true}, {0, 5, 4, false, 0, 4, true},
		}},
		{"those that last for a while don't", []step{
			{0, 0, 1, false, 0, 1, false}, {time.Minute, 5, 1, false, 0, 1, false}, {time.Minute, 5, 1, false, 0, 1, true},
			{time.Minute, 5, 1, false, 0, 1, true}, {time.Minute, 5, 1, false, 0, 1, true}, {0, 5, 1, false, 250 * ms, 0, true},
		}},
		{"nor do different edits, until there are many", []step{
			{0, 0, 1, false, 0, 1, false}, {0, 11, 1, false, 0, 1, false}, {0, 12, 1, false, 0, 1, true}, {0, 13, 1, false, 0, 1, true},
			{0, 14, 1, false, 0, 1, true}, {0, 15, 1, false, 0, 1, true}, {0, 16, 1, false, 0, 1, true}, {0, 17, 1, false, 0, 1, true},
			{0, 18, 1, false, 0, 1, true}, {0, 19, 1, false, 0, 1, true}, {0, 20, 1, false, 0, 1, true}, {0, 21, 1, false, 0, 1, true},
			{0, 22, 1, false, 0, 1, true}, {0, 23, 1, false, 0, 1, true}, {0, 24, 1, false, 0, 1, true}, {0, 25, 1, false, 0, 1, true},
			{0, 26, 1, false, 0, 1, true}, {0, 27, 1, false, 0, 1, true}, {0, 28, 1, false, 250 * ms, 0, true}, {250 * ms, 29, 1, false, 0, 1, true},
			{0, 30, 1, false, 500 * ms, 0, true}, {0, 11, 1, false, second, 0, true},
		}},
		{"an object that is deleted or created again, too", []step{
			{0, 0, 1, false, 0, 1, false}, {0, 0, 1, false, 0, 1, false}, {0, 0, 1, false, 250 * ms, 0, false}, {0, 1, 0, true, 0, 0, false},
			{0, 1, 0, true, 0, 0, true}, {0, 1, 0, true, 250 * ms, 0, true},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			o, now := NewOverrides[string](slog.New(slog.DiscardHandler)), time.Unix(1e9, 0)
			for i, s := range c.steps {
				now = now.Add(s.after)
				w := Write{Object: "a", Have: s.have, Want: s.want, Urgent: s.urgent}
				if wait := o.Review(t.Context(), "k", now, []Write{w})[0]; wait != s.wait {
					t.Fatalf("step %d waits %v, want %v", i, wait, s.wait)
				}
				if s.wait == 0 {
					o.Wrote(t.Context(), "k", now, &w, s.got)
				}
				if open := len(o.Open(now)["k"]) > 0; open != s.open {
					t.Fatalf("step %d: overridden: %v", i, open)
				}
			}
		})
	}
}

// objects returns how many objects are remembered.
func (o *Overrides[K]) objects() (n int) {
	for _, objects := range o.keys {
		n += len(objects)
	}
	return n
}

// TestMemoryOfOverridesIsBounded creates and deletes 100,000 objects, as a hostile remote may,
// beside objects that another client, or the API server, changes.
func TestMemoryOfOverridesIsBounded(t *testing.T) {
	many := 100_000
	if testing.Short() {
		many = maxOverridden + 10_000
	}
	for _, c := range []struct {
		name     string
		created  uint64 // response to the creation
		delete   bool
		most     int // during that
		soonMost int // after soon, and a sweep
	}{
		{"created and deleted", 1, true, maxLasting, 0},
		{"created, changed by the server and deleted", 9, true, maxLasting, 0},
		{"created", 1, false, maxLasting, maxLasting},
		{"created, and changed by the server", 9, false, maxOverridden, maxOverridden},
	} {
		t.Run(c.name, func(t *testing.T) {
			o, now := NewOverrides[string](slog.New(slog.DiscardHandler)), time.Unix(1e9, 0)
			fight := Write{Object: "fought over", Have: 5, Want: 1}
			for range 3 {
				o.Wrote(t.Context(), "fought over", now, &fight, 1)
			}
			if n := o.objects(); n != 1 {
				t.Fatalf("%d objects", n)
			}
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			for i := range many {
				now = now.Add(time.Millisecond)
				key := fmt.Sprintf("key-%d", i)
				w := Write{Object: "service " + key, Want: 1}
				o.Review(t.Context(), key, now, []Write{w})
				o.Wrote(t.Context(), key, now, &w, c.created)
				if !c.delete {
					continue
				}
				w.Have, w.Want = c.created, 0
				o.Review(t.Context(), key, now, []Write{w})
				o.Wrote(t.Context(), key, now, &w, 0)
			}
			if n := o.objects(); n > c.most+1 || n != o.lasting.Len()+o.overridden.Len() {
				t.Errorf("%d objects are remembered, %d lasting and %d overridden, want %d at most", n, o.lasting.Len(), o.overridden.Len(), c.most)
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			t.Logf("%d objects in %.1f MB", o.objects(), float64(after.HeapAlloc-before.HeapAlloc)/1e6)
			if c.most == maxLasting && len(o.keys["fought over"]) != 1 {
				t.Errorf("an object that was overridden is forgotten: %+v", o.keys["fought over"])
			}
			now = now.Add(soon + time.Minute)
			o.Review(t.Context(), "another", now, nil)
			if n := o.objects(); n > c.soonMost+1 {
				t.Errorf("%d objects are remembered after %v", n, soon+time.Minute)
			}
			now = now.Add(2 * Calm)
			o.Review(t.Context(), "another", now, nil)
			if n := o.objects() + len(o.keys) + len(o.kinds.count) + o.lasting.Len() + o.overridden.Len(); n > 0 {
				t.Errorf("%d objects are left", n)
			}
		})
	}
}

func TestOverridesAreReportedUntilTheyEnd(t *testing.T) {
	log := &logtest.Buffer{}
	o, now := NewOverrides[string](slog.New(slog.NewTextHandler(log, nil))), time.Unix(1e9, 0)
	write := func(key string, have, got uint64) {
		w := Write{Object: "service " + key, Have: have, Want: 1, By: "them"}
		o.Wrote(t.Context(), key, now, &w, got, "spec.type")
	}
	write("a", 0, 9)
	write("b", 0, 9)
	write("c", 0, 1)
	write("c", 5, 1)
	write("c", 5, 1)
	open := o.Open(now)
	if len(open) != 3 || open["a"][0].String() != "service a: the API server stores other values than those written: spec.type (an admission policy, a webhook, or a server that doesn't know the field)" ||
		open["c"][0].String() != "service c: them changes it after each write" || open["c"][0].Next.Sub(now) != 2*firstWait || open["a"][0].Next.Sub(now) != Calm {
		t.Errorf("%+v", open)
	}
	if text := log.String(); strings.Count(text, "write overridden") != 2 {
		t.Errorf("two ways to be overridden, logged:\n%s", text)
	}
	// A key that has nothing to write is no longer overridden by the server.
	for _, key := range []string{"a", "b", "c"} {
		o.Review(t.Context(), key, now, nil)
	}
	if open := o.Open(now); len(open) != 1 || len(open["c"]) != 1 {
		t.Errorf("%+v", open)
	}
	// Once a write has lasted, the other client has stopped.
	now = now.Add(Lasting - time.Second)
	o.Review(t.Context(), "a", now, nil)
	if text := log.String(); len(o.Open(now)) != 1 || strings.Count(text, "writes no longer overridden") != 1 {
		t.Errorf("%v\n%s", o.Open(now), text)
	}
	now = now.Add(time.Minute)
	o.Review(t.Context(), "a", now, nil)
	if text := log.String(); len(o.Open(now)) > 0 || strings.Count(text, "writes no longer overridden") != 2 {
		t.Errorf("%v\n%s", o.Open(now), text)
	}
	// It is remembered for longer: the next change is one too many.
	write("c", 5, 1)
	if open := o.Open(now); len(open) != 1 || open["c"][0].Since != now {
		t.Errorf("%+v", open)
	}
	now = now.Add(Calm)
	o.Review(t.Context(), "a", now, nil)
	if text := log.String(); len(o.Open(now)) > 0 || len(o.keys) > 0 || strings.Count(text, "writes no longer overridden") != 2 {
		t.Errorf("%v; %v\n%s", o.Open(now), o.keys, text)
	}
}

// TestAnOverrideIsOverOnceAWriteLasts follows an object that another client changes, and then no
// longer: it counts as overridden while it isn't as desired, however long a write waits, and for
// a minute after.
func TestAnOverrideIsOverOnceAWriteLasts(t *testing.T) {
	o, now := NewOverrides[string](slog.New(slog.DiscardHandler)), time.Unix(1e9, 0)
	w := Write{Object: "a", Have: 5, Want: 1}
	review := func(after time.Duration, open bool, writes ...Write) {
		t.Helper()
		now = now.Add(after)
		o.Review(t.Context(), "k", now, writes)
		if got := len(o.Of("k", now)) > 0; got != open {
			t.Errorf("overridden: %v, want %v", got, open)
		}
	}
	for range 3 {
		o.Review(t.Context(), "k", now, []Write{w})
		o.Wrote(t.Context(), "k", now, &w, 1)
	}
	review(time.Second, true, w)
	review(4*time.Minute, true, w)
	o.Wrote(t.Context(), "k", now, &w, 1)
	review(Lasting-time.Second, true)
	review(time.Second, false)
	// The other client changes it, and back again by itself.
	review(time.Second, true, w)
	review(time.Second, true)
	review(Lasting-time.Second, true)
	review(time.Second, false)
}
