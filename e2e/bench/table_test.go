package main

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/e2e/bench/measure"
)

func TestSpreadOfIsMedianAndExtremes(t *testing.T) {
	value := func(v float64) float64 { return v }
	for name, c := range map[string]struct {
		series []float64
		want   spread
	}{
		"one":             {[]float64{3}, spread{3, 3, 3}},
		"odd, not sorted": {[]float64{9, 1, 4}, spread{4, 1, 9}},
		"even":            {[]float64{4, 1, 2, 9}, spread{3, 1, 9}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, spreadOf(c.series, value), cmp.AllowUnexported(spread{})); diff != "" {
				t.Error(diff)
			}
		})
	}
	if got := spreadOf(nil, value); !math.IsNaN(got.median) {
		t.Errorf("median of nothing: %v", got.median)
	}
}

// The ratio of the table is the median of ratios: a moment in which both sides
// are slow must not count.
func TestTablePrintsMedianOfRatios(t *testing.T) {
	var tab table
	tab.add(row{
		what: "speed", beside: "theirs", unit: number, goal: goal{atLeast: 0.98},
		pairs: []pair{{100, 100}, {10, 10}, {300, 200}},
	})
	tab.add(row{what: "memory", beside: "theirs", unit: size, goal: goal{atMost: 2}, pairs: []pair{{3e6, 1e6}}})
	tab.note("%d things", 3)
	var got strings.Builder
	if _, err := tab.WriteTo(&got); err != nil {
		t.Fatal(err)
	}
	want := strings.Join([]string{
		"what    ours  beside it          ratio  min..max    pairs  goal",
		"speed   100   100        theirs  1.00   1.00..1.50  3      >= 0.98 met",
		"memory  3 MB  1 MB       theirs  3.00   3.00..3.00  1      <= 2.00 MISSED",
		"3 things",
		"",
	}, "\n")
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Error(diff)
	}
	tab.alone = []measure.Result{measure.Alone("things", "", 3)}
	results := []measure.Result{
		{Name: "speed", With: "theirs", Ours: new(100.0), Beside: new(100.0), Ratio: new(1.0), Spread: []float64{1, 1.5}, Pairs: 3},
		{Name: "memory", Unit: "MB", With: "theirs", Ours: new(3.0), Beside: new(1.0), Ratio: new(3.0), Spread: []float64{3, 3}, Pairs: 1},
		{Name: "things", Ours: new(3.0)},
	}
	if diff := cmp.Diff(results, tab.results()); diff != "" {
		t.Error(diff)
	}
}
