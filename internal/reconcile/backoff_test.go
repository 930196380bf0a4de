package reconcile

import (
	"testing"
	"time"
)

func TestBackoffGrowsWithinItsBounds(t *testing.T) {
	b := Backoff{Min: time.Second, Max: 30 * time.Second}
	for range 100 {
		b.Reset()
		step := time.Second
		for attempt := range 80 {
			got := b.Next()
			if got < step || got > min(step+step/2, 30*time.Second) {
				t.Fatalf("wait %d = %v, want from %v to half as much again", attempt, got, step)
			}
			step = min(2*step, 20*time.Second)
		}
	}
}

func TestBackoffIsSpreadAtItsLimit(t *testing.T) {
	b := Backoff{Min: time.Second, Max: 30 * time.Second}
	seen := map[time.Duration]bool{}
	for range 50 {
		seen[b.Next()] = true
	}
	if len(seen) < 40 {
		t.Errorf("only %d different waits of 50", len(seen))
	}
}

func TestBackoffDefaults(t *testing.T) {
	var b Backoff
	if got := b.Next(); got < DefaultFirstWait || got > 2*DefaultFirstWait {
		t.Errorf("first wait = %v, want about %v", got, DefaultFirstWait)
	}
	for range 40 {
		if got := b.Next(); got > DefaultLongestWait {
			t.Fatalf("wait = %v, want at most %v", got, DefaultLongestWait)
		}
	}
}

func TestBackoffWithMinimumAboveMaximum(t *testing.T) {
	b := Backoff{Min: time.Minute, Max: time.Second}
	for range 10 {
		if got := b.Next(); got != time.Minute {
			t.Fatalf("wait = %v, want the minimum", got)
		}
	}
}
