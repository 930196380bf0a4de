package routes

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDesired(t *testing.T) {
	tests := map[string]struct {
		subnets []string
		device  int
		src     []string
		want    []string
	}{
		"nothing configured": {
			device: 7,
		},
		"guard and device route for each subnet": {
			subnets: []string{"10.4.0.0/16", "10.2.0.0/16"},
			device:  7,
			want: []string{
				"unreachable 10.2.0.0/16 metric 4294967295",
				"unreachable 10.4.0.0/16 metric 4294967295",
				"10.2.0.0/16 dev 7",
				"10.4.0.0/16 dev 7",
			},
		},
		"only guards without a device": {
			subnets: []string{"10.4.0.0/16", "fd04::/48"},
			want: []string{
				"unreachable 10.4.0.0/16 metric 4294967295",
				"unreachable fd04::/48 metric 4294967295",
			},
		},
		"source of the family of the subnet": {
			subnets: []string{"10.4.0.0/16", "fd04::/48"},
			device:  7,
			src:     []string{"fd01::1", "10.1.0.1", "10.1.0.2"},
			want: []string{
				"unreachable 10.4.0.0/16 metric 4294967295",
				"unreachable fd04::/48 metric 4294967295",
				"10.4.0.0/16 dev 7 src 10.1.0.1",
				"fd04::/48 dev 7 src fd01::1",
			},
		},
		"no source for a family without one": {
			subnets: []string{"fd04::/48"},
			device:  7,
			src:     []string{"10.1.0.1"},
			want: []string{
				"unreachable fd04::/48 metric 4294967295",
				"fd04::/48 dev 7",
			},
		},
		"one subnet written in two ways": {
			subnets: []string{"10.4.0.0/16", "10.4.3.2/16"},
			device:  7,
			want: []string{
				"unreachable 10.4.0.0/16 metric 4294967295",
				"10.4.0.0/16 dev 7",
			},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var src []netip.Addr
			for _, s := range test.src {
				src = append(src, netip.MustParseAddr(s))
			}
			got := text(Desired(prefixes(test.subnets...), test.device, src))
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("routes (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDiffPutsGuardsFirstInAndLastOut(t *testing.T) {
	routes := Desired(prefixes("10.2.0.0/16", "10.4.0.0/16"), 7, nil)
	add, none := Diff(nil, routes)
	if diff := cmp.Diff([]string{
		"unreachable 10.2.0.0/16 metric 4294967295",
		"unreachable 10.4.0.0/16 metric 4294967295",
		"10.2.0.0/16 dev 7",
		"10.4.0.0/16 dev 7",
	}, text(add)); diff != "" || len(none) != 0 {
		t.Errorf("from nothing: remove %v, add (-want +got):\n%s", none, diff)
	}
	none, remove := Diff(routes, nil)
	if diff := cmp.Diff([]string{
		"10.4.0.0/16 dev 7",
		"10.2.0.0/16 dev 7",
		"unreachable 10.4.0.0/16 metric 4294967295",
		"unreachable 10.2.0.0/16 metric 4294967295",
	}, text(remove)); diff != "" || len(none) != 0 {
		t.Errorf("to nothing: add %v, remove (-want +got):\n%s", none, diff)
	}
}

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

func TestRetain(t *testing.T) {
	src := netip.MustParseAddr("10.1.0.1")
	installed := Desired(prefixes("10.2.0.0/16", "10.4.0.0/16"), 7, []netip.Addr{src})
	want := Desired(prefixes("10.4.0.0/16", "10.6.0.0/16"), 7, nil)
	guards := []string{"unreachable 10.4.0.0/16 metric 4294967295", "unreachable 10.6.0.0/16 metric 4294967295"}
	for name, test := range map[string]struct {
		installed []Route
		add       bool
		want      []string
	}{
		"an installed route keeps its source":    {installed, true, append(guards, "10.4.0.0/16 dev 7 src 10.1.0.1", "10.6.0.0/16 dev 7")},
		"others wait until the device was seen":  {installed, false, append(guards, "10.4.0.0/16 dev 7 src 10.1.0.1")},
		"one through another device is no model": {Desired(prefixes("10.4.0.0/16"), 8, nil), false, guards},
		"nothing is installed":                   {nil, false, guards},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, text(Retain(want, test.installed, test.add))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
