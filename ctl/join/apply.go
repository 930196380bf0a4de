package join

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
	"github.com/kube-semaphore/kube-semaphore/ctl/probe"
)

// workload reports whether an object starts pods. Workloads are applied last, when their
// tokens exist.
func workload(o *unstructured.Unstructured) bool {
	return slices.Contains([]string{"DaemonSet", "Deployment", "CronJob"}, o.GetKind())
}

// resource returns the client for an object's resource and namespace.
func resource(ctx context.Context, c *cli.Cluster, o *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	r, err := c.ResourceOf(ctx, o.GroupVersionKind())
	if err != nil {
		return nil, err
	}
	if r.Namespaced {
		return c.Dynamic.Resource(r.GroupVersionResource).Namespace(o.GetNamespace()), nil
	}
	return c.Dynamic.Resource(r.GroupVersionResource), nil
}

// inOrder returns objects in the order in which they are applied: the namespace before what is
// in it, and workloads last. Their settings and Secrets are optional in the manifests: pods
// that start before these fail.
func inOrder(objects []*unstructured.Unstructured) []*unstructured.Unstructured {
	rank := func(o *unstructured.Unstructured) int {
		switch {
		case o.GetKind() == "Namespace":
			return 0
		case workload(o):
			return 2
		}
		return 1
	}
	return slices.SortedStableFunc(slices.Values(objects), func(x, y *unstructured.Unstructured) int { return rank(x) - rank(y) })
}

// apply applies objects server-side. It returns how many have changed, and continues after
// errors.
func apply(ctx context.Context, c *cli.Cluster, objects []*unstructured.Unstructured) (changed int, err error) {
	var errs []error
	for _, o := range inOrder(objects) {
		did, err := applyOne(ctx, c, o)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: apply %s %s: %w", c.Name, o.GetKind(), o.GetName(), err))
			if o.GetKind() == "Namespace" {
				break // All other objects would fail, too.
			}
		}
		if did {
			changed++
		}
	}
	return changed, errors.Join(errs...)
}

func applyOne(ctx context.Context, c *cli.Cluster, o *unstructured.Unstructured) (changed bool, err error) {
	objects, err := resource(ctx, c, o)
	if err != nil {
		return false, err
	}
	before, err := objects.Get(ctx, o.GetName(), metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return false, err
	}
	if before != nil && o.GetKind() == "IPPool" && cidr(before) != cidr(o) {
		// Calico's API server refuses to change it. No address is assigned from a disabled pool.
		uid := before.GetUID()
		if err := objects.Delete(ctx, o.GetName(), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}); err != nil && !apierrors.IsNotFound(err) {
			return false, err
		}
		before = nil
	}
	options := metav1.ApplyOptions{FieldManager: manifests.Manager, Force: true}
	if before != nil {
		// An apply without a change may still write the object: the order of managedFields
		// entries with the same second isn't stable (seen with 1.36).
		dry := options
		dry.DryRun = []string{metav1.DryRunAll}
		after, err := objects.Apply(ctx, o.GetName(), o, dry)
		if err == nil && same(before, after) {
			return false, nil
		}
	}
	_, err = objects.Apply(ctx, o.GetName(), o, options)
	return err == nil, err
}

func cidr(pool *unstructured.Unstructured) string {
	text, _, _ := unstructured.NestedString(pool.Object, "spec", "cidr")
	return text
}

// same reports whether two states of an object differ at most in managedFields of others.
func same(before, after *unstructured.Unstructured) bool {
	bare := func(o *unstructured.Unstructured) *unstructured.Unstructured {
		o = o.DeepCopy()
		o.SetManagedFields(nil)
		o.SetResourceVersion("")
		return o
	}
	return reflect.DeepEqual(bare(before).Object, bare(after).Object) && fieldsOfOurs(before) == fieldsOfOurs(after)
}

// fieldsOfOurs returns the fields that this tool has applied.
func fieldsOfOurs(o *unstructured.Unstructured) string {
	for _, entry := range o.GetManagedFields() {
		if entry.Manager == manifests.Manager && entry.Operation == metav1.ManagedFieldsOperationApply && entry.FieldsV1 != nil {
			return entry.FieldsV1.GetRawString()
		}
	}
	return ""
}

// ours reports whether this tool has created an object.
func ours(o metav1.Object) bool { return o.GetLabels()[manifests.ManagedLabel] == manifests.Manager }

// foreign finds objects of the same names that this tool hasn't created.
func foreign(ctx context.Context, c *cli.Cluster, objects []*unstructured.Unstructured) []fault {
	var faults []fault
	for _, o := range objects {
		interfaces, err := resource(ctx, c, o)
		if meta.IsNoMatchError(err) {
			faults = append(faults, fault{cluster: c.Name, what: "it doesn't serve " + o.GroupVersionKind().String(), remedy: "upgrade Kubernetes"})
			continue
		}
		if err != nil {
			faults = append(faults, fault{cluster: c.Name, what: err.Error(), remedy: "check that the API server at " + c.Server + " answers"})
			continue
		}
		have, err := interfaces.Get(ctx, o.GetName(), metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err) || o.GetKind() == "Namespace":
		case err != nil:
			faults = append(faults, fault{cluster: c.Name, what: fmt.Sprintf("read %s %s: %v", o.GetKind(), o.GetName(), err),
				remedy: "check that the context " + c.Context + " may read it"})
		case !ours(have):
			faults = append(faults, fault{cluster: c.Name, what: fmt.Sprintf("%s %s exists and wasn't created by semaphorectl", o.GetKind(), o.GetName()),
				remedy: "delete it, or adopt a manual installation with --adopt"})
		}
	}
	return faults
}

