package peers

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"
)

// TestCanonicalNodes: a node and its canonical form become the same peer, with the same
// reasons for what is rejected, and the canonical form of that is equal.
func TestCanonicalNodes(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 37))
	one := func(texts ...string) string { return texts[random.IntN(len(texts))] }
	for range 5000 {
		n := &Node{
			Name: one("a", "b.example"), Created: one2(random, time.Time{}, epoch.In(time.FixedZone("", 3600))),
			PublicKey: one("", "x", "\x1b[31m", key(7).String(), key(0xff).String(), key(0).String()),
			Endpoint:  one("", "x", "10.22.0.1:51820", "[::ffff:10.22.0.1]:51820", "[FD22::1]:7", "[fe80::1%eth0]:7", "0.0.0.0:1", "10.22.0.1:0", "10.4.0.1:9"),
			Published: random.IntN(2) == 0,
		}
		for range random.IntN(6) {
			n.PodCIDRs = append(n.PodCIDRs, one("10.4.1.0/24", "10.4.1.7/24", "10.4.2.0/24", "FD04::/64", "::ffff:10.4.3.0/120", "10.9.0.0/24", "", "10.4.0.0/33", "\u202e"))
		}
		for range random.IntN(3) {
			n.Allocated = append(n.Allocated, one("10.4.1.0/24", "x", "0.0.0.0/0", "fd04::1/64"))
		}
		c := n.Canonical()
		if again := c.Canonical(); !c.Equal(again) {
			t.Fatalf("%+v\nthen %+v", c, again)
		}
		want, rejected := Desired([]*Node{n}, rules)
		got, refused := Desired([]*Node{c}, rules)
		if !reflect.DeepEqual(got, want) || !slices.Equal(reasons(refused), reasons(rejected)) {
			t.Fatalf("%+v:\n%+v %+v\ncanonical %+v:\n%+v %+v", n, want, rejected, c, got, refused)
		}
	}
}

func one2(random *rand.Rand, a, b time.Time) time.Time {
	if random.IntN(2) == 0 {
		return a
	}
	return b
}

// reasons returns the different reasons of rejections.
func reasons(rejected []Rejection) (all []Reason) {
	for _, r := range rejected {
		all = append(all, r.Reason)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
