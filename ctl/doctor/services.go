package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
)

// settled is the age from which on a change should have reached other clusters.
const settled = time.Minute

// unreached are the rules that explain why nodes don't reach each other, so that endpoints are
// withdrawn.
var unreached = append([]string{"udp-one-way", "udp-blocked", "path-down"}, unpeered...)

// serviceRules compare origins with what the mirrors of other clusters have made of them:
//
//	origin                      mirror                   cause
//	no ready endpoints          any                      origin-without-endpoints
//	ready endpoints             none, or other ones      mirror-outdated
//	is there                    isn't                    mirror-outdated
//
// and what a mirror that no longer exists has left.
func serviceRules() []Rule {
	behind := slices.Concat([]string{"mirror-not-running", "mirror-missing", "admission-refuses", "own-api-failing", "service-not-in-order"}, unreached, connecting())
	return []Rule{
		{
			ID:     "mirror-missing",
			Remedy: "install it again with semaphorectl join, or delete what it has left: Services and EndpointSlices in sys-semaphore with the label mirrored-svc=true",
			Find: func(f *Facts, found func(Finding)) {
				for _, c := range f.Clusters {
					if _, installed := c.Workload(inspect.ServiceMirror); !installed && c.Workloads.Known() && len(c.Imports.Value) > 0 {
						found(Finding{Scope{Cluster: c.Name}, "semaphore-service-mirror isn't installed in " + c.Name + ", and its services stay as they were", []Evidence{{fmt.Sprintf("%d services, such as %s", len(c.Imports.Value), c.Imports.Value[0].Object), c.Imports.Source}}})
					}
				}
			},
		},
		{
			ID:     "origin-without-endpoints",
			Remedy: "start the pods of this Service in its own cluster, or find out why they aren't ready: kubectl -n NAMESPACE get pods,endpointslices",
			Find:   withoutEndpoints,
		},
		{
			ID: "mirror-outdated", After: behind,
			Remedy: "find out from its log why semaphore-service-mirror doesn't write it: kubectl -n sys-semaphore logs deployment/semaphore-service-mirror",
			Find:   mirrorsBehind,
		},
	}
}

func withoutEndpoints(f *Facts, found func(Finding)) {
	for _, l := range inspect.Lacking(f.Clusters) {
		if f.onUnready(l.Cluster, slices.Collect(maps.Keys(l.Unready))) {
			continue
		}
		found(Finding{Scope{Cluster: l.Cluster.Name}, l.String(), []Evidence{{fmt.Sprintf("%d of %d endpoints are ready", l.Ready, l.All), endpointsOf(l.Cluster, l.KubeService)}}})
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
			// Endpoints to which paths are down are withdrawn; such a fault may be found on the
			// other side.
			behind := func(finding Finding) {
				if !f.explained(Scope{Cluster: origin.Name, Remote: c.Name}, unreached...) {
					found(finding)
				}
			}
			now := origin.Taken.Add(origin.Clock.Value)
			for i := range origin.Exports.Value {
				s := &origin.Exports.Value[i]
				mirror, scope := have[s.String()], Scope{Cluster: c.Name, Remote: origin.Name}
				if f.done() {
					return
				}
				switch {
				case s.External || now.Sub(s.Created) < settled || now.Sub(s.Changed) < settled:
				case mirror == nil:
					found(Finding{scope, fmt.Sprintf("service %s of %s has no mirror in %s", s, origin.Name, c.Name), []Evidence{{"its origin exists since " + s.Created.UTC().Format(time.RFC3339), c.Imports.Source}}})
				case s.Ready > 0 && mirror.Digest != s.Digest:
					behind(Finding{scope, fmt.Sprintf("the mirror of %s of %s has other endpoints than its origin", s, origin.Name), []Evidence{
						{fmt.Sprintf("its origin has %d ready endpoints", s.Ready), endpointsOf(origin, s)},
						{fmt.Sprintf("the mirror %s has %d", mirror.Object, mirror.Ready), c.Kubectl("-n sys-semaphore get endpointslices -l kubernetes.io/service-name=%s", mirror.Object)},
					}})
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
	return slices.Contains(strings.FieldsFunc(c.Settings.Value["SEMAPHORE_REMOTES"], func(r rune) bool { return r == ',' || r == ' ' }), name)
}
