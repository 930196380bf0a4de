package policy

import (
	"fmt"
	"net/netip"
	"testing"
)

// BenchmarkPass is the computation of one pass when one pod of many changed.
func BenchmarkPass(b *testing.B) {
	for _, count := range []int{5_000, 50_000} {
		b.Run(fmt.Sprint(count, " pods"), func(b *testing.B) {
			pods := make([]Pod, count)
			for i := range pods {
				pods[i] = Pod{
					Namespace: "ns", Name: fmt.Sprintf("pod-%d", i), Set: fmt.Sprintf("app-%d", i%100),
					V4: netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}),
				}
			}
			rules := Rules{Cluster: "gcp", Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
			members := Collect(pods, rules, never)
			objects, err := Plan("gcp", members.Sets, nil, 0)
			if err != nil {
				b.Fatal(err)
			}
			have := apply(nil, Diff("gcp", nil, objects))
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				pods[n%count].V4 = netip.AddrFrom4([4]byte{10, 200, byte(n >> 8), byte(n)})
				members := Collect(pods, rules, never)
				objects, err := Plan("gcp", members.Sets, have, 0)
				if err != nil {
					b.Fatal(err)
				}
				eased, _ := Ease("gcp", have, objects, func(Held) bool { return false })
				if changes := Diff("gcp", have, eased); len(changes) == 0 {
					b.Fatal("no change")
				}
			}
		})
	}
}
