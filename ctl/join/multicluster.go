package join

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/mcs-api/pkg/apis/v1alpha1"
	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/coredns"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
)

// multiClusterSetting is the setting of the Multi-Cluster Services API. Its value is
// multiClusterOff with --mcs=false.
const (
	multiClusterSetting = "SEMAPHORE_MCS"
	multiClusterAuto    = "auto"
	multiClusterOff     = "off"
)

// implements reports whether the mirror of a cluster is to implement the Multi-Cluster Services
// API: by --mcs, the settings, and what is installed.
func (w *InstallOptions) implements(f *inspect.Facts, tools []string, settings inspect.Settings) bool {
	return slices.Contains(tools, manifests.Mirror) && settings[multiClusterSetting] != multiClusterOff &&
		(w.MultiCluster || f.MultiCluster.Installed) && f.MultiCluster.Err == nil
}

// choose sets the setting by --mcs. What was given before is kept without the flag.
func (w *InstallOptions) choose(settings inspect.Settings) {
	switch now := settings[multiClusterSetting]; {
	case w.MultiClusterGiven && !w.MultiCluster:
		settings[multiClusterSetting] = multiClusterOff
	case w.MultiCluster && (now == "" || w.MultiClusterGiven && now == multiClusterOff):
		settings[multiClusterSetting] = multiClusterAuto
	}
}

// multiCluster returns what a cluster gets for the Multi-Cluster Services API; nil: its CRDs are
// those of another implementation, and can't be used.
func multiCluster(f *inspect.Facts) *manifests.MultiCluster {
	m := &manifests.MultiCluster{CRDs: len(f.MultiCluster.Outdated) == 2}
	for _, c := range f.MultiCluster.CRDs {
		if !slices.Contains(c.Served, v1beta1.GroupVersion.Version) && !m.CRDs {
			return nil
		}
	}
	if len(f.MultiCluster.CRDs) < 2 && !m.CRDs {
		return nil // One of them only, of another implementation.
	}
	if dns := f.DNS; dns != nil && !dns.Foreign(coredns.ClusterSet) {
		if what, _ := unresolved(f, m); what == "" {
			m.DNS = types.NamespacedName{Namespace: dns.Namespace, Name: dns.Account}
		}
	}
	return m
}

// unimported returns the faults that keep a cluster from implementing the Multi-Cluster
// Services API.
func unimported(f *inspect.Facts, wanted *manifests.Cluster) []fault {
	warn := func(what, remedy string) []fault {
		return []fault{{cluster: f.Name, what: what, remedy: remedy, warning: true}}
	}
	const without = "or leave the API out with --mcs=false"
	switch {
	case !slices.Contains(wanted.Tools, manifests.Mirror) || slices.Contains([]string{"", multiClusterOff}, wanted.Settings[multiClusterSetting]):
		return nil
	case f.MultiCluster.Err != nil:
		return []fault{{cluster: f.Name, what: "the Multi-Cluster Services API: " + f.MultiCluster.Err.Error(), remedy: "use a context that may read it, " + without, forbidden: apierrors.IsForbidden(f.MultiCluster.Err)}}
	case wanted.MultiCluster == nil:
		return warn("exported services aren't imported: the CRDs of the Multi-Cluster Services API are those of another implementation, and don't serve "+v1beta1.GroupVersion.Version+foreignCRDs(f),
			"update them as they were installed, and join again: join leaves them unchanged")
	case f.DNS == nil:
		return nil // Reported by unnamed.
	}
	if f.DNS.Foreign(coredns.ClusterSet) {
		return warn("CoreDNS has a server block for "+coredns.ClusterSet+" that isn't from join, which leaves it unchanged", "compare it with deploy/coredns/Corefile.clusterset, or remove it and join again")
	}
	if what, remedy := unresolved(f, wanted.MultiCluster); what != "" {
		return warn("names of "+coredns.ClusterSet+" aren't set up: "+what, remedy)
	}
	return nil
}

// unresolved returns why CoreDNS can't resolve names of imports, and what to do; empty: it can.
func unresolved(f *inspect.Facts, m *manifests.MultiCluster) (what, remedy string) {
	for name, c := range f.MultiCluster.CRDs {
		if !slices.Contains(c.Served, v1alpha1.GroupVersion.Version) && !m.CRDs {
			return "CoreDNS reads them as " + v1alpha1.GroupVersion.Version + ", which the CRD " + name + " doesn't serve",
				"let the CRD serve that version, too; join leaves it unchanged, because it is newer, or of another implementation"
		}
	}
	return f.DNS.ClusterSetFault()
}

// foreignCRDs describes the CRDs that join leaves unchanged.
func foreignCRDs(f *inspect.Facts) string {
	var all []string
	for name, c := range f.MultiCluster.CRDs {
		if !c.Ours {
			release := "no release-version"
			if c.Release != "" {
				release = c.Release
			}
			all = append(all, name+": "+release+", "+strings.Join(c.Served, " and ")+" served")
		}
	}
	slices.Sort(all)
	if len(all) == 0 {
		return ""
	}
	return " (" + strings.Join(all, "; ") + ")"
}

// reportCRDs prints which CRDs exist and aren't ours.
func (a *installation) reportCRDs(context.Context) error {
	for i, f := range a.facts {
		if foreign := foreignCRDs(f); foreign != "" && a.wanted[i].MultiCluster != nil {
			a.Done("%s: the CRDs of the Multi-Cluster Services API exist, and join leaves them unchanged%s", f.Name, foreign)
		}
	}
	return nil
}

