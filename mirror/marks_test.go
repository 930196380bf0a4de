package mirror

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
)

// names returns the names of the services in the mirror namespace of a cluster, sorted.
func names(api *kubetest.API) []string {
	var all []string
	for _, s := range kubetest.All[corev1.Service](api, "services", home) {
		all = append(all, s.Name)
	}
	slices.Sort(all)
	return all
}

// TestMirrorsOfMirrors runs the mirrors of two clusters, each with a selector that excludes
// services instead of including them.
func TestMirrorsOfMirrors(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakes) {
		plain := func(name string) *corev1.Service { return kubetest.Service(name, nil) }
		put(t, f.aws, "shop", plain("web"), [2]string{"web-1", "10.4.0.1"})
		put(t, f.gcp, "shop", plain("web"), [2]string{"web-1", "10.2.0.1"})
		all := func(cfg *Config) {
			cfg.MirrorSelector = selector(t, mirrorMark+"!=false")
			cfg.GlobalSelector = selector(t, globalMark+"!=false")
			cfg.Remotes = cfg.Remotes[:1]
		}
		first := f.start(t, all)
		second := (&fakes{gcp: f.aws, aws: f.gcp, merit: f.merit}).start(t, func(cfg *Config) {
			all(cfg)
			cfg.Cluster = "aws"
			cfg.Remotes[0].Name, cfg.Remotes[0].Prefix = "gcp", "gcp"
		})
		leadsTo(t, f.gcp, webName, "10.4.0.1")
		leadsTo(t, f.gcp, globalName, "10.2.0.1", "10.4.0.1")
		leadsTo(t, f.aws, "gcp-shop-73736d-web", "10.2.0.1")
		leadsTo(t, f.aws, globalName, "10.2.0.1", "10.4.0.1")
		// A service that is added now is copied after all that could have been copied before.
		put(t, f.aws, "shop", plain("last"), [2]string{"last-1", "10.4.0.2"})
		leadsTo(t, f.gcp, "aws-shop-73736d-last", "10.4.0.2")
		put(t, f.gcp, "shop", plain("last"), [2]string{"last-1", "10.2.0.2"})
		leadsTo(t, f.aws, "gcp-shop-73736d-last", "10.2.0.2")
		first.stop()
		second.stop()
		for cluster, api := range map[string]*kubetest.API{"aws": f.gcp, "gcp": f.aws} {
			want := []string{cluster + "-shop-73736d-last", cluster + "-shop-73736d-web", "gl-shop-73736d-last", globalName}
			if diff := cmp.Diff(want, names(api)); diff != "" {
				t.Errorf("mirrors of %s (-want +got):\n%s", cluster, diff)
			}
		}
	})
}

// TestMarkedObjectsAreNobodysOrigin adds objects with marks of a service mirror to a remote
// and to the local cluster, in any namespace.
func TestMarkedObjectsAreNobodysOrigin(t *testing.T) {
	for _, c := range []struct {
		name                string
		labels, annotations map[string]string
		copied              bool
	}{
		{"none", nil, nil, true},
		{"a mirror", map[string]string{labelMirrored: "true", labelPrefix: "gcp"}, map[string]string{annotCluster: "gcp"}, false},
		{"a mirror of the original tool", map[string]string{labelMirrored: "true", labelPrefix: "gcp"}, nil, false},
		{"its annotation alone", nil, map[string]string{annotCluster: "gcp"}, false},
		{"a global service", map[string]string{labelMirrored: "true", labelGlobal: "true", labelPrefix: "gl"}, map[string]string{annotClusters: "aws"}, false},
		{"a global service of the original tool", map[string]string{labelGlobal: "true"}, nil, false},
		{"its annotation alone, of clusters", nil, map[string]string{annotClusters: "aws,gcp"}, false},
		{"another value of a label", map[string]string{labelMirrored: "false", labelGlobal: "false"}, nil, true},
		{"an annotation for users", nil, map[string]string{annotDrained: "true"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, f *fakes) {
				marked := svc("web", func(s *corev1.Service) {
					s.Labels[globalMark] = "true"
					maps.Copy(s.Labels, c.labels)
					s.Annotations = c.annotations
				})
				both := svc("last", func(s *corev1.Service) { s.Labels[globalMark] = "true" })
				for i, api := range []*kubetest.API{f.aws, f.gcp} {
					put(t, api, "shop", marked, [2]string{"web-1", fmt.Sprintf("10.%d.0.1", i)})
					put(t, api, "shop", both, [2]string{"last-1", fmt.Sprintf("10.%d.0.2", i)})
				}
				put(t, f.merit, "shop", svc("web", global), [2]string{"web-1", "10.6.0.1"})
				f.start(t, func(cfg *Config) { cfg.GlobalSelector = selector(t, globalMark+"=true") })
				leadsTo(t, f.gcp, "aws-shop-73736d-last", "10.0.0.2")
				leadsTo(t, f.gcp, "gl-shop-73736d-last", "10.0.0.2", "10.1.0.2")
				if c.copied {
					leadsTo(t, f.gcp, webName, "10.0.0.1")
					leadsTo(t, f.gcp, globalName, "10.0.0.1", "10.1.0.1", "10.6.0.1")
					// The marks come later: of this cluster's services alone the copies end.
					marked.Labels[labelMirrored] = "true"
					put(t, f.aws, "shop", marked)
				}
				want := []string{"10.6.0.1"}
				if c.copied {
					want = []string{"10.1.0.1", "10.6.0.1"}
				}
				leadsTo(t, f.gcp, globalName, want...)
				wait(t, "the end of the mirror", func() error {
					if got := names(f.gcp); slices.Contains(got, webName) {
						return fmt.Errorf("services %v", got)
					}
					return nil
				})
			})
		})
	}
}

// TestMarkedSlicesOfARealService adds slices with our marks to a service that has none: they
// are of a mirror, whatever their label says.
func TestMarkedSlicesOfARealService(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakes) {
		s := svc("web")
		put(t, f.aws, "shop", s, [2]string{"web-1", "10.4.0.1"})
		for name, mark := range map[string]func(*metav1.ObjectMeta){
			"by-label":      func(o *metav1.ObjectMeta) { o.Labels[discoveryv1.LabelManagedBy] = managedBy },
			"by-annotation": func(o *metav1.ObjectMeta) { o.Annotations = map[string]string{annotCluster: "gcp"} },
		} {
			sl := kubetest.EndpointSlice(s, name, "10.4.0.9")
			sl.Namespace = "shop"
			mark(&sl.ObjectMeta)
			f.aws.Put(t, "endpointslices", sl)
		}
		put(t, f.aws, "shop", svc("last"), [2]string{"last-1", "10.4.0.2"})
		f.start(t, nil)
		leadsTo(t, f.gcp, "aws-shop-73736d-last", "10.4.0.2")
		leadsTo(t, f.gcp, webName, "10.4.0.1")
	})
}
