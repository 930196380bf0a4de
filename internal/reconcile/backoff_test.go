package reconcile

import (
	"testing"
	"time"
)

func TestBackoffGrowsWithinItsBounds(t *testing.T) {
	for range 100 {
		b, step, seen := Backoff(time.Second, 30*time.Second), time.Second, map[time.Duration]bool{}
		for attempt := range 80 {
			got := b.Step()
			if got < step || got > step+step/2 {
				t.Fatalf("wait %d = %v, want from %v to half as much again", attempt, got, step)
			}
			seen[got], step = true, min(2*step, 20*time.Second)
		}
		if len(seen) < 60 {
			t.Errorf("only %d different waits of 80", len(seen))
		}
	}
}

func TestBackoffDefaults(t *testing.T) {
	b := Backoff(0, 0)
	if got := b.Step(); got < time.Second/2 || got > time.Second {
		t.Errorf("first wait = %v", got)
	}
	for range 40 {
		if got := b.Step(); got > time.Minute {
			t.Fatalf("wait = %v", got)
		}
	}
}
