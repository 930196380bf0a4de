package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
)

// Proposal is tiers for the remotes of a cluster, by their distance. Nothing sets them but an
// administrator.
type Proposal struct {
	Cluster string `json:"cluster"`
	Remotes []Near `json:"remotes"` // the nearest first
}

// Near is the distance of a remote.
type Near struct {
	Name string `json:"name"`
	// RTT is the median latency of the paths from all nodes, in seconds.
	RTT  float64 `json:"rtt"`
	Tier int     `json:"tier"`
}

// A remote is of the next tier if it is as many times as far as the nearest of a tier, and further
// by so many seconds: within one region tiers only cost capacity.
const (
	fartherTimes = 2
	fartherBy    = 0.005
)

// tiers proposes tiers for clusters whose remotes differ in distance, unless they have these.
func (v *View) tiers(clusters []*inspect.Cluster) {
	for _, c := range clusters {
		p := Proposal{Cluster: c.Name}
		for i := range v.Meshes {
			if m := &v.Meshes[i]; m.From == c.Name {
				if rtt := m.median(); rtt > 0 {
					p.Remotes = append(p.Remotes, Near{Name: m.To, RTT: rtt})
				}
			}
		}
		slices.SortFunc(p.Remotes, func(a, b Near) int { return cmp.Or(cmp.Compare(a.RTT, b.RTT), cmp.Compare(a.Name, b.Name)) })
		tier, nearest, set := 1, 0.0, true
		for i := range p.Remotes {
			r := &p.Remotes[i]
			switch {
			case i == 0:
				nearest = r.RTT
			case r.RTT >= fartherTimes*nearest && r.RTT >= nearest+fartherBy:
				tier, nearest = tier+1, r.RTT
			}
			r.Tier = tier
			set = set && cmp.Or(c.Settings.Value[cluster.Name(r.Name).Variables()+"_TIER"], "1") == fmt.Sprint(tier)
		}
		if tier > 1 && !set && c.Settings.Known() {
			v.Tiers = append(v.Tiers, p)
		}
	}
}

func (p *Proposal) String() string {
	var distances, tiers []string
	for i := range p.Remotes {
		distances = append(distances, p.Remotes[i].Name+" "+latency(p.Remotes[i].RTT))
		tiers = append(tiers, fmt.Sprint(p.Remotes[i].Tier))
	}
	last := len(tiers) - 1
	return fmt.Sprintf("%s: %s: tiers %s and %s would prefer the nearest (SEMAPHORE_REMOTE_<NAME>_TIER)",
		p.Cluster, strings.Join(distances, ", "), strings.Join(tiers[:last], ", "), tiers[last])
}

// median returns the median latency of all paths in seconds; 0: none is measured.
func (m *Mesh) median() float64 {
	var took []float64
	for i := range m.Paths {
		for j := range m.Paths[i] {
			if rtt := m.Paths[i][j].RTT; rtt > 0 {
				took = append(took, rtt)
			}
		}
	}
	return middle(took)
}

// middle sorts numbers, and returns the median; 0: there are none.
func middle(all []float64) float64 {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[len(all)/2]
}
