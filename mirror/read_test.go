package mirror

import (
	"log/slog"
	"testing"
	"time"
)

// TestEndedGracePeriodIsDue ends a grace period between a pass and the call of due.
func TestEndedGracePeriodIsDue(t *testing.T) {
	c := New(Config{Cluster: "gcp", Namespace: home, Logger: slog.New(slog.DiscardHandler)})
	end := time.Now().Add(-time.Second)
	if c.state.wait(time.Time{}, end); !c.due().IsZero() {
		t.Error("due before the mirror namespace has been read")
	}
	c.ready = true
	if due := c.due(); !due.Equal(end) {
		t.Errorf("due %v, want %v", due, end)
	}
	if c.state.wait(time.Time{}, time.Time{}); !c.due().IsZero() {
		t.Error("due after the removal")
	}
}
