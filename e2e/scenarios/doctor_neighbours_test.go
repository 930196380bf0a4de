package scenarios_test

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

var (
	networkSetsResource = schema.GroupVersionResource{Group: "projectcalico.org", Version: "v3", Resource: "globalnetworksets"}
	poolsResource       = schema.GroupVersionResource{Group: "projectcalico.org", Version: "v3", Resource: "ippools"}
)

// neighbourFaults are faults of Calico, network sets and agents of another version. Calico's
// resources are served from then on.
func (s *surgery) neighbourFaults() []fault {
	const taken, own = "gcp-shop-web", "own"
	var policy *programs.Program
	var pod *testbed.Pod
	var old *programs.Agent
	return []fault{
		{
			name: "one old agent in the mesh", want: "old-agent",
			make: func(t *testing.T) {
				before, err := programs.BuildBefore(t.Context(), programs.WireGuard, t.TempDir())
				must(t, err)
				now := s.Agents[0]
				must(t, now.Stop(within(t, time.Minute)))
				must(t, now.Cleanup(within(t, time.Minute))) // The engine ends with it.
				old, err = programs.PrepareAgent(t.Context(), before, now.Node, s.GCP)
				must(t, err)
				must(t, old.Start())
				// Until then its annotations are missing.
				must(t, s.WaitConnected(within(t, time.Minute)))
			},
			heal: func(t *testing.T) {
				must(t, old.Stop(within(t, time.Minute)))
				must(t, old.Cleanup(within(t, time.Minute)))
				must(t, s.Agents[0].Start())
			},
		},
		{
			name: "a network set's name taken", want: "set-name-taken",
			make: func(t *testing.T) {
				must(t, s.AWS.Apply(t.Context(), "../../policy/testdata/v3.yaml"))
				must(t, programs.Grant(t.Context(), programs.Policy, s.AWS, s.GCP))
				s.custom(t, networkSetsResource, "GlobalNetworkSet", taken, map[string]any{"nets": []any{"192.0.2.1/32"}})
				_, err := s.GCP.Client().CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, metav1.CreateOptions{})
				must(t, err)
				pod, err = s.Agents[2].Node.AddPod(t.Context(), testbed.PodConfig{Name: "web", Object: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
					Namespace: "shop", Labels: map[string]string{"policy.semaphore.uw.io/name": "web"},
				}}})
				must(t, err)
				policy, err = programs.Prepare(t.Context(), programs.Config{Name: programs.Policy, Binary: program(t, programs.Policy), Port: 8080}, s.Agents[0].Node, s.GCP)
				must(t, err)
				policy.Env["SEMAPHORE_POD_NAME"], policy.Env["SEMAPHORE_POD_UID"] = programs.Policy, programs.Policy
				must(t, policy.Start())
				s.object(t, policy, programs.Policy, programs.Policy)
			},
			heal: func(t *testing.T) {
				must(t, policy.Stop(within(t, time.Minute)))
				must(t, s.AWS.Client().CoreV1().Pods(programs.Namespace).Delete(t.Context(), programs.Policy, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
				must(t, s.AWS.Dynamic().Resource(networkSetsResource).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
				must(t, pod.Remove())
			},
		},
		{
			name: "Calico's pools missing", want: "calico-pools-missing",
			make: func(t *testing.T) {
				must(t, s.AWS.Apply(t.Context(), "../../policy/testdata/pools.yaml"))
				s.custom(t, poolsResource, "IPPool", own, map[string]any{"cidr": "10.2.0.0/16"})
			},
			heal: func(t *testing.T) {
				must(t, s.AWS.Dynamic().Resource(poolsResource).Delete(t.Context(), own, metav1.DeleteOptions{}))
			},
		},
	}
}

// custom creates a custom object in aws, whose kind may not be served at once.
func (s *surgery) custom(t *testing.T, of schema.GroupVersionResource, kind, name string, spec map[string]any) {
	t.Helper()
	eventually(t, time.Minute, "a "+kind, func(ctx context.Context) error {
		_, err := s.AWS.Dynamic().Resource(of).Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": of.GroupVersion().String(), "kind": kind, "metadata": map[string]any{"name": name}, "spec": spec,
		}}, metav1.CreateOptions{})
		return err
	})
}
