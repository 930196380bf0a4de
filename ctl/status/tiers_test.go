package status

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
)

// TestTiers proposes tiers to aws from the latencies of its paths, in milliseconds.
func TestTiers(t *testing.T) {
	for name, c := range map[string]struct {
		gcp, merit, mars []float64
		settings         map[string]string
		want             string // empty: no proposal
	}{
		"one is far":       {gcp: []float64{8, 9, 300}, merit: []float64{84}, want: "aws: gcp 9.0 ms, merit 84.0 ms: tiers 1 and 2 would prefer the nearest (SEMAPHORE_REMOTE_<NAME>_TIER)"},
		"the other is far": {gcp: []float64{84}, merit: []float64{9}, want: "aws: merit 9.0 ms, gcp 84.0 ms: tiers 1 and 2 would prefer the nearest (SEMAPHORE_REMOTE_<NAME>_TIER)"},
		"two near, one far": {
			gcp: []float64{9}, merit: []float64{11}, mars: []float64{40},
			want: "aws: gcp 9.0 ms, merit 11.0 ms, mars 40.0 ms: tiers 1, 1 and 2 would prefer the nearest (SEMAPHORE_REMOTE_<NAME>_TIER)",
		},
		"three distances": {
			gcp: []float64{9}, merit: []float64{30}, mars: []float64{90},
			want: "aws: gcp 9.0 ms, merit 30.0 ms, mars 90.0 ms: tiers 1, 2 and 3 would prefer the nearest (SEMAPHORE_REMOTE_<NAME>_TIER)",
		},
		"within one region": {gcp: []float64{1}, merit: []float64{3}},
		"alike":             {gcp: []float64{30}, merit: []float64{50}},
		"one isn't known":   {gcp: []float64{9}, merit: []float64{0}},
		"set":               {gcp: []float64{9}, merit: []float64{84}, settings: map[string]string{"SEMAPHORE_REMOTE_MERIT_TIER": "2"}},
	} {
		t.Run(name, func(t *testing.T) {
			v := &View{}
			for to, all := range map[string][]float64{"gcp": c.gcp, "merit": c.merit, "mars": c.mars} {
				m := Mesh{From: "aws", To: to}
				for _, ms := range all {
					m.Paths = append(m.Paths, []Path{{State: Up, RTT: ms / 1000}})
				}
				v.Meshes = append(v.Meshes, m)
			}
			aws := &inspect.Cluster{Name: "aws"}
			aws.Settings.Value = c.settings
			v.tiers([]*inspect.Cluster{aws, {Name: "gcp"}})
			var got []string
			for i := range v.Tiers {
				got = append(got, v.Tiers[i].String())
			}
			var page strings.Builder
			if err := v.HTML(&page); err != nil || c.want != "" && !strings.Contains(page.String(), "tiers 1") {
				t.Errorf("page: %v\n%s", err, page.String())
			}
			if diff := cmp.Diff(c.want, strings.Join(got, "\n")); diff != "" {
				t.Error(diff)
			}
		})
	}
}
