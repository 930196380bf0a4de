package kubelet_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/ctl/probe"
	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// enforce enforces network policies in clusters, all by default, until the function that it
// returns is called.
func (l *lab) enforce(t *testing.T, clusters ...int) (stop func()) {
	t.Helper()
	if len(clusters) == 0 {
		for i := range l.clusters {
			clusters = append(clusters, i)
		}
	}
	var enforcers []*programs.Enforcer
	for _, i := range clusters {
		enforcers = append(enforcers, programs.StartEnforcer(t.Context(), l.nodes[i]))
	}
	return func() {
		for _, e := range enforcers {
			if err := e.Stop(context.WithoutCancel(t.Context())); err != nil {
				t.Error(err)
			}
		}
	}
}

// guards returns the UIDs of the policies that semaphorectl has created.
func (l *lab) guards(ctx context.Context) ([]string, error) {
	var all []string
	for i, c := range l.clusters {
		list, err := c.Dynamic().Resource(calicoOf(i).WithResource("networkpolicies")).Namespace(probe.Namespace).List(ctx, metav1.ListOptions{LabelSelector: temporary})
		if err != nil {
			return nil, err
		}
		for _, p := range list.Items {
			all = append(all, string(p.GetUID()))
		}
	}
	return all, nil
}

// verifyUnenforced runs without policy enforcement in aws, and without semaphore-policy in gcp.
func (l *lab) verifyUnenforced(t *testing.T) {
	defer l.enforce(t, 1)()
	l.kubectl(t, 1, "-n", programs.Namespace, "scale", "deployment", programs.Policy, "--replicas=0")
	l.replicas(t, 0)
	out := l.fails(t, "verify", "aws", "gcp", "--skip", "throughput,name", "--nodes", "1")
	l.says(t, out,
		"✗ wrong: admitted: the policy isn't enforced on aws-1 (without Felix, or with another network plugin)", "? not known: all pods are",
		"✗ wrong: not within 15s: semaphore-policy of gcp doesn't run", "? not known: its address is in no network set")
	l.kubectl(t, 1, "-n", programs.Namespace, "scale", "deployment", programs.Policy, "--replicas=2")
	l.replicas(t, 2)
	l.probesGone(t)
}

// replicas waits until semaphore-policy of gcp has as many pods, which are ready.
func (l *lab) replicas(t *testing.T, want int) {
	t.Helper()
	must(t, testbed.Wait(within(t, 2*time.Minute), "replicas of semaphore-policy", func(ctx context.Context) error {
		pods, err := l.clusters[1].Client().CoreV1().Pods(programs.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + programs.Policy})
		if err != nil {
			return err
		}
		if len(pods.Items) != want {
			return fmt.Errorf("%d pods", len(pods.Items))
		}
		var errs []error
		for i := range pods.Items {
			errs = append(errs, podReady(&pods.Items[i]))
		}
		return errors.Join(errs...)
	}))
}
