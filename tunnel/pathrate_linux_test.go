package tunnel

import (
	"errors"
	"flag"
	"slices"
	"testing"
	"time"
)

// Flags for measuring:
//
//	go test ./tunnel -run RateOver -v -rate-rounds=9 -rate-bytes=12000000
//	go run ./e2e/kernel -v -run RateOver -args '-rate-rounds=25 -rate-bytes=400000' ./tunnel
var (
	rateRounds = flag.Int("rate-rounds", 1, "how often TestRateOverAPathThatIsTooNarrow measures")
	rateBytes  = flag.Int("rate-bytes", 256<<10, "how many bytes it sends each time")
)

// The rate over a path that is narrower than the tunnel's packets, for both backends in turn
// on the same link, with either MTU. It only logs the rates; it fails only when data is lost.
func TestRateOverAPathThatIsTooNarrow(t *testing.T) {
	eachBackend(t, func(t *testing.T, backend string) {
		a, b := sitesOver(t, backend, backend, narrowLink)
		meet(t, a, b, 0)
		conn := dial(t, a, b, 0)
		rate := func(mtu int) float64 {
			if err := errors.Join(setMTU(a.ns, "underlay", mtu), setMTU(b.ns, "underlay", mtu)); err != nil {
				t.Fatal(err)
			}
			echo(t, conn, *rateBytes/8) // until the path MTU is discovered
			start := time.Now()
			echo(t, conn, *rateBytes)
			return float64(*rateBytes) * 8 / 1e6 / time.Since(start).Seconds()
		}
		var ratios []float64
		for range *rateRounds {
			wide := rate(1500)
			narrow := rate(narrowMTU)
			ratios = append(ratios, narrow/wide)
			t.Logf("over 1500: %.0f Mbit/s each way, over %d: %.0f, ratio %.2f", wide, narrowMTU, narrow, narrow/wide)
		}
		slices.Sort(ratios)
		t.Logf("%s: ratio %.2f [%.2f-%.2f]", backend, ratios[len(ratios)/2], ratios[0], ratios[len(ratios)-1])
	})
}
