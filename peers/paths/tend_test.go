package paths

import (
	"log/slog"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/synctest"
)

// TestTendReadsWhatIsDue counts the reads of the device, each of which is of all peers.
func TestTendReadsWhatIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, d := monitor(1, nil, slog.DiscardHandler)
		tend := func(what string, wait time.Duration, want int) {
			t.Helper()
			time.Sleep(wait)
			before := d.reads
			if err := m.Tend(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n := d.reads - before; n != want {
				t.Errorf("%s: %d reads, want %d", what, n, want)
			}
		}
		due := func(what string, want time.Duration) {
			t.Helper()
			if in := time.Until(m.TendDue()); in != want {
				t.Errorf("%s: due in %v, want %v", what, in, want)
			}
		}
		tend("at first it listens", 0, 1)
		due("the first attempt", attemptTimes()[0])
		tend("before the first attempt", time.Millisecond, 0)
		tend("at the first attempt", attemptTimes()[0], 1)
		m.handshakes.fresh = nil
		due("without new peers", listenSpacing-attemptTimes()[0]-time.Millisecond)
		m.tending.renew.Store(true)
		tend("silent peers", time.Second, 1)
		tend("no longer", verifyAgain, 0)

		d.gone = true
		m.tending.renew.Store(true)
		tend("without a device", listenSpacing, 0)
		due("without a device", listenSpacing)
	})
}
