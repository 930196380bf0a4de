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
			{0, 5, 1, true, longestUrgent, 0, true}, {0, 0, 1, false, longestUrgent, 0, true}, {0, 5, 1, false, 16 * second, 0, true}, {16 * second, 5, 1, false, 0, 1, true},
			{32 * second, 5, 1, false, 0, 1, true}, {64 * second, 5, 1, false, 0, 1, true}, {128 * second, 5, 1, false, 0, 1, true},
			{256 * second, 5, 1, false, 0, 1, true}, {0, 5, 1, false, longestWait, 0, true}, {longestWait, 5, 1, false, 0, 1, true},
			{longestWait - second, 5, 1, false, second, 0, true}, {0, 5, 1, true, 0, 1, true},
			// A change of the desired state doesn't.
			{0, 5, 2, false, 0, 2, true}, {0, 5, 3, false, 0, 3, true}, {0, 5, 3, false, longestWait, 0, true}, {0, 5, 4, false, 0, 4, true},
		}},
		{"those that last for a while don't", []step{
			{0, 0, 1, false, 0, 1, false}, {time.Minute, 5, 1, false, 0, 1, false}, {time.Minute, 5, 1, false, 0, 1, false},
			{time.Minute, 5, 1, false, 0, 1, false}, {0, 5, 1, false, 0, 1, false}, {0, 5, 1, false, 250 * ms, 0, false},
		}},
		{"an object that is deleted or created again, too", []step{
			{0, 0, 1, false, 0, 1, false}, {0, 0, 1, false, 0, 1, false}, {0, 0, 1, false, 250 * ms, 0, false}, {0, 1, 0, true, 0, 0, false},
			{0, 1, 0, true, 250 * ms, 0, false}, {250 * ms, 1, 0, true, 0, 0, true},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			o, now := NewOverrides[string](slog.New(slog.DiscardHandler)), time.Unix(1e9, 0)
			for i, s := range c.steps {
				now = now.Add(s.after)
				w := Write{Object: "a", Have: s.have, Want: s.want, Urgent: s.urgent}
				if wait := o.Review("k", now, []Write{w})[0]; wait != s.wait {
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

// TestMemoryOfOverridesIsBounded creates and deletes many objects, as a hostile remote may,
// beside an object that another client changes.
func TestMemoryOfOverridesIsBounded(t *testing.T) {
	const many = maxWrites + 10_000
	for _, c := range []struct {
		name   string
		got    uint64 // response to the creation
		delete bool
		most   int
	}{
		{"created and deleted", 1, true, manyWrites},
		{"created, changed by the server and deleted", 9, true, manyWrites},
		{"created", 1, false, manyWrites},
		{"created, and changed by the server", 9, false, 2 * maxWrites},
	} {
		t.Run(c.name, func(t *testing.T) {
			o, now := NewOverrides[string](slog.New(slog.DiscardHandler)), time.Unix(1e9, 0)
			fight := Write{Object: "fought over", Have: 5, Want: 1}
			for range 12 {
				o.Wrote(t.Context(), "fought over", now, &fight, 1)
			}
			o.Review("fought over", now, []Write{fight})
			most := 0
			for i := range many {
				now = now.Add(time.Millisecond)
				key := fmt.Sprintf("key-%d", i)
				w := Write{Object: "service " + key, Want: 1}
				o.Review(key, now, []Write{w})
				o.Wrote(t.Context(), key, now, &w, c.got)
				if c.delete {
					w.Have, w.Want = c.got, 0
					o.Review(key, now, []Write{w})
					o.Wrote(t.Context(), key, now, &w, 0)
				}
				most = max(most, o.count)
			}
			if most > c.most+1 || o.count < len(o.last) {
				t.Errorf("%d writes are remembered, want %d at most; now %d of %d objects", most, c.most, o.count, len(o.last))
			}
			if c.most == manyWrites && len(o.last["fought over"]) != 1 {
				t.Errorf("an object that was overridden is forgotten: %+v", o.last["fought over"])
			}
			now = now.Add(2 * Calm)
			o.Review("another", now, nil)
			if o.count > 0 || len(o.last) > 0 {
				t.Errorf("%d writes are left", o.count)
			}
		})
	}
}

func TestOverridesAreReportedUntilTheyEnd(t *testing.T) {
	log := &logtest.Buffer{}
	o, now := NewOverrides[string](slog.New(slog.NewTextHandler(log, nil))), time.Unix(1e9, 0)
	write := func(key string, have, got uint64) {
		w := Write{Object: "service " + key, Have: have, Want: 1, By: "them"}
		o.Wrote(t.Context(), key, now, &w, got)
	}
	write("a", 0, 9)
	write("b", 0, 9)
	write("c", 0, 1)
	write("c", 5, 1)
	write("c", 5, 1)
	open := o.Open(now)
	if len(open) != 3 || open["a"][0].String() != "service a: the API server stores other values than those written (an admission policy, a webhook, or a server that doesn't know a field)" ||
		open["c"][0].String() != "service c: them changes it after each write" || open["c"][0].Next.Sub(now) != 2*firstWait || open["a"][0].Next.Sub(now) != Calm {
		t.Errorf("%+v", open)
	}
	if text := log.String(); strings.Count(text, "write overridden") != 3 {
		t.Errorf("three overridden objects, logged:\n%s", text)
	}
	// A key that has nothing to write is no longer overridden by the server.
	for _, key := range []string{"a", "b", "c"} {
		o.Review(key, now, nil)
	}
	if open := o.Open(now); len(open) != 1 || len(open["c"]) != 1 {
		t.Errorf("%+v", open)
	}
	// Once a write has lasted, the other client has stopped.
	now = now.Add(Lasting)
	if open := o.Open(now); len(open) > 0 {
		t.Errorf("%+v", open)
	}
	// The next change is the first one again.
	now = now.Add(2 * time.Second)
	write("c", 5, 1)
	if open := o.Open(now); len(open) > 0 {
		t.Errorf("%+v", open)
	}
}

// TestAnOverrideIsOverOnceAWriteLasts follows an object that another client changes, and then no
// longer: it counts as overridden while it isn't as desired, and for a minute after.
func TestAnOverrideIsOverOnceAWriteLasts(t *testing.T) {
	o, now := NewOverrides[string](slog.New(slog.DiscardHandler)), time.Unix(1e9, 0)
	w := Write{Object: "a", Have: 5, Want: 1}
	review := func(after time.Duration, open bool, writes ...Write) {
		t.Helper()
		now = now.Add(after)
		o.Review("k", now, writes)
		if got := len(o.Of("k", now)) > 0; got != open {
			t.Errorf("overridden: %v, want %v", got, open)
		}
	}
	for range 3 {
		o.Review("k", now, []Write{w})
		o.Wrote(t.Context(), "k", now, &w, 1)
	}
	review(time.Second, true, w)
	review(time.Second, true, w)
	o.Wrote(t.Context(), "k", now, &w, 1)
	review(Lasting-time.Second, true)
	review(time.Second, false)
}
