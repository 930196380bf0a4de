package scenarios_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// takeOut does what the example and the documentation tell an operator to do who
// wants to be rid of it.
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
		}
		if out := e.kubectl(t, c, "get", "nodes", "-o", "yaml"); strings.Contains(out, "wireguard.semaphore.uw.io") {
			t.Errorf("a node of %s still carries our annotations:\n%s", c.Name, out)
		}
		for _, node := range c.Nodes() {
			must(t, clean(t, node))
		}
		e.kubectl(t, c, "delete", calico[i].GroupResource().String(), "-l", "managed-by=semaphore-policy")
		// Without a controller manager the namespace would wait for ever.
		e.kubectl(t, c, "delete", "--wait=false", "-k", filepath.Join(e.folder, c.Name))
		e.gone(t, c)
	}
}

// clean reports what the agent left on a node, but for its keys.
func clean(t *testing.T, node *testbed.Node) error {
	t.Helper()
	var errs []error
	for what, command := range map[string][]string{
		"links":             {"sh", "-c", "ip -o link | grep -e wireguard -e 'semaphore ' || true"},
		"IPv4 routes":       {"sh", "-c", "ip -4 route show table all proto 115"},
		"IPv6 routes":       {"sh", "-c", "ip -6 route show table all proto 115"},
		"policy rules":      {"sh", "-c", "ip -4 rule | grep -v -e ^0: -e ^32766: -e ^32767: || true; ip -6 rule | grep -v -e ^0: -e ^32766: || true"},
		"sockets":           {"sh", "-c", "ls /var/run/wireguard"},
		"files beside keys": {"sh", "-c", "ls /var/lib/semaphore-wireguard | grep -v '[.]key$' || true"},
	} {
		out, err := node.Run(t.Context(), command[0], command[1:]...)
		if err == nil && strings.TrimSpace(out) != "" {
			err = fmt.Errorf("%s of %s: %s", what, node.Name, out)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// gone checks that no object of ours is left in a cluster, but for what goes with
// the namespace.
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
