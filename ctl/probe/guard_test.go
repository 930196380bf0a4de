package probe

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	fakedynamic "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/internal/reach"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/synctest"
)

// TestGuardsPolicy checks that the policy selects only pods of its run, admits only the sets
// of the named clusters, and has the form of each API.
func TestGuardsPolicy(t *testing.T) {
	for _, tt := range []struct {
		api  schema.GroupVersion
		name string
		tier any
	}{
		{schema.GroupVersion{Group: "projectcalico.org", Version: "v3"}, "semaphorectl-verify", nil},
		{schema.GroupVersion{Group: "crd.projectcalico.org", Version: "v1"}, "default.semaphorectl-verify", "default"},
	} {
		g := &Guard{API: tt.api, Domain: "policy.example.org"}
		got := g.policy("abc", []string{"aws"})
		spec := map[string]any{
			"order": int64(0), "selector": "semaphore.uw.io/run == 'abc'", "types": []any{"Ingress"},
			"ingress": []any{map[string]any{"action": "Allow", "source": map[string]any{
				"selector":          "policy.example.org/name == 'semaphorectl-abc' && policy.example.org/namespace == 'kube-system' && policy.example.org/cluster == 'aws'",
				"namespaceSelector": "global()",
			}}},
		}
		if tt.tier != nil {
			spec["tier"] = tt.tier
		}
		// By these leave finds the policy of a killed run.
		if labels := got.GetLabels(); labels["app.kubernetes.io/managed-by"] != "semaphorectl" || got.GetNamespace() != "kube-system" {
			t.Errorf("it is in %s, with labels %v", got.GetNamespace(), labels)
		}
		if diff := cmp.Diff(spec, got.Object["spec"]); diff != "" || got.GetName() != tt.name || got.GetAPIVersion() != tt.api.String() {
			t.Errorf("%s %s (-want +got):\n%s", got.GetAPIVersion(), got.GetName(), diff)
		}
	}
}

