package routes

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestDiffProperties checks for random routes: applying the difference yields the wanted
// routes; it has no routes of both sides; a second one is empty; and neither order nor
// repetition in the arguments matters.
func TestDiffProperties(t *testing.T) {
	for seed := range uint64(2000) {
		random := rand.New(rand.NewPCG(seed, 1))
		have, want := randomRoutes(random), randomRoutes(random)
		haveBefore, wantBefore := slices.Clone(have), slices.Clone(want)
		add, remove := Diff(have, want)

		if !slices.Equal(have, haveBefore) || !slices.Equal(want, wantBefore) {
			t.Fatalf("seed %d: arguments were changed", seed)
		}
		for _, r := range add {
			if slices.Contains(have, r) || !slices.Contains(want, r) {
				t.Errorf("seed %d: %s must not be added", seed, r)
			}
		}
		for _, r := range remove {
			if slices.Contains(want, r) || !slices.Contains(have, r) {
				t.Errorf("seed %d: %s must not be removed", seed, r)
			}
		}
		result := slices.DeleteFunc(append(slices.Clone(have), add...), func(r Route) bool {
			return slices.Contains(remove, r)
		})
		if diff := cmp.Diff(text(normalise(want)), text(normalise(result))); diff != "" {
			t.Errorf("seed %d: after the changes (-want +got):\n%s", seed, diff)
		}
		if add, remove := Diff(result, want); len(add)+len(remove) != 0 {
			t.Errorf("seed %d: second difference: add %v, remove %v", seed, add, remove)
		}
		random.Shuffle(len(have), func(i, j int) { have[i], have[j] = have[j], have[i] })
		add2, remove2 := Diff(append(have, have...), append(want, want...))
		if !slices.Equal(add, add2) || !slices.Equal(remove, remove2) {
			t.Errorf("seed %d: order or repetition changed the difference", seed)
		}
		if t.Failed() {
			return
		}
	}
}

func TestChoose(t *testing.T) {
	local := []localAddress{
		{addr: netip.MustParseAddr("192.0.2.10"), index: 2, usable: true},
		{addr: netip.MustParseAddr("10.1.3.9"), index: 9, usable: true},
		{addr: netip.MustParseAddr("10.1.3.2"), index: 5, usable: true},
		{addr: netip.MustParseAddr("10.1.3.1"), index: 5, usable: true},
		{addr: netip.MustParseAddr("10.1.3.0"), index: 4},
		{addr: netip.MustParseAddr("fd01:0:0:3::2"), index: 3},
		{addr: netip.MustParseAddr("fd01:0:0:3::1"), index: 5, usable: true},
		{addr: netip.MustParseAddr("fe80::1"), index: 2, usable: true},
	}
	tests := map[string]struct {
		within []string
		want   string
	}{
		"no pod subnet":                         {want: "[]"},
		"no address inside":                     {within: []string{"10.9.0.0/24"}, want: "[]"},
		"lowest link, then lowest address":      {within: []string{"10.1.3.0/24"}, want: "[10.1.3.1]"},
		"one for each family":                   {within: []string{"fd01:0:0:3::/64", "10.1.3.0/24"}, want: "[10.1.3.1 fd01:0:0:3::1]"},
		"several subnets of one family":         {within: []string{"192.0.2.0/24", "10.1.3.0/24"}, want: "[192.0.2.10]"},
		"an unusable address is not considered": {within: []string{"10.1.3.0/32"}, want: "[]"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := fmt.Sprint(choose(local, prefixes(test.within...))); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func randomRoutes(random *rand.Rand) []Route {
	subnets := prefixes("10.0.0.0/8", "10.2.0.0/16", "10.4.0.0/16", "10.4.0.0/24", "fd04::/48", "fd04::/64")
	sources := []netip.Addr{{}, netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("fd01::1")}
	routes := make([]Route, random.IntN(12))
	for i := range routes {
		routes[i] = Route{Prefix: subnets[random.IntN(len(subnets))], Guard: random.IntN(2) == 0}
		if !routes[i].Guard {
			routes[i].Device = 1 + random.IntN(3)
			routes[i].Src = sources[random.IntN(len(sources))]
		}
	}
	return routes
}

func prefixes(texts ...string) []netip.Prefix {
	var list []netip.Prefix
	for _, s := range texts {
		list = append(list, netip.MustParsePrefix(s))
	}
	return list
}

func text(routes []Route) []string {
	var lines []string
	for _, r := range routes {
		lines = append(lines, r.String())
	}
	return lines
}
