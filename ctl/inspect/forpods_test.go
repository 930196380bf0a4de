package inspect

import (
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
)

// TestReadForPods reads a cluster of which only nodes and workloads may be read: what the pods of
// verify and doctor don't need isn't asked for, so that nothing is missing.
func TestReadForPods(t *testing.T) {
	c := fakeCluster("https://api.example:6443", node("a", "10.66.1.1"))
	c.Client.(*fake.Clientset).PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		switch action.GetResource().Resource {
		case "nodes", "namespaces", "daemonsets", "deployments", "version":
			return false, nil, nil
		}
		return true, nil, errors.New("forbidden: " + action.GetResource().Resource)
	})
	if f := ReadForPods(t.Context(), []*cli.Cluster{c})[0]; len(f.Unread) > 0 || len(f.Nodes) != 1 || f.Version != "v1.36.3" {
		t.Errorf("%+v", f)
	}
	if f := Read(t.Context(), c); len(f.Unread) == 0 {
		t.Error("join misses nothing")
	}
}
