package controllers_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	calico "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/policy"
)

// TestPolicy runs the controller of semaphore-policy on three API servers.
func TestPolicy(t *testing.T) {
	t.Parallel()
	b := newPolicyBed(t)
	for _, test := range []struct {
		name string
		run  func(*policyBed, *testing.T)
	}{
		{"sets follow pods, through both APIs", (*policyBed).testLife},
		{"Events of names that are taken", (*policyBed).testEvents},
		{"edited and deleted sets are repaired", (*policyBed).testDrift},
		{"labels in Calico's annotation are recognised", (*policyBed).testAnnotation},
		{"a restart with nothing to do writes nothing", (*policyBed).testRestart},
		{"Calico that comes later", (*policyBed).testNoCalico},
		{"random histories", (*policyBed).testHistory},
		{"a hostile remote", (*policyBed).testHostile},
		{"many pods at once", (*policyBed).testVolume},
		{"kill -9 under churn", (*policyBed).testKill},
		{"two replicas", (*policyBed).testReplicas},
		{"the original's flags and labels", (*policyBed).testOriginal},
		{"a policy that adds a label", (*policyBed).testLabelled},
		{"a policy that adds a net, and new leaders", (*policyBed).testNetAdded},
		{"removals while patches are refused", (*policyBed).testRemovalRefused},
		{"a controller that sets nets again", (*policyBed).testSetOverridden},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(b, t) })
		b.clean(t)
	}
}

func (b *policyBed) testLife(t *testing.T) {
	for _, local := range []*testbed.Cluster{b.aws, b.gcp} {
		t.Run(local.Name, func(t *testing.T) {
			remote := b.merit
			sets := b.sets(t, local)
			putPods(t, remote,
				running("sys-log", "forwarder-a", "forwarder", "10.6.0.1", "fd00:10:6::1"),
				running("sys-log", "forwarder-b", "forwarder", "10.6.0.10"),
				podSpec{namespace: "sys-log", name: "pending", set: "forwarder", phase: corev1.PodPending},
				podSpec{namespace: "sys-log", name: "done", set: "forwarder", phase: corev1.PodSucceeded, ips: []string{"10.6.0.66"}},
				podSpec{namespace: "sys-log", name: "host", set: "forwarder", phase: corev1.PodRunning, ips: []string{"192.168.0.1"}, hostNetwork: true},
			)
			i := b.start(t, local, nil, remote)
			object := "merit-sys-log-forwarder"
			expect(t, sets, contents{object: set("merit", "sys-log", "forwarder", "10.6.0.1", "fd00:10:6::1", "10.6.0.10")})

			// A rollout.
			putPods(t, remote, running("sys-log", "forwarder-c", "forwarder", "10.6.0.11"))
			must(t, deletePod(t.Context(), remote, "sys-log", "forwarder-a"))
			expect(t, sets, contents{object: set("merit", "sys-log", "forwarder", "10.6.0.10", "10.6.0.11")})

			// A pod that fails, one that starts.
			must(t,
				setStatus(t.Context(), remote, podSpec{namespace: "sys-log", name: "forwarder-b", phase: corev1.PodFailed, ips: []string{"10.6.0.10"}}),
				setStatus(t.Context(), remote, running("sys-log", "pending", "", "10.6.0.12")))
			expect(t, sets, contents{object: set("merit", "sys-log", "forwarder", "10.6.0.11", "10.6.0.12")})
			wait(t, "the status", func() error {
				skipped := i.status(t, "merit").Skipped
				if skipped[string(policy.ReasonFinished)].Pods != 2 || skipped[string(policy.ReasonHostNetwork)].Pods == 0 {
					return fmt.Errorf("skipped %v, want two finished pods and one on the host network", skipped)
				}
				return nil
			})
			if err := errors.Join(i.Ready(), i.Health()); err != nil {
				t.Errorf("ready and health: %v", err)
			}

			// The last pods go.
			deletePods(t, remote)
			expect(t, sets, contents{})
		})
	}
}

