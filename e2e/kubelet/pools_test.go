package kubelet_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// calicoOf is the form of Calico's API in a cluster: the older one in gcp.
func calicoOf(cluster int) schema.GroupVersion {
	if cluster == 1 {
		return schema.GroupVersion{Group: "crd.projectcalico.org", Version: "v1"}
	}
	return schema.GroupVersion{Group: "projectcalico.org", Version: "v3"}
}

// serveCalico makes API servers serve the needed part of Calico's API, and creates the pools
// for pods of aws. Calico itself doesn't run.
func (l *lab) serveCalico(t *testing.T) {
	t.Helper()
	l.each(t, func(i int) error {
		api := calicoOf(i)
		form := strings.NewReplacer("projectcalico.org", api.Group, "name: v3", "name: "+api.Version)
		for _, file := range []string{"v3.yaml", "pools.yaml", "networkpolicies.yaml"} {
			definition, err := os.ReadFile(filepath.Join(l.root, "policy", "testdata", file))
			if err != nil {
				return err
			}
			path := filepath.Join(t.TempDir(), file)
			if err := os.WriteFile(path, []byte(form.Replace(string(definition))), 0o600); err != nil {
				return err
			}
			if err := l.clusters[i].Apply(t.Context(), path); err != nil {
				return err
			}
		}
		return nil
	})
	aws := l.clusters[0]
	for i, name := range []string{"default-ipv4-ippool", "default-ipv6-ippool"} {
		must(t, testbed.Wait(within(t, time.Minute), "IP pool "+name, func(ctx context.Context) error {
			_, err := aws.Dynamic().Resource(calicoOf(0).WithResource("ippools")).Create(ctx, &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "projectcalico.org/v3", "kind": "IPPool", "metadata": map[string]any{"name": name},
				"spec": map[string]any{"cidr": aws.PodSubnets[i].String(), "natOutgoing": true},
			}}, metav1.CreateOptions{})
			return err
		}))
	}
}

// hasPools checks that aws and gcp have pools for each other's pods, from which Calico
// neither allocates addresses nor exports routes.
func (l *lab) hasPools(t *testing.T) {
	t.Helper()
	found, want := map[string]any{}, map[string]any{}
	for i, remote := range []string{"gcp", "aws"} {
		prefixes := [][]string{{l.nodes[1].PodCIDRs[0].String(), l.nodes[1].PodCIDRs[1].String()}, {l.clusters[0].PodSubnets[0].String(), l.clusters[0].PodSubnets[1].String()}}[i]
		for j, name := range []string{"remote-" + remote, "remote-" + remote + "-ipv6"} {
			pool, err := l.clusters[i].Dynamic().Resource(calicoOf(i).WithResource("ippools")).Get(t.Context(), name, metav1.GetOptions{})
			must(t, err)
			found[name] = pool.Object["spec"]
			want[name] = map[string]any{"cidr": prefixes[j], "disabled": true, "natOutgoing": false, "disableBGPExport": true}
		}
	}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Errorf("pools (-want +got):\n%s", diff)
	}
}