// TestGuardedAreThoseThatWereReached checks that only pods that were reached without a policy
// are tested with one, from the node that reached the most.
func TestGuardedAreThoseThatWereReached(t *testing.T) {
	one, two := NodeRef{"aws", "aws-1"}, NodeRef{"aws", "aws-2"}
	gcp1, gcp2 := NodeRef{"gcp", "gcp-1"}, NodeRef{"gcp", "gcp-2"}
	failed := reach.Try{Error: "i/o timeout"}
	reached := []Connection{
		{From: one, To: gcp1, Address: "10.4.1.7"}, {From: one, To: gcp2, Address: "10.4.2.7", Try: failed},
		{From: two, To: gcp1, Address: "10.4.1.7"}, {From: two, To: gcp2, Address: "10.4.2.7"},
		{From: two, To: NodeRef{"merit", "merit-1"}, Address: "10.6.1.7"}, {From: two, To: gcp2, Skipped: "no pod"},
	}
	want := Guarded{From: two, To: "gcp", Connections: []GuardedConnection{{To: gcp1, Address: "10.4.1.7"}, {To: gcp2, Address: "10.4.2.7"}}}
	if diff := cmp.Diff(want, guarded("aws", "gcp", reached)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if g := guarded("gcp", "aws", reached); g.Skipped == "" || len(g.Connections) > 0 {
		t.Errorf("no pod was reached, and it is %+v", g)
	}
}

func TestSetsContain(t *testing.T) {
	sets := []unstructured.Unstructured{
		{Object: map[string]any{"spec": map[string]any{"nets": []any{"10.2.1.7/32"}}}},
		{Object: map[string]any{"spec": map[string]any{"nets": []any{"fd00:2::7/128"}}}}, {Object: map[string]any{}},
	}
	for _, tt := range []struct {
		wanted []string
		want   bool
	}{
		{[]string{"10.2.1.7"}, true}, {[]string{"10.2.1.7", "fd00:2:0::7"}, true}, {[]string{"10.2.1.8"}, false},
		{[]string{"10.2.1.7", "10.2.1.8"}, false}, {[]string{"no address"}, false},
	} {
		missing := tt.wanted
		for i := range sets {
			missing = lacking(&sets[i], missing)
		}
		if got := len(missing) == 0; got != tt.want {
			t.Errorf("%q: %v", tt.wanted, got)
		}
	}
}

// lab is gcp with a guarded pod, and aws, whose pods test it. Those with the label are in a
// network set and admitted, others denied.
type lab struct {
	aws, gcp *cli.Cluster
	guarding
	reached []Connection
}

func newLab(t *testing.T) *lab {
	t.Helper()
	const address = "10.4.1.7"
	api := schema.GroupVersion{Group: "projectcalico.org", Version: "v3"}
	serves := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "serves", Namespace: Namespace},
		Spec:       corev1.PodSpec{NodeName: "gcp-1"},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: address}}},
	}
	sets := api.WithResource("globalnetworksets")
	l := &lab{
		aws: &cli.Cluster{Name: "aws", Client: fake.NewClientset()},
		gcp: &cli.Cluster{Name: "gcp", Client: fake.NewClientset(serves), Dynamic: fakedynamic.NewSimpleDynamicClientWithCustomListKinds(scheme.Scheme,
			map[schema.GroupVersionResource]string{sets: "GlobalNetworkSetList", api.WithResource("networkpolicies"): "NetworkPolicyList"})},
	}
	aws, gcp := NodeRef{"aws", "aws-1"}, NodeRef{"gcp", "gcp-1"}
	l.guarding = guarding{
		Guard: &Guard{API: api, Domain: "policy.example.org", Remotes: []string{"aws"}}, id: "abc", to: l.gcp, from: []*cli.Cluster{l.aws},
		servers: []server{{NodeRef: gcp, pod: serves.Name}}, images: map[string]string{"aws": "ours"},
	}
	l.reached = []Connection{{From: aws, To: gcp, Address: address}}
	l.clientOf(l.aws).PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		pod := a.(clienttesting.CreateAction).GetObject().(*corev1.Pod)
		name, labelled := pod.Labels[l.Domain+"/name"]
		pod.Name = fmt.Sprint("asks-", labelled)
		var request reach.Request
		if err := json.Unmarshal([]byte(pod.Spec.Containers[0].Command[2]), &request); err != nil {
			return true, nil, err
		}
		result := reach.Result{Connections: make([]reach.Try, len(request.Try))}
		if !labelled {
			result.Connections[0].Error = "i/o timeout"
		} else {
			set := &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": api.String(), "kind": "GlobalNetworkSet", "metadata": map[string]any{"name": name},
				"spec": map[string]any{"nets": []any{"10.2.1.9/32"}},
			}}
			set.SetLabels(l.set(l.id, "aws"))
			if _, err := l.gcp.Dynamic.Resource(sets).Create(t.Context(), set, metav1.CreateOptions{}); err != nil {
				return true, nil, err
			}
		}
		encoded, err := result.Encode()
		if err != nil {
			return true, nil, err
		}
		pod.Status = corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "10.2.1.9"}}, ContainerStatuses: []corev1.ContainerStatus{{
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: string(encoded)}},
		}}}
		return false, nil, nil
	})
	return l
}

func (l *lab) clientOf(c *cli.Cluster) *fake.Clientset { return c.Client.(*fake.Clientset) }