func (b *policyBed) testDrift(t *testing.T) {
	for _, local := range []*testbed.Cluster{b.aws, b.gcp} {
		t.Run(local.Name, func(t *testing.T) {
			sets := b.sets(t, local)
			deletePods(t, b.merit)
			putPods(t, b.merit, running("ns", "p", "app", "10.6.0.1"), running("ns", "q", "app", "fd00::1"))
			replica := b.start(t, local, nil, b.merit)
			want := contents{"merit-ns-app": set("merit", "ns", "app", "10.6.0.1", "fd00::1")}
			expect(t, sets, want)
			for name, patch := range map[string]string{
				"a net added":     `{"spec":{"nets":["0.0.0.0/0","10.6.0.1/32","fd00::1/128"]}}`,
				"a net removed":   `{"spec":{"nets":["10.6.0.1/32"]}}`,
				"no nets":         `{"spec":null}`,
				"another order":   `{"spec":{"nets":["fd00::1/128","10.6.0.1/32"]}}`,
				"a label changed": `{"metadata":{"labels":{"policy.semaphore.uw.io/name":"other"}}}`,
				"a label removed": `{"metadata":{"labels":{"policy.semaphore.uw.io/namespace":null}}}`,
			} {
				_, err := sets.Patch(t.Context(), "merit-ns-app", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
				must(t, err)
				t.Log(name)
				expect(t, sets, want)
			}
			must(t, sets.Delete(t.Context(), "merit-ns-app", metav1.DeleteOptions{}))
			expect(t, sets, want)

			// Objects that only we write have no managed fields.
			_, err := sets.Patch(t.Context(), "merit-ns-app", types.MergePatchType, []byte(`{"spec":{"nets":[]}}`), metav1.PatchOptions{FieldManager: "semaphore-policy"})
			must(t, err)
			expect(t, sets, want)
			got, err := sets.Get(t.Context(), "merit-ns-app", metav1.GetOptions{})
			must(t, err)
			if len(got.ManagedFields) > 0 {
				t.Errorf("managed fields of an object that is ours alone: %v", got.ManagedFields)
			}

			// Fields of other clients stay, with their managed fields.
			_, err = sets.Patch(t.Context(), "merit-ns-app", types.ApplyYAMLPatchType,
				[]byte(`{"apiVersion":"`+replica.Status().CalicoAPI+`","kind":"GlobalNetworkSet","metadata":{"name":"merit-ns-app","labels":{"team":"a"}}}`), metav1.PatchOptions{FieldManager: "them"})
			must(t, err)
			_, err = sets.Patch(t.Context(), "merit-ns-app", types.MergePatchType,
				[]byte(`{"metadata":{"annotations":{"note":"b"}},"spec":{"nets":[]}}`), metav1.PatchOptions{})
			must(t, err)
			expect(t, sets, want)
			got, err = sets.Get(t.Context(), "merit-ns-app", metav1.GetOptions{})
			must(t, err)
			if !slices.ContainsFunc(got.ManagedFields, func(f metav1.ManagedFieldsEntry) bool {
				return f.Manager == "them" && f.Operation == metav1.ManagedFieldsOperationApply
			}) {
				t.Errorf("what another client applied is no longer in its name: %v", got.ManagedFields)
			}
			if got.Labels["team"] != "a" || got.Annotations["note"] != "b" {
				t.Errorf("labels %v, annotations %v: those of others are gone", got.Labels, got.Annotations)
			}
			deletePods(t, b.merit)
			expect(t, sets, contents{})
		})
	}
}

func (b *policyBed) testAnnotation(t *testing.T) {
	sets := b.sets(t, b.aws)
	old := &calico.GlobalNetworkSet{
		ObjectMeta: metav1.ObjectMeta{Name: "gcp-ns-app", Annotations: map[string]string{
			"projectcalico.org/metadata": `{"uid":"c7569765-a47d-424c-9533-80e4a7c201d6","labels":{"managed-by":"semaphore-policy",` +
				`"policy.semaphore.uw.io/name":"app","policy.semaphore.uw.io/namespace":"ns","policy.semaphore.uw.io/cluster":"gcp"}}`,
		}},
		Spec: calico.GlobalNetworkSetSpec{Nets: []string{"10.4.0.9/32"}},
	}
	gone := old.DeepCopy()
	gone.Name = "gcp-ns-gone"
	gone.Annotations["projectcalico.org/metadata"] = strings.ReplaceAll(gone.Annotations["projectcalico.org/metadata"], `name":"app"`, `name":"gone"`)
	for _, s := range []*calico.GlobalNetworkSet{old, gone} {
		_, err := sets.Create(t.Context(), s, metav1.CreateOptions{})
		must(t, err)
	}
	putPods(t, b.gcp, running("ns", "p", "app", "10.4.0.1"))
	b.start(t, b.aws, nil, b.gcp)
	expect(t, sets, contents{"gcp-ns-app": set("gcp", "ns", "app", "10.4.0.1")})
	got, err := sets.Get(t.Context(), "gcp-ns-app", metav1.GetOptions{})
	must(t, err)
	if annotation := got.Annotations["projectcalico.org/metadata"]; !strings.Contains(annotation, "c7569765") {
		t.Errorf("annotation %s: the rest of it is gone", annotation)
	}
}

func (b *policyBed) testRestart(t *testing.T) {
	sets := b.sets(t, b.aws)
	putPods(t, b.gcp, running("ns", "p", "app", "10.4.0.1"), running("ns", "q", "other", "10.4.0.2"))
	first := b.start(t, b.aws, nil, b.gcp)
	want := contents{"gcp-ns-app": set("gcp", "ns", "app", "10.4.0.1"), "gcp-ns-other": set("gcp", "ns", "other", "10.4.0.2")}
	expect(t, sets, want)
	first.stop()

	before, err := sets.List(t.Context(), metav1.ListOptions{})
	must(t, err)
	second := b.start(t, b.aws, nil, b.gcp)
	wait(t, "the second run to be ready", second.Ready)
	// A change that it must write shows that it has compared all sets.
	putPods(t, b.gcp, running("ns", "r", "third", "10.4.0.3"))
	want["gcp-ns-third"] = set("gcp", "ns", "third", "10.4.0.3")
	expect(t, sets, want)
	for i := range before.Items {
		now, err := sets.Get(t.Context(), before.Items[i].Name, metav1.GetOptions{})
		must(t, err)
		if now.ResourceVersion != before.Items[i].ResourceVersion {
			t.Errorf("%s was written for nothing", now.Name)
		}
	}

	// Changes while no controller runs are applied at the next start.
	second.stop()
	must(t, deletePod(t.Context(), b.gcp, "ns", "p"), relabel(t.Context(), b.gcp, "ns", "q", "app"))
	b.start(t, b.aws, nil, b.gcp)
	delete(want, "gcp-ns-other")
	want["gcp-ns-app"] = set("gcp", "ns", "app", "10.4.0.2")
	expect(t, sets, want)
}

func (b *policyBed) testNoCalico(t *testing.T) {
	putPods(t, b.gcp, running("ns", "p", "app", "10.4.0.1"))
	i := b.start(t, b.merit, nil, b.gcp)
	wait(t, "a clear error", func() error {
		if err := i.Ready(); err == nil || !errors.Is(err, policy.ErrNoCalico) && !strings.Contains(err.Error(), policy.ErrNoCalico.Error()) {
			return fmt.Errorf("ready: %w", err)
		}
		return nil
	})
	must(t, b.merit.Apply(t.Context(), "../../policy/testdata/v1.yaml"))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), settle)
		defer cancel()
		if _, err := b.merit.Kubectl(ctx, "delete", "crd", "--all"); err != nil {
			t.Error(err)
		}
	})
	wait(t, "the API to be found", i.Ready)
	want := contents{"gcp-ns-app": set("gcp", "ns", "app", "10.4.0.1")}
	expect(t, b.sets(t, b.merit), want)
	if api := i.Status().CalicoAPI; api != "crd.projectcalico.org/v1" {
		t.Errorf("uses %s", api)
	}

	// Calico moves to native v3 resources, without the old ones.
	must(t, b.merit.Apply(t.Context(), "../../policy/testdata/v3.yaml"))
	for api, want := range map[string]string{"auto": "projectcalico.org/v3", "v3": "projectcalico.org/v3", "v1": "crd.projectcalico.org/v1"} {
		access, err := policy.NewCalico(as(b.merit, b.local(t, b.merit)), api)
		must(t, err)
		if _, err := access.Sets(t.Context()); err != nil || access.API() != want {
			t.Errorf("with both APIs served %s means %q (%v), want %s", api, access.API(), err, want)
		}
	}
	_, err := b.merit.Kubectl(t.Context(), "delete", "crd", "globalnetworksets.crd.projectcalico.org")
	must(t, err)
	wait(t, "the move to v3", func() error {
		if api := i.Status().CalicoAPI; api != "projectcalico.org/v3" {
			return fmt.Errorf("uses %s", api)
		}
		return nil
	})
	expect(t, b.sets(t, b.merit), want)
}
