package testbed_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

func TestPingSeriesReportsTheLongestGap(t *testing.T) {
	p := startPair(t)
	from, to := p.aws1.Node, p.aws2.Node
	const outage = 400 * time.Millisecond
	for _, address := range to.Addresses() {
		result := pingThroughOutage(t, p.tb, from, to, address, outage)
		if result.Received == 0 || result.Received >= result.Sent || result.LongestGap < outage || result.LongestGap > 20*outage {
			t.Errorf("%s: %+v, want some lost and a gap of at least %s", address, result, outage)
		}
	}
}

func pingThroughOutage(t *testing.T, tb *testbed.Testbed, from, to *testbed.Node, address netip.Addr, outage time.Duration) testbed.PingResult {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	series := make(chan testbed.PingResult)
	go func() {
		result, err := from.PingSeries(ctx, address, 10*time.Millisecond)
		if err != nil {
			t.Error(err)
		}
		series <- result
	}()
	if err := from.Ping(quick(t), address); err != nil {
		t.Error(err)
	}
	if err := tb.Drop(from, to); err != nil {
		t.Error(err)
	}
	// An earlier reply may be read with a delay.
	<-time.After(2 * outage)
	if err := tb.Restore(from, to); err != nil {
		t.Error(err)
	}
	if err := from.Ping(quick(t), address); err != nil {
		t.Error(err)
	}
	cancel()
	return <-series
}