// TestGuarding checks the results for a guarded pod, and that the policy is deleted. An error
// makes them unknown, and doesn't blame the policy or the set.
func TestGuarding(t *testing.T) {
	away := errors.New("connection refused")
	fails := func(when func(clienttesting.Action) bool) clienttesting.ReactionFunc {
		return func(a clienttesting.Action) (bool, runtime.Object, error) { return when(a), nil, away }
	}
	always := func(clienttesting.Action) bool { return true }
	denied := reach.Try{Error: "i/o timeout"}
	const unread = "read network sets of gcp: connection refused"
	for name, c := range map[string]struct {
		change func(*lab)
		want   Guarded // without From and To
	}{
		"all is well": {func(*lab) {}, Guarded{Connections: []GuardedConnection{{Unlabelled: denied}}}},
		"sets without the address": {func(l *lab) {
			l.dynamic().PrependReactor("list", "globalnetworksets", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, &unstructured.UnstructuredList{}, nil
			})
		}, Guarded{Set: "not within 15s", Connections: []GuardedConnection{{Unlabelled: denied, Unknown: "its address is in no network set"}}}},
		"sets that can't be read": {func(l *lab) { l.dynamic().PrependReactor("list", "globalnetworksets", fails(always)) },
			Guarded{Unlisted: unread, Connections: []GuardedConnection{{Unlabelled: denied, Unknown: "the pod with the label failed: " + unread}}}},
		"sets that can no longer be read": {func(l *lab) {
			read := 0
			l.dynamic().PrependReactor("list", "globalnetworksets", func(clienttesting.Action) (bool, runtime.Object, error) {
				if read++; read > 3 {
					return true, nil, away
				}
				return true, &unstructured.UnstructuredList{}, nil
			})
		}, Guarded{Unlisted: unread, Connections: []GuardedConnection{{Unlabelled: denied, Unknown: "the pod with the label failed: " + unread}}}},
		"no pod with the label": {func(l *lab) {
			l.clientOf(l.aws).PrependReactor("create", "pods", fails(func(a clienttesting.Action) bool {
				return a.(clienttesting.CreateAction).GetObject().(*corev1.Pod).Labels[l.Domain+"/name"] != ""
			}))
		}, Guarded{Unlisted: away.Error(), Connections: []GuardedConnection{{Unlabelled: denied, Unknown: "the pod with the label failed: connection refused"}}}},
		"no pod without the label": {func(l *lab) { l.clientOf(l.aws).PrependReactor("create", "pods", fails(always)) },
			Guarded{Skipped: "the pod without the label failed: connection refused", Connections: []GuardedConnection{{}}}},
		"the guarded pod has ended": {func(l *lab) {
			l.clientOf(l.gcp).PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodSucceeded, PodIPs: []corev1.PodIP{{IP: "10.4.1.7"}}}}, nil
			})
		}, Guarded{Skipped: "the tested pod on gcp/gcp-1 has ended meanwhile", Connections: []GuardedConnection{{Unlabelled: denied}}}},
		"the guarded pod was deleted": {func(l *lab) {
			if err := l.clientOf(l.gcp).Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), Namespace, "serves"); err != nil {
				t.Fatal(err)
			}
		}, Guarded{Skipped: "the tested pod on gcp/gcp-1 has ended meanwhile", Connections: []GuardedConnection{{Unlabelled: denied}}}},
		"the guarded pod can't be read": {func(l *lab) { l.clientOf(l.gcp).PrependReactor("get", "pods", fails(always)) },
			Guarded{Skipped: "check whether the tested pod on gcp/gcp-1 still runs: connection refused", Connections: []GuardedConnection{{Unlabelled: denied}}}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t)
				c.change(l)
				got, err := l.try(t.Context(), l.reached)
				if err != nil || len(got) != 1 {
					t.Fatalf("%v, %v", got, err)
				}
				c.want.From, c.want.To = l.reached[0].From, "gcp"
				c.want.Connections[0].To, c.want.Connections[0].Address = l.reached[0].To, l.reached[0].Address
				if diff := cmp.Diff(c.want, got[0]); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				left, err := l.policies(l.gcp).List(t.Context(), metav1.ListOptions{})
				if err != nil || len(left.Items) > 0 {
					t.Errorf("remaining policies: %v, %v", left, err)
				}
			})
		})
	}
}

func (l *lab) dynamic() *fakedynamic.FakeDynamicClient {
	return l.gcp.Dynamic.(*fakedynamic.FakeDynamicClient)
}
