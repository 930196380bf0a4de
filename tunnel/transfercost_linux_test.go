package tunnel

import (
	"flag"
	"net"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

// A flag for measuring:
//
//	go run ./e2e/kernel -v -run CostOfTransfers -args '-transfer-bytes=50000000' ./tunnel
var transferBytes = flag.Int("transfer-bytes", 1<<20, "bytes that TestCostOfTransfers sends each way")

// How long bytes take through a tunnel to an echo and back, beside the same without one. It only
// logs the times; it fails only where bytes are lost.
func TestCostOfTransfers(t *testing.T) {
	nstest.Long(t)
	const (
		requests = 500
		request  = 64
	)
	eachBackend(t, func(t *testing.T, backend string) {
		a, b := twoSites(t, backend, backend)
		meet(t, a, b, 0)
		through, around := dial(t, a, b, 0), dial(t, a.withoutTunnel(), b.withoutTunnel(), 0)
		measure := func(conn net.Conn) (all, one time.Duration) {
			start := time.Now()
			echo(t, conn, *transferBytes)
			all = time.Since(start)
			start = time.Now()
			for range requests {
				echo(t, conn, request)
			}
			return all, time.Since(start) / requests
		}
		measure(through) // Buffers grow, and count for neither.
		measure(around)
		for range 3 {
			ours, oneOurs := measure(through)
			bare, oneBare := measure(around)
			t.Logf("%s: %d bytes each way in %v, without a tunnel %v, ratio %.3f; %d bytes there and back in %v and %v, ratio %.2f",
				backend, *transferBytes, ours, bare, bare.Seconds()/ours.Seconds(), request, oneOurs, oneBare, oneOurs.Seconds()/oneBare.Seconds())
		}
	})
}

// withoutTunnel is the same site with the underlay's addresses in place of its pods'.
func (s *site) withoutTunnel() *site {
	outside := *s
	outside.pods = s.underlay
	return &outside
}
