package scenarios_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/pathreport"
)

// TestAgentReportsOnlyItsOwnPaths tests the admission policy for Leases, with agents that may
// write any Lease by RBAC.
func TestAgentReportsOnlyItsOwnPaths(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	must(t, cluster.Apply(t.Context(), filepath.Join(deployFolder(t), "wireguard")))
	must(t, cluster.Grant(t.Context(), systemNamespace, agentAccount,
		rbacv1.PolicyRule{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"*"}}))
	own := clientWith(t, cluster, agentToken(t, cluster, "aws-1"))
	unbound := clientWith(t, cluster, agentToken(t, cluster, ""))
	pod, err := cluster.Client().CoreV1().Pods(systemNamespace).Get(t.Context(), "agent-aws-1", metav1.GetOptions{})
	must(t, err)
	owner := func(name string, uid types.UID) metav1.OwnerReference {
		return metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: name, UID: uid}
	}
	itself := owner(pod.Name, pod.UID)
	report := func(node string) *coordinationv1.Lease {
		r := pathreport.Report{Node: node, Remotes: map[string]pathreport.Down{"gcp": {AllBut: true}}}
		return r.Lease(systemNamespace, itself, time.Now())
	}
	apply := func(ctx context.Context, client kubernetes.Interface, l *coordinationv1.Lease) error {
		leases := client.CoordinationV1().Leases(systemNamespace)
		_, err := leases.Create(ctx, l, metav1.CreateOptions{FieldManager: agentAccount})
		if apierrors.IsAlreadyExists(err) {
			patch, patchErr := pathreport.Patch(l)
			must(t, patchErr)
			_, err = leases.Patch(ctx, l.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: agentAccount})
		}
		return err
	}
	untilRefused(t, func(ctx context.Context) error { return apply(ctx, own, report("aws-2")) })
	const another, holder, form, owned = "may not write the lease", "must be held by its node", "must have one label", "must be owned by the agent's pod"
	for _, c := range []struct {
		name   string
		change func(*coordinationv1.Lease)
		want   string
	}{
		{"its own", func(*coordinationv1.Lease) {}, ""},
		{"again", func(*coordinationv1.Lease) {}, ""},
		{"of another node", func(l *coordinationv1.Lease) { l.Name = "semaphore-paths-aws-2" }, another},
		{"that leads the mirror", func(l *coordinationv1.Lease) { l.Name = "semaphore-service-mirror" }, another},
		{"in another node's name", func(l *coordinationv1.Lease) { other := "aws-2"; l.Spec.HolderIdentity = &other }, holder},
		{"for ever", func(l *coordinationv1.Lease) { long := int32(1 << 30); l.Spec.LeaseDurationSeconds = &long }, holder},
		{"with another label", func(l *coordinationv1.Lease) { l.Labels["more"] = "x" }, form},
		{"with another annotation", func(l *coordinationv1.Lease) {
			l.Annotations["more"] = "x"
		}, form},
		{"of the longest length", func(l *coordinationv1.Lease) {
			l.Annotations[pathreport.Annotation] = strings.Repeat("x", pathreport.MaxSize)
		}, ""},
		{"of more", func(l *coordinationv1.Lease) {
			l.Annotations[pathreport.Annotation] = strings.Repeat("x", pathreport.MaxSize+1)
		}, "may have at most 131072 characters"},
		{"with a finalizer", func(l *coordinationv1.Lease) { l.Finalizers = []string{"example.com/stay"} }, form},
		{"that outlives it", func(l *coordinationv1.Lease) { l.OwnerReferences = nil }, owned},
		{"that goes with another pod", func(l *coordinationv1.Lease) {
			l.OwnerReferences = []metav1.OwnerReference{owner("agent-aws-2", "another")}
		}, owned},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := report("aws-1")
			c.change(l)
			refused(t, apply(t.Context(), own, l), c.want)
		})
	}
	leases := func(client kubernetes.Interface) func(string) error {
		return func(name string) error {
			return client.CoordinationV1().Leases(systemNamespace).Delete(t.Context(), name, metav1.DeleteOptions{})
		}
	}
	t.Run("with a token that is bound to no node", func(t *testing.T) {
		refused(t, apply(t.Context(), unbound, report("aws-1")), "not bound to a node")
	})
	t.Run("the end of another one's", func(t *testing.T) {
		must(t, apply(t.Context(), cluster.Client(), report("aws-2")))
		refused(t, leases(own)("semaphore-paths-aws-2"), another)
		err := own.CoordinationV1().Leases(systemNamespace).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{})
		refused(t, err, another)
		_, err = cluster.Client().CoordinationV1().Leases(systemNamespace).Get(t.Context(), "semaphore-paths-aws-2", metav1.GetOptions{})
		must(t, err)
	})
	t.Run("the end of its own", func(t *testing.T) { refused(t, leases(own)("semaphore-paths-aws-1"), "") })
}

// waitReports waits until so many nodes of a cluster report paths that are down.
func waitReports(t *testing.T, c *testbed.Cluster, want int) {
	t.Helper()
	eventually(t, repair, fmt.Sprintf("%d reports in %s", want, c.Name), func(ctx context.Context) error {
		all, err := programs.Reports(ctx, c)
		if err == nil && len(all) != want {
			err = fmt.Errorf("%d reports: %v", len(all), all)
		}
		return err
	})
}
