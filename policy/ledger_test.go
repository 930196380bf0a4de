package policy

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func version(o Observed, v string) Observed {
	o.ResourceVersion = v
	return o
}

func TestLedger(t *testing.T) {
	old := version(ours("app", gcp("app"), "10.4.0.1"), "9")
	written := version(ours("app", gcp("app"), "10.4.0.2"), "10")
	later := version(ours("app", gcp("app"), "10.4.0.3"), "11")
	reborn := later
	reborn.UID = "another"
	for name, test := range map[string]struct {
		note  func(l *ledger)
		shown []Observed
		after time.Duration
		want  []Observed
	}{
		"the watch lags behind a write":         {func(l *ledger) { l.wrote(written) }, []Observed{old}, 0, []Observed{written}},
		"the watch shows the write":             {func(l *ledger) { l.wrote(written) }, []Observed{written}, 0, []Observed{written}},
		"the watch is ahead of the write":       {func(l *ledger) { l.wrote(written) }, []Observed{later}, 0, []Observed{later}},
		"the watch doesn't show a creation yet": {func(l *ledger) { l.wrote(written) }, nil, 0, []Observed{written}},
		"it never does: somebody deleted it":    {func(l *ledger) { l.wrote(written) }, nil, recentFor + 1, nil},
		"the watch showed it, and that it is gone": {
			func(l *ledger) { l.wrote(written); l.shown(&written); l.settled() }, nil, 0, nil,
		},
		"the watch showed it before the answer came, and that it is gone": {
			func(l *ledger) { defer l.begin("app")(); l.shown(&written); l.wrote(written) }, nil, 0, nil,
		},
		"the watch showed an older state before the answer came": {
			func(l *ledger) { defer l.begin("app")(); l.shown(&old); l.wrote(written) }, nil, 0, []Observed{written},
		},
		"the watch is about to show it": {
			func(l *ledger) { l.wrote(written); l.shown(&written) }, nil, 0, []Observed{written},
		},
		"the watch showed an older state": {
			func(l *ledger) { l.wrote(written); l.shown(&old); l.settled() }, nil, 0, []Observed{written},
		},
		"a write that never shows":              {func(l *ledger) { l.wrote(written) }, []Observed{old}, recentFor + 1, []Observed{old}},
		"the watch still shows what is deleted": {func(l *ledger) { l.deleted("app", old.UID) }, []Observed{old}, 0, nil},
		"created again by somebody":             {func(l *ledger) { l.deleted("app", old.UID) }, []Observed{reborn}, 0, []Observed{reborn}},
		"created again by us":                   {func(l *ledger) { l.deleted("app", old.UID); l.wrote(reborn) }, []Observed{old}, 0, []Observed{reborn}},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Unix(1000, 0)
			l := newLedger(func() ([]Observed, bool) { return test.shown, true })
			l.now = func() time.Time { return now }
			test.note(l)
			now = now.Add(test.after)

			if diff := cmp.Diff(byName(test.want...), l.view().sets, compareAddrs); diff != "" {
				t.Errorf("sets (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLatestKnowsWhatWasWrittenSinceAView(t *testing.T) {
	old := version(ours("app", gcp("app"), "10.4.0.1"), "9")
	written := version(ours("app", gcp("app"), "10.4.0.2"), "10")
	l := newLedger(func() ([]Observed, bool) { return nil, true })
	check := func(what string, have *Observed, v view, want *Observed) {
		t.Helper()
		if diff := cmp.Diff(want, l.latest("app", have, v.writes), compareAddrs); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	before := l.view()
	check("nothing written", &old, before, &old)
	l.wrote(written)
	check("created since", nil, before, &written)
	check("written since", &old, before, &written)
	l.shown(&written)
	l.settled()
	check("created since, and shown by the watch", nil, before, &written)
	// The view after that has it from the watch that the object is gone.
	check("deleted by somebody", nil, l.view(), nil)
	after := l.view()
	l.deleted("app", written.UID)
	check("deleted since", &written, after, nil)
}

func TestCompareVersions(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want int
	}{
		{"9", "10", -1}, {"10", "10", 0}, {"11", "10", 1}, {"99999999999999999999", "100000000000000000000", -1},
		{"", "10", -1}, {"x", "x", 0}, {"x", "y", -1},
	} {
		if got := compareVersions(test.a, test.b); got != test.want {
			t.Errorf("compare %q with %q: %d, want %d", test.a, test.b, got, test.want)
		}
	}
}
