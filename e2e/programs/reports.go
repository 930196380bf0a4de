package programs

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/pathreport"
)

// Reports returns the agents' reports of paths that are down in a cluster, by node.
func Reports(ctx context.Context, c *testbed.Cluster) (map[string]pathreport.Report, error) {
	list, err := c.Client().CoordinationV1().Leases(Namespace).List(ctx, metav1.ListOptions{LabelSelector: pathreport.Label + "=" + pathreport.LabelValue})
	if err != nil {
		return nil, err
	}
	all := map[string]pathreport.Report{}
	for i := range list.Items {
		r, err := pathreport.Read(&list.Items[i])
		if err != nil {
			return nil, err
		}
		all[r.Node] = r
	}
	return all, nil
}
