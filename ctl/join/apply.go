package join

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/csaupgrade"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
)

// workloads are the kinds of objects that start pods. They are applied last, when their tokens exist.
var workloads = []string{"DaemonSet", "Deployment", "CronJob"}

// resourceOf returns the client for an object's resource and namespace.
func resourceOf(ctx context.Context, c *cli.Cluster, o *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	r, err := c.ResourceOf(ctx, o.GroupVersionKind())
	if err != nil {
		return nil, err
	}
	if r.Namespaced {
		return c.Dynamic.Resource(r.GroupVersionResource).Namespace(o.GetNamespace()), nil
	}
	return c.Dynamic.Resource(r.GroupVersionResource), nil
}

// foreign finds objects of the same names that neither this tool nor its release has created.
func foreign(ctx context.Context, c *cli.Cluster, objects []*unstructured.Unstructured) []fault {
	all := make([][]fault, len(objects))
	_ = eachObject(objects, func(i int, o *unstructured.Unstructured) error {
		add := func(what, remedy string) { all[i] = []fault{{cluster: c.Name, what: what, remedy: remedy}} }
		interfaces, err := resourceOf(ctx, c, o)
		if meta.IsNoMatchError(err) {
			add("it doesn't serve "+o.GroupVersionKind().String(), "upgrade Kubernetes")
			return nil
		}
		if err != nil {
			add(err.Error(), "check that the API server at "+c.Server+" answers")
			return nil
		}
		have, err := interfaces.Get(ctx, o.GetName(), metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			add(fmt.Sprintf("read %s %s: %v", o.GetKind(), o.GetName(), err), "check that the context "+c.Context+" may read it")
		case !manifests.Ours(have):
			add(fmt.Sprintf("%s %s exists and wasn't created by semaphorectl", o.GetKind(), o.GetName()), "delete it, or adopt a manual installation with --adopt")
		}
		return nil
	})
	return slices.Concat(all...)
}

// atOnce is how many objects of a cluster are read at the same time.
const atOnce = 8

// eachObject calls do for all objects, some at the same time, and joins the errors.
func eachObject(objects []*unstructured.Unstructured, do func(i int, o *unstructured.Unstructured) error) error {
	errs := make([]error, len(objects))
	var group errgroup.Group
	group.SetLimit(atOnce)
	for i, o := range objects {
		group.Go(func() error {
			if err := do(i, o); err != nil {
				errs[i] = fmt.Errorf("%s %s: %w", o.GetKind(), o.GetName(), err)
			}
			return nil
		})
	}
	_ = group.Wait() // errs has all errors.
	return errors.Join(errs...)
}

// namespace creates the namespace, which isn't part of the release: that is kept there.
func namespace(ctx context.Context, c *cli.Cluster) error {
	_, err := c.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: cli.Namespace,
		// The agents use the host's network.
		Labels: map[string]string{manifests.ManagedLabel: manifests.Manager, "pod-security.kubernetes.io/enforce": "privileged"},
	}}, metav1.CreateOptions{FieldManager: manifests.Manager})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create the namespace %s: %w", cli.Namespace, err)
	}
	return nil
}

// drifted takes objects over from installations without Helm, deletes IP pools whose prefix changes, and reports
// whether an object is missing, or has a field that isn't as Helm has applied it; with known it reports true
// without looking.
func drifted(ctx context.Context, c *cli.Cluster, objects []*unstructured.Unstructured, known bool) (bool, error) {
	var found atomic.Bool
	found.Store(known)
	err := eachObject(objects, func(_ int, o *unstructured.Unstructured) error {
		did, err := drift(ctx, c, o, found.Load())
		if did {
			found.Store(true)
		}
		return err
	})
	return found.Load(), err
}

func drift(ctx context.Context, c *cli.Cluster, o *unstructured.Unstructured, known bool) (bool, error) {
	one, err := resourceOf(ctx, c, o)
	if err != nil {
		return false, err
	}
	have, err := one.Get(ctx, o.GetName(), metav1.GetOptions{})
	if err == nil && cidr(have) != cidr(o) {
		// Calico's API server refuses to change an IP pool's prefix. No address is assigned from ours.
		err = one.Delete(ctx, o.GetName(), metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(have.GetUID()))})
		if err == nil || apierrors.IsNotFound(err) {
			return true, nil
		}
		return known, fmt.Errorf("replace it: %w", err)
	}
	if err == nil {
		var patch []byte
		if patch, err = taken(have); patch != nil {
			have, err = one.Patch(ctx, o.GetName(), types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: helmManager})
		}
	}
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil || known:
		return known, err
	}
	after, err := one.Apply(ctx, o.GetName(), manifests.OfRelease(o), metav1.ApplyOptions{FieldManager: helmManager, Force: true, DryRun: []string{metav1.DryRunAll}})
	// Helm reports the error, too.
	return err != nil || !same(have, after), nil
}

// cidr returns the prefix of an IP pool; empty: the object is another one.
func cidr(o *unstructured.Unstructured) string {
	if o.GetKind() != "IPPool" {
		return ""
	}
	text, _, _ := unstructured.NestedString(o.Object, "spec", "cidr")
	return text
}

// formerly are the field managers of installations without Helm.
var formerly = sets.New(manifests.Manager, "kubectl", "kubectl-client-side-apply")

// taken returns the change that makes the fields that an installation without Helm has applied those of
// Helm, which then removes the ones that it doesn't have; nil: there is none.
func taken(o *unstructured.Unstructured) ([]byte, error) {
	fields := o.GetManagedFields()
	for i, e := range fields {
		if e.Manager == helmManager {
			return nil, nil
		}
		if e.Subresource == "" && formerly.Has(e.Manager) {
			fields[i].Operation = metav1.ManagedFieldsOperationUpdate // Others aren't merged.
		}
	}
	o = o.DeepCopy()
	o.SetManagedFields(fields)
	return csaupgrade.UpgradeManagedFieldsPatch(o, formerly, helmManager)
}

// same reports whether two states of an object differ at most in managedFields of others.
func same(before, after *unstructured.Unstructured) bool {
	bare := func(o *unstructured.Unstructured) *unstructured.Unstructured {
		o = o.DeepCopy()
		o.SetManagedFields(nil)
		o.SetResourceVersion("")
		return o
	}
	return reflect.DeepEqual(bare(before).Object, bare(after).Object) && fieldsOfHelm(before) == fieldsOfHelm(after)
}

// fieldsOfHelm returns the fields that Helm has applied.
func fieldsOfHelm(o *unstructured.Unstructured) string {
	for _, entry := range o.GetManagedFields() {
		if entry.Manager == helmManager && entry.Operation == metav1.ManagedFieldsOperationApply && entry.FieldsV1 != nil {
			return entry.FieldsV1.GetRawString()
		}
	}
	return ""
}
