package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
)

// TestWorkPerEventIsConstant counts the allocations when one pod of many gets another address,
// until its set has been written and the watch has shown that, in sets of 50.
func TestWorkPerEventIsConstant(t *testing.T) {
	few, many := costOfEvent(t, 100), costOfEvent(t, 5000)
	if t.Logf("%.0f allocations with 100 pods, %.0f with 5,000", few, many); many > few*1.25 {
		t.Errorf("an event costs %.0f allocations with 5,000 pods, and %.0f with 100", many, few)
	}
}

func costOfEvent(t *testing.T, count int) float64 {
	s := newBench(t, func(cfg *Config) { cfg.Remotes[0].Rules.Subnets = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")} })
	pods := make([]*Pod, count)
	for i := range pods {
		p := podWith(fmt.Sprint("pod-", i), fmt.Sprint("app-", i/50))
		p.V4 = netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		pods[i] = &p
		s.update(nil, &p)
	}
	s.settle()
	n := 0
	return testing.AllocsPerRun(50, func() {
		i := n * 7919 % count
		after := *pods[i]
		after.V4 = netip.AddrFrom4([4]byte{10, 100 + byte(n>>16), byte(n >> 8), byte(n)})
		lost, got := s.pods.update(pods[i], &after)
		pods[i] = &after
		n++
		writes := 0
		for _, id := range slices.Concat(lost, got) {
			// Once more, as the watch shows the write.
			writes += len(s.write(id)) + len(s.write(id))
		}
		if writes != 1 {
			t.Fatalf("%d writes for one event", writes)
		}
	})
}
