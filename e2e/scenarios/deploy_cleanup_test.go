package scenarios_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// takeOut uninstalls the example as documented.
func (e *example) takeOut(t *testing.T) {
	for i, c := range e.clusters {
		e.kubectl(t, c, "apply", "-k", filepath.Join(e.folder, c.Name+"-cleanup"))
		for _, pod := range e.agents(t, c, "cleanup") {
			select {
			case <-pod.Done():
			case <-within(t, time.Minute).Done():
				pod.Kill()
			}
			if pod.Err() != nil {
				t.Fatalf("clean-up: %v\n%s", pod.Err(), pod.Tail(20))
			}
			must(t, pod.stopSidecars(within(t, time.Minute)))
		}
		if out := e.kubectl(t, c, "get", "nodes", "-o", "yaml"); strings.Contains(out, "wireguard.semaphore.uw.io") {
			t.Errorf("a node of %s still carries our annotations:\n%s", c.Name, out)
		}
		for _, node := range c.Nodes() {
			must(t, programs.Clean(t.Context(), node))
		}
		e.kubectl(t, c, "delete", calico[i].GroupResource().String(), "-l", "managed-by=semaphore-policy")
		// Without a controller manager the deletion of the namespace never ends.
		e.kubectl(t, c, "delete", "--wait=false", "-k", filepath.Join(e.folder, c.Name))
		e.gone(t, c)
	}
}

// gone checks that no object of ours remains in a cluster, except for those in the
// namespace.
func (e *example) gone(t *testing.T, c *testbed.Cluster) {
	t.Helper()
	namespace, err := c.Client().CoreV1().Namespaces().Get(t.Context(), systemNamespace, metav1.GetOptions{})
	if err == nil && namespace.DeletionTimestamp == nil {
		t.Errorf("the namespace of %s isn't deleted", c.Name)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		t.Error(err)
	}
	kinds := e.kubectl(t, c, "api-resources", "--namespaced=false", "--verbs=list", "-o", "name")
	for kind := range strings.Lines(kinds) {
		kind = strings.TrimSpace(kind)
		if kind == "namespaces" {
			continue
		}
		if out := e.kubectl(t, c, "get", kind, "-o", "name"); strings.Contains(out, "semaphore") {
			t.Errorf("left in %s: %s", c.Name, out)
		}
	}
}
