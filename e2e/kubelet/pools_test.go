package kubelet_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

var poolsResource = schema.GroupVersionResource{Group: "projectcalico.org", Version: "v3", Resource: "ippools"}

// makePools has the API server of aws serve Calico's IP pools, and makes those that pods of
// aws would have their addresses from. Calico itself doesn't run.
func (l *lab) makePools(t *testing.T) {
	t.Helper()
	aws := l.clusters[0]
	must(t, aws.Apply(t.Context(), filepath.Join(l.root, "policy", "testdata", "pools.yaml")))
	for i, name := range []string{"default-ipv4-ippool", "default-ipv6-ippool"} {
		must(t, testbed.Wait(within(t, time.Minute), "IP pool "+name, func(ctx context.Context) error {
			_, err := aws.Dynamic().Resource(poolsResource).Create(ctx, &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "projectcalico.org/v3", "kind": "IPPool", "metadata": map[string]any{"name": name},
				"spec": map[string]any{"cidr": aws.PodSubnets[i].String(), "natOutgoing": true},
			}}, metav1.CreateOptions{})
			return err
		}))
	}
}

// hasPools holds that aws has pools for the pods of gcp, as they are known by its nodes,
// which Calico neither gives addresses from nor exports. That they go is seen with all
// else.
func (l *lab) hasPools(t *testing.T) {
	t.Helper()
	found := map[string]any{}
	for _, name := range []string{"remote-gcp", "remote-gcp-ipv6"} {
		pool, err := l.clusters[0].Dynamic().Resource(poolsResource).Get(t.Context(), name, metav1.GetOptions{})
		must(t, err)
		found[name] = pool.Object["spec"]
	}
	want := map[string]any{}
	for i, name := range []string{"remote-gcp", "remote-gcp-ipv6"} {
		want[name] = map[string]any{"cidr": l.nodes[1].PodCIDRs[i].String(), "disabled": true, "natOutgoing": false, "disableBGPExport": true}
	}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Errorf("pools (-want +got):\n%s", diff)
	}
}