// kinds returns the resources of all objects that this tool creates, in the order in which
// they are deleted: workloads first, then their rights, the namespace last. Calico's network
// policies are among them because a killed verify leaves one.
func kinds() []schema.GroupVersionResource {
	var all []schema.GroupVersionResource
	for _, text := range []string{
		"apps/v1/daemonsets", "apps/v1/deployments", "batch/v1/cronjobs", "batch/v1/jobs", "policy/v1/poddisruptionbudgets",
		"networking.k8s.io/v1/networkpolicies", "v1/pods", "v1/configmaps", "v1/secrets", "v1/resourcequotas",
		"rbac.authorization.k8s.io/v1/rolebindings", "rbac.authorization.k8s.io/v1/roles", "v1/serviceaccounts",
		"rbac.authorization.k8s.io/v1/clusterrolebindings", "rbac.authorization.k8s.io/v1/clusterroles",
		"admissionregistration.k8s.io/v1/validatingadmissionpolicybindings", "admissionregistration.k8s.io/v1/validatingadmissionpolicies",
		"projectcalico.org/v3/networkpolicies", "crd.projectcalico.org/v1/networkpolicies",
		"projectcalico.org/v3/ippools", "crd.projectcalico.org/v1/ippools", "v1/namespaces",
	} {
		parts := strings.Split("/"+text, "/")
		all = append(all, schema.GroupVersionResource{Group: parts[len(parts)-3], Version: parts[len(parts)-2], Resource: parts[len(parts)-1]})
	}
	return all
}

// namespacesOf returns the namespaces in which this tool creates objects of a resource; empty: of
// one without namespaces. The label of such objects can be on those of others elsewhere.
func namespacesOf(r cli.Resource) []string {
	if r.Namespaced {
		return []string{cli.Namespace, probe.Namespace}
	}
	return []string{""}
}

// owned lists the objects that this tool has created in a cluster, by resource, with names
// and UIDs only.
func owned(ctx context.Context, c *cli.Cluster) (map[schema.GroupVersionResource][]unstructured.Unstructured, error) {
	found := map[schema.GroupVersionResource][]unstructured.Unstructured{}
	var errs []error
	for _, r := range kinds() {
		served, err := c.Resource(ctx, r)
		if meta.IsNoMatchError(err) {
			continue
		}
		for _, namespace := range namespacesOf(served) {
			if err != nil {
				break
			}
			err = cli.ListUntyped(ctx, c.Dynamic.Resource(r).Namespace(namespace), metav1.ListOptions{LabelSelector: manifests.ManagedLabel + "=" + manifests.Manager}, func(o *unstructured.Unstructured) error {
				if r.Resource == "namespaces" && o.GetName() != cli.Namespace {
					return nil
				}
				var named unstructured.Unstructured
				named.SetGroupVersionKind(r.GroupVersion().WithKind(served.Kind))
				named.SetNamespace(o.GetNamespace())
				named.SetName(o.GetName())
				named.SetUID(o.GetUID())
				found[r] = append(found[r], named)
				return nil
			})
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: list %s: %w", c.Name, r.Resource, err))
			delete(found, r)
		}
	}
	return found, errors.Join(errs...)
}

// remove deletes the objects that this tool has created, except those in stay.
func remove(ctx context.Context, c *cli.Cluster, stay []*unstructured.Unstructured) (removed int, err error) {
	type key struct{ kind, namespace, name string }
	keep := map[key]bool{}
	for _, o := range stay {
		keep[key{o.GetKind(), o.GetNamespace(), o.GetName()}] = true
	}
	all, err := owned(ctx, c)
	errs := []error{err}
	for _, r := range kinds() {
		for _, o := range all[r] {
			if keep[key{o.GetKind(), o.GetNamespace(), o.GetName()}] || len(stay) > 0 && kept(&o) {
				continue
			}
			background := metav1.DeletePropagationBackground
			uid := o.GetUID()
			err := c.Dynamic.Resource(r).Namespace(o.GetNamespace()).Delete(ctx, o.GetName(),
				metav1.DeleteOptions{PropagationPolicy: &background, Preconditions: &metav1.Preconditions{UID: &uid}})
			if err != nil && !apierrors.IsNotFound(err) {
				errs = append(errs, fmt.Errorf("%s: delete %s %s: %w", c.Name, o.GetKind(), o.GetName(), err))
				continue
			}
			removed++
		}
	}
	return removed, errors.Join(errs...)
}

// kept reports whether an object is a Secret with tokens: it isn't in the manifests, and is
// deleted with the last remote only.
func kept(o *unstructured.Unstructured) bool {
	return o.GetKind() == "Secret" && strings.HasSuffix(o.GetName(), "-remotes")
}
