package judge

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
)

// settled is the age from which on a change should have reached other clusters.
const settled = time.Minute

// Origins are compared with what the mirrors of other clusters have made of them:
//
//	origin                      mirror                   cause
//	no ready endpoints          any                      origin-without-endpoints
//	ready endpoints             none, or other ones      mirror-outdated
//	is there                    isn't                    mirror-outdated
//
// and what a mirror that no longer exists has left.
func mirrorMissing(f *Facts, found func(Finding)) {
	for _, c := range f.Clusters {
		if _, installed := c.Workload(inspect.ServiceMirror); !installed && c.Workloads.Known() && len(c.Imports.Value) > 0 {
			found(Finding{Scope: Scope{Cluster: c.Name}, Evidence: says(fmt.Sprintf("%d services, such as %s", len(c.Imports.Value), c.Imports.Value[0].Object), c.Imports.Source)})
		}
	}
}

func withoutEndpoints(f *Facts, found func(Finding)) {
	for _, l := range inspect.Lacking(f.Clusters) {
		if onUnready(l.Cluster, slices.Collect(maps.Keys(l.Unready))) {
			continue
		}
		finding := Finding{
			Scope: Scope{Cluster: l.Cluster.Name}, With: []string{"{service}", l.String(), "{clusters}", fmt.Sprint(l.Global)},
			Evidence: says(fmt.Sprintf("%d of %d endpoints are ready", l.Ready, l.All), endpointsOf(l.Cluster, l.KubeService)),
		}
		if l.Global > 0 {
			finding.Case = "global"
		}
		found(finding)
	}
}

func endpointsOf(c *inspect.Cluster, s *inspect.KubeService) string {
	return c.Kubectl("-n %s get endpointslices -l kubernetes.io/service-name=%s", s.Namespace, s.Name)
}

// mirrorsBehind finds mirrors that differ from their origin, if that hasn't changed lately.
func mirrorsBehind(f *Facts, found func(Finding)) {
	for _, c := range f.Clusters {
		if _, installed := c.Workload(inspect.ServiceMirror); !installed || !c.Imports.Known() || c.Custom(inspect.MirrorSetting) {
			continue // With another selector the exports are unknown.
		}
		for _, origin := range f.Clusters {
			if origin == c || !origin.Exports.Known() || !f.hasRemote(c, origin.Name) {
				continue
			}
			have := map[string]*inspect.KubeService{}
			for i := range c.Imports.Value {
				if s := &c.Imports.Value[i]; s.Origin == origin.Name {
					have[s.String()] = s
				}
			}
			now := origin.Taken.Add(origin.Clock.Value)
			for i := range origin.Exports.Value {
				s := &origin.Exports.Value[i]
				mirror, finding := have[s.String()], Finding{Scope: Scope{Cluster: c.Name, Remote: origin.Name}, With: []string{"{service}", s.String()}}
				if f.done() {
					return
				}
				switch {
				case s.External || now.Sub(s.Created) < settled || now.Sub(s.Changed) < settled:
				case mirror == nil:
					finding.Case, finding.Evidence = "missing", says("its origin exists since "+s.Created.UTC().Format(time.RFC3339), c.Imports.Source)
					found(finding)
				case s.Ready > 0 && mirror.Digest != s.Digest:
					// Endpoints to which paths are down are withdrawn.
					finding.Evidence = []Evidence{
						{fmt.Sprintf("its origin has %d ready endpoints", s.Ready), endpointsOf(origin, s)},
						{fmt.Sprintf("the mirror %s has %d", mirror.Object, mirror.Ready), c.Kubectl("-n sys-semaphore get endpointslices -l kubernetes.io/service-name=%s", mirror.Object)},
					}
					found(finding)
				}
			}
		}
	}
}

// hasRemote reports whether a cluster's service mirror, or its settings, have a remote.
func (f *Facts) hasRemote(c *inspect.Cluster, name string) bool {
	for i := range c.Mirrors {
		if m := &c.Mirrors[i]; m.Known() && slices.ContainsFunc(m.Value.Clusters, func(of statuspage.MirrorCluster) bool { return of.Name == name }) {
			return true
		}
	}
	return slices.Contains(c.Settings.Value.Remotes(), cluster.Name(name))
}
