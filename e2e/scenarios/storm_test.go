package scenarios_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/event"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/clientset"
)

// TestManyAgentsMakeFewEvents lets 300 agents report the same at the same moment,
// without the wait that spreads them, with the rights of our manifests: one Event
// comes of one rejected node, and a handful of thousands.
func TestManyAgentsMakeFewEvents(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	must(t, cluster.Apply(t.Context(), filepath.Join(deployFolder(t), "wireguard", "rbac.yaml")))
	must(t, cluster.AwaitRight(t.Context(), systemNamespace, agentAccount, authorizationv1.ResourceAttributes{
		Namespace: systemNamespace, Verb: "create", Resource: "events",
	}, true))
	client := clientWith(t, cluster, agentToken(t, cluster, "aws-1"))
	remote := func(name string, rejected int) event.Remote {
		remote := event.Remote{Name: name, Summary: func(all []event.Condition) event.Condition {
			return event.Condition{ID: "all", Reason: name + "Many", Message: fmt.Sprint(len(all))}
		}}
		for i := range rejected {
			node := fmt.Sprintf("%s-%05d", name, i)
			remote.Conditions = append(remote.Conditions, event.Condition{ID: node, Reason: name + "Rejected", Message: node + " is rejected"})
		}
		return remote
	}
	remotes := []event.Remote{remote("gcp", 1), remote("merit", 3000)}
	const agents = 300
	must(t, testbed.InParallel(t.Context(), agents, func(ctx context.Context, i int) error {
		pod := event.Pod(systemNamespace, fmt.Sprintf("agent-%d", i), fmt.Sprint(i))
		recorder := event.NewRecorder(event.Config{Client: clientset.Client(client), Component: agentAccount, About: pod})
		loop := recorder.Loop(func() []event.Remote { return remotes })
		return errors.Join(loop.Reconcile(ctx), loop.Reconcile(ctx))
	}))
	list, err := cluster.Client().CoreV1().Events(systemNamespace).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	reasons := map[string]int{}
	for i := range list.Items {
		reasons[list.Items[i].Reason]++
	}
	if len(list.Items) != 7 || reasons["gcpRejected"] != 1 || reasons["meritRejected"] != 5 || reasons["meritMany"] != 1 {
		t.Errorf("%d Events: %v", len(list.Items), reasons)
	}
}
