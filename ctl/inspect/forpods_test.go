package inspect

import (
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
)

// TestOnlyWhatIsNeededIsAsked surveys a cluster of which only nodes and workloads may be read: what
// the pods of verify don't need isn't asked for, so that nothing is missing.
func TestOnlyWhatIsNeededIsAsked(t *testing.T) {
	c := fakeCluster("https://api.example:6443", node("a", "10.66.1.1"))
	c.Client.(*fake.Clientset).PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		switch action.GetResource().Resource {
		case "nodes", "daemonsets", "deployments", "configmaps", "version":
			return false, nil, nil
		}
		return true, nil, errors.New("forbidden: " + action.GetResource().Resource)
	})
	if got := Collect(t.Context(), []*cli.Cluster{c}, ForPods()...)[0]; got.Unread() != nil || len(got.Nodes.Value) != 1 || got.Kubernetes.Value != "v1.36.3" {
		t.Errorf("%+v", got)
	}
	if f := Read(t.Context(), c); len(f.Unread) == 0 {
		t.Error("join misses nothing")
	}
}
