package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
)

// BenchmarkEvent is all that is computed when one pod of many gets another address,
// until its set has been written and the watch has shown that, in sets of 50.
func BenchmarkEvent(b *testing.B) {
	for _, pods := range []int{500, 5_000, 50_000} {
		b.Run(fmt.Sprint(pods, " pods"), func(b *testing.B) { benchmarkEvent(b, pods) })
	}
}

func benchmarkEvent(b *testing.B, count int) {
	s := newBench(b, func(cfg *Config) { cfg.Remotes[0].Rules.Subnets = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")} })
	pods := make([]*Pod, count)
	for i := range pods {
		p := podWith(fmt.Sprint("pod-", i), fmt.Sprint("app-", i/50))
		p.V4 = netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		pods[i] = &p
		s.update(nil, &p)
	}
	s.settle()
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		i := n * 7919 % count
		after := *pods[i]
		after.V4 = netip.AddrFrom4([4]byte{10, 100 + byte(n>>16), byte(n >> 8), byte(n)})
		lost, got := s.pods.update(pods[i], &after)
		pods[i] = &after
		writes := 0
		for _, id := range slices.Concat(lost, got) {
			// Once more, as the watch shows the write.
			writes += len(s.write(id)) + len(s.write(id))
		}
		if writes != 1 {
			b.Fatalf("%d writes for one event", writes)
		}
	}
}
