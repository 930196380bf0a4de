package scenarios_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// labelledPod makes a pod that is only an object, has one of the addresses of the
// example's own pod of the cluster, and belongs into a network set.
func (e *example) labelledPod(t *testing.T, cluster int, name, set string, address netip.Addr) {
	t.Helper()
	pods := e.clusters[cluster].Client().CoreV1().Pods("default")
	pod, err := pods.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{setLabel: set}},
		Spec: corev1.PodSpec{
			NodeName: e.clusters[cluster].Nodes()[0].Name, Containers: []corev1.Container{{Name: "c", Image: "none"}},
		},
	}, metav1.CreateOptions{})
	must(t, err)
	ip := address.String()
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}}
	_, err = pods.UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
	must(t, err)
	t.Cleanup(func() {
		now := int64(0)
		must(t, pods.Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{GracePeriodSeconds: &now}))
	})
}

// setLabel is the label of pods with the name of their set.
const setLabel = "policy.semaphore.uw.io/name"

// outdated counts the writes of semaphore-policy that conflicted with another writer.
var outdated = regexp.MustCompile(`(?m)^semaphore_policy_outdated_writes_total\{cluster="[a-z]+"\} [1-9]`)

// contested changes a network set in one cluster continuously, and pods of the other one,
// until both writers conflict. Neither change is lost.
func (e *example) contested(t *testing.T, from int) {
	sets, name := e.sets(1-from), e.clusters[from].Name+"-default-contested"
	pods := e.clusters[from].Client().CoreV1().Pods("default")
	addresses := e.pods[from].Addresses // one of each family
	e.labelledPod(t, from, "stays", "contested", addresses[0])
	e.labelledPod(t, from, "comes-and-goes", "contested", addresses[1])
	eventually(t, time.Minute, "the network set", holds(sets, name, 2))

	ctx, stop := context.WithCancel(within(t, time.Minute))
	defer stop()
	var other sync.WaitGroup
	changes := 0
	other.Go(func() {
		for ctx.Err() == nil {
			patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"changes":"%d"}}}`, changes+1)
			if _, err := sets.Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err == nil {
				changes++
			}
		}
	})
	goes := false
	label := func(ctx context.Context) error {
		value := `"contested"`
		if goes {
			value = "null"
		}
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%s}}}`, setLabel, value)
		_, err := pods.Patch(ctx, "comes-and-goes", types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	}
	eventually(t, time.Minute, "a write to be given up", func(ctx context.Context) error {
		goes = !goes
		if err := label(ctx); err != nil {
			return err
		}
		metrics, err := e.policies[1-from].kubelet.node.Get(ctx, "http://127.0.0.1:8080/metrics")
		if err == nil && !outdated.MatchString(metrics) {
			err = errors.New("none was")
		}
		return err
	})
	stop()
	other.Wait()
	set, err := sets.Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
	if got := set.GetAnnotations()["changes"]; got != fmt.Sprint(changes) {
		t.Errorf("the other one's last change was %d, and %s is there", changes, got)
	}
	goes = false
	must(t, label(t.Context()))
	eventually(t, time.Minute, "the network set", holds(sets, name, 2))
}

// events causes faults in gcp, or between the clusters, that the programs of aws report in
// Events.
func (e *example) events(t *testing.T) {
	aws, gcp := e.clusters[0], e.clusters[1]
	_, err := gcp.Client().CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "gcp-bad", Annotations: map[string]string{"aws.wireguard.semaphore.uw.io/pubKey": "not a key"},
	}}, metav1.CreateOptions{})
	must(t, err)

	taken := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "gcp-default-taken"}}}
	taken.SetGroupVersionKind(calico[0].GroupVersion().WithKind("GlobalNetworkSet"))
	_, err = e.sets(0).Create(t.Context(), taken, metav1.CreateOptions{})
	must(t, err)
	e.labelledPod(t, 1, "taken", "taken", e.pods[1].Addresses[0])

	for i, c := range e.clusters {
		_, err := c.Client().CoreV1().Services("default").Create(t.Context(), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: map[string]string{"mirror.semaphore.uw.io/global-service": "true"}},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: int32(80 + i)}}},
		}, metav1.CreateOptions{})
		must(t, err)
	}
	for _, want := range []struct {
		reason, kind, name, message string
	}{
		{"NodeRejected", "Pod", "agent-aws-", `node "gcp-bad" of gcp is rejected, public_key: `},
		{"NameTaken", "Pod", "semaphore-policy-aws-", "the network set of gcp/default/taken is gcp-default-taken-"},
		{"Conflict", "Service", "gl-default-73736d-web", "the cluster that was first decides, against "},
	} {
		eventually(t, time.Minute, "the Event "+want.reason, func(ctx context.Context) error {
			e, err := onlyEvent(ctx, aws, want.reason)
			if err != nil {
				return err
			}
			about := e.InvolvedObject
			if about.Kind != want.kind || !strings.HasPrefix(about.Name, want.name) || about.UID == "" || !strings.HasPrefix(e.Message, want.message) {
				t.Errorf("%s of %+v: %s", e.Reason, about, e.Message)
			}
			return nil
		})
	}
	must(t, gcp.Client().CoreV1().Nodes().Delete(t.Context(), "gcp-bad", metav1.DeleteOptions{}))
	must(t, e.sets(0).Delete(t.Context(), taken.GetName(), metav1.DeleteOptions{}))
}

// onlyEvent returns the Event of a reason, of which there must be one.
func onlyEvent(ctx context.Context, c *testbed.Cluster, reason string) (*corev1.Event, error) {
	list, err := c.Client().CoreV1().Events(systemNamespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=" + reason})
	if err == nil && len(list.Items) != 1 {
		err = fmt.Errorf("there are %d", len(list.Items))
	}
	if err != nil {
		return nil, err
	}
	return &list.Items[0], nil
}
