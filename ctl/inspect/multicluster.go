package inspect

import (
	"context"
	"fmt"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	"sigs.k8s.io/mcs-api/config/crd"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
	"github.com/kube-semaphore/kube-semaphore/internal/printable"
)

// MultiCluster is the Multi-Cluster Services API in a cluster.
type MultiCluster struct {
	// CRDs are its CRDs that exist, by name.
	CRDs map[string]CRD
	// Outdated are those of this release of the API that don't exist, or exist in the same or an
	// earlier release and were created by semaphorectl.
	Outdated []*unstructured.Unstructured
	// Installed is whether the service mirror has the rights to write imports.
	Installed bool
	// Err is why this couldn't be read.
	Err error
}

// CRD is a CustomResourceDefinition.
type CRD struct {
	// Ours is whether semaphorectl has created it.
	Ours bool
	// Release is the version of the API in its labels; empty: none.
	Release  string
	revision int
	// Served are its served versions.
	Served []string
}

// updates reports whether a CRD replaces this one: it is ours, and not newer.
func (c *CRD) updates(next CRD) bool {
	have, err := version.ParseGeneric(c.Release)
	want, ownErr := version.ParseGeneric(next.Release)
	switch {
	case !c.Ours || ownErr != nil:
		return false
	case err != nil || have.LessThan(want):
		return true
	}
	return !want.LessThan(have) && c.revision <= next.revision
}

func (f *Facts) readMultiCluster(ctx context.Context, c *cli.Cluster) {
	f.MultiCluster.CRDs = map[string]CRD{}
	crds := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	own, err := manifests.CRDs()
	if err != nil {
		f.MultiCluster.Err = err
		return
	}
	for _, next := range own {
		name := next.GetName()
		o, err := c.Dynamic.Resource(crds).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			f.MultiCluster.Outdated = append(f.MultiCluster.Outdated, next)
			continue
		}
		if err != nil {
			f.MultiCluster.Err = fmt.Errorf("read the CRD %s: %w", name, err)
			return
		}
		have := crdOf(o)
		if f.MultiCluster.CRDs[name] = have; have.updates(crdOf(next)) {
			f.MultiCluster.Outdated = append(f.MultiCluster.Outdated, next)
		}
	}
	role, err := c.Client.RbacV1().ClusterRoles().Get(ctx, manifests.ImportRole, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		f.MultiCluster.Err = fmt.Errorf("read the ClusterRole %s: %w", manifests.ImportRole, err)
	}
	f.MultiCluster.Installed = err == nil && manifests.Ours(role)
}

func crdOf(o *unstructured.Unstructured) CRD {
	labels := o.GetLabels()
	c := CRD{Ours: manifests.Ours(o), Release: printable.Text(labels[crd.ReleaseVersionLabel], printable.Short)}
	c.revision, _ = strconv.Atoi(labels[crd.CustomResourceDefinitionSchemaRevisionLabel]) // No number is 0.
	versions, _, _ := unstructured.NestedSlice(o.Object, "spec", "versions")
	for _, v := range versions {
		if v, is := v.(map[string]any); is && v["served"] == true {
			if name, is := v["name"].(string); is {
				c.Served = append(c.Served, name)
			}
		}
	}
	return c
}
