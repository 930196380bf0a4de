package measure

import (
	"math"
	"testing"
	"time"
)

func TestQuantile(t *testing.T) {
	sorted := []float64{0, 10, 20, 30, 40}
	for q, want := range map[float64]float64{0: 0, 0.5: 20, 0.99: 39.6, 1: 40, 0.125: 5} {
		if got := Quantile(sorted, q); math.Abs(got-want) > 1e-9 {
			t.Errorf("quantile %v is %v, want %v", q, got, want)
		}
	}
}

func TestLatencies(t *testing.T) {
	if got := (Latencies{}).String(); got != "p50 0s, p99 0s" {
		t.Errorf("of none: %s", got)
	}
	l := Latencies{30 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond}
	if got, want := l.String(), "p50 20ms, p99 29.8ms"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if l[0] != 30*time.Millisecond {
		t.Error("the series was sorted in place")
	}
}

func TestCounter(t *testing.T) {
	const text = "# TYPE writes_total counter\nwrites_total{kind=\"a b\"} 3\nwrites_total{kind=\"c\"} 1e+06\nwrites_total_other 7\nplain 4\n"
	for name, want := range map[string]int{"writes_total": 1_000_003, "plain": 4, "absent": 0} {
		if got, err := Counter(text, name); err != nil || got != want {
			t.Errorf("%s: %d, %v, want %d", name, got, err, want)
		}
	}
	if _, err := Counter("writes_total x\n", "writes_total"); err == nil {
		t.Error("a value that is no number was taken")
	}
}