// deleteImports deletes the imports of the mirror, with derived Services and EndpointSlices.
func deleteImports(ctx context.Context, c *cli.Cluster, f *inspect.Facts) error {
	if !f.MultiCluster.Installed {
		return nil
	}
	const ours = "mirror.semaphore.uw.io/imported=true"
	return errors.Join(
		deleteAll(ctx, c, v1beta1.SchemeGroupVersion.WithResource(v1beta1.ServiceImportPluralName), metav1.NamespaceAll, ours),
		deleteAll(ctx, c, schema.GroupVersionResource{Version: "v1", Resource: "services"}, metav1.NamespaceAll, ours),
		deleteAll(ctx, c, schema.GroupVersionResource{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"}, metav1.NamespaceAll, importSlices),
	)
}

// sourceCluster is the condition that only the mirror sets, beside those of the API.
const sourceCluster = "mirror.semaphore.uw.io/SourceCluster"

// forgetExports removes the conditions that the mirror has set on exports: they would state the
// past for ever, also after another implementation is installed.
func forgetExports(ctx context.Context, c *cli.Cluster, f *inspect.Facts) error {
	if !f.MultiCluster.Installed {
		return nil
	}
	exports := c.Dynamic.Resource(v1beta1.SchemeGroupVersion.WithResource(v1beta1.ServiceExportPluralName))
	var found []types.NamespacedName
	err := cli.ListUntyped(ctx, exports, metav1.ListOptions{}, func(o *unstructured.Unstructured) error {
		if forgotten(o) {
			found = append(found, types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()})
		}
		return nil
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("%s: list %s: %w", c.Name, v1beta1.ServiceExportPluralName, err)
	}
	var errs []error
	for _, o := range found {
		err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
			now, err := exports.Namespace(o.Namespace).Get(ctx, o.Name, metav1.GetOptions{})
			if err == nil && forgotten(now) {
				_, err = exports.Namespace(o.Namespace).UpdateStatus(ctx, now, metav1.UpdateOptions{})
			}
			return err
		})
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("%s: remove the conditions of the ServiceExport %s: %w", c.Name, o, err))
		}
	}
	return errors.Join(errs...)
}

// forgotten removes the conditions of the mirror from an export, and reports whether it had any.
func forgotten(o *unstructured.Unstructured) bool {
	all, _, err := unstructured.NestedSlice(o.Object, "status", "conditions")
	of := func(kinds ...string) func(any) bool {
		return func(condition any) bool {
			m, ok := condition.(map[string]any)
			kind, _ := m["type"].(string)
			return ok && slices.Contains(kinds, kind)
		}
	}
	if err != nil || !slices.ContainsFunc(all, of(sourceCluster)) {
		return false
	}
	all = slices.DeleteFunc(all, of(sourceCluster, string(v1beta1.ServiceExportConditionValid),
		string(v1beta1.ServiceExportConditionReady), string(v1beta1.ServiceExportConditionConflict)))
	// It has been read from there.
	_ = unstructured.SetNestedSlice(o.Object, all, "status", "conditions")
	return true
}

// importSlices selects the EndpointSlices of imports.
const importSlices = "endpointslice.kubernetes.io/managed-by=" + mirrorName + "," + v1beta1.LabelSourceCluster

// deleteCRDs deletes the CRDs that semaphorectl has created, unless there are objects.
func (a *installation) deleteCRDs(ctx context.Context, c *cli.Cluster, f *inspect.Facts) error {
	var ours []string
	for name, crd := range f.MultiCluster.CRDs {
		if crd.Ours {
			ours = append(ours, name)
		}
	}
	if len(ours) == 0 {
		return nil
	}
	slices.Sort(ours)
	api := v1beta1.SchemeGroupVersion
	return a.dropCRDs(ctx, c, "the Multi-Cluster Services API", ours, api.WithResource(v1beta1.ServiceExportPluralName), api.WithResource(v1beta1.ServiceImportPluralName))
}

// dropCRDs deletes CRDs of ours, unless there are objects of one of the resources.
func (a *installation) dropCRDs(ctx context.Context, c *cli.Cluster, of string, names []string, resources ...schema.GroupVersionResource) error {
	for _, r := range resources {
		left := 0
		err := cli.ListUntyped(ctx, c.Dynamic.Resource(r), metav1.ListOptions{}, func(*unstructured.Unstructured) error {
			left++
			return nil
		})
		if err != nil && !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err) {
			return fmt.Errorf("%s: list %s: %w", c.Name, r.Resource, err)
		}
		if left > 0 {
			words := make([]any, len(names))
			for i, name := range names {
				words[i] = name
			}
			a.Warn("%s: the CRDs of %s stay, because of %s; to delete these, too: %s",
				c.Name, of, cli.Count(left, "object"), c.Kubectl("delete customresourcedefinitions"+strings.Repeat(" %s", len(words)), words...))
			return nil
		}
	}
	for _, name := range names {
		if err := crds(c).Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("%s: delete the CRD %s: %w", c.Name, name, err)
		}
	}
	a.Done("%s: deleted the CRDs of %s", c.Name, of)
	return nil
}

func crds(c *cli.Cluster) dynamic.ResourceInterface {
	return c.Dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
}
