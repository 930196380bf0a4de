package cli

import (
	"context"
	"fmt"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/discovery"
)

// maxResources bounds the resources of a group version: Kubernetes' largest has 60, with
// subresources.
const maxResources = 1000

// Resource is the API resource of a kind.
type Resource struct {
	schema.GroupVersionResource
	Kind       string
	Namespaced bool
}

// resources caches discovery of group versions. client-go's RESTMapper requests all group
// versions at once, and a hostile cluster can list thousands, each with a response of the
// maximum size.
type resources struct {
	mu    sync.Mutex
	known map[schema.GroupVersion][]Resource
}

// ResourceOf returns the resource of a kind. If it isn't served, the error satisfies
// meta.IsNoMatchError.
func (c *Cluster) ResourceOf(ctx context.Context, kind schema.GroupVersionKind) (Resource, error) {
	all, err := c.resourcesOf(ctx, kind.GroupVersion())
	if err != nil {
		return Resource{}, err
	}
	for _, r := range all {
		if r.Kind == kind.Kind {
			return r, nil
		}
	}
	return Resource{}, &meta.NoKindMatchError{GroupKind: kind.GroupKind(), SearchedVersions: []string{kind.Version}}
}

// Resource returns a resource with its kind, as ResourceOf does.
func (c *Cluster) Resource(ctx context.Context, resource schema.GroupVersionResource) (Resource, error) {
	all, err := c.resourcesOf(ctx, resource.GroupVersion())
	if err != nil {
		return Resource{}, err
	}
	for _, r := range all {
		if r.GroupVersionResource == resource {
			return r, nil
		}
	}
	return Resource{}, &meta.NoResourceMatchError{PartialResource: resource}
}

// resourcesOf requests a group version once and caches the response. A group version that
// isn't served has no resources.
func (c *Cluster) resourcesOf(ctx context.Context, version schema.GroupVersion) ([]Resource, error) {
	c.resources.mu.Lock()
	defer c.resources.mu.Unlock()
	if all, known := c.resources.known[version]; known {
		return all, nil
	}
	list, err := discovery.ToServerResourcesInterfaceWithContext(c.Client.Discovery()).ServerResourcesForGroupVersionWithContext(ctx, version.String())
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("discover the resources of %s: %w", version, err)
	}
	var all []Resource
	if err == nil {
		if len(list.APIResources) > maxResources {
			return nil, fmt.Errorf("discover the resources of %s: more than %d", version, maxResources)
		}
		for i := range list.APIResources {
			// Names become URL paths. Names with a slash are subresources.
			if r := &list.APIResources[i]; len(validation.IsDNS1123Label(r.Name)) == 0 && len(validation.IsDNS1035Label(strings.ToLower(r.Kind))) == 0 {
				all = append(all, Resource{version.WithResource(r.Name), r.Kind, r.Namespaced})
			}
		}
	}
	if c.resources.known == nil {
		c.resources.known = map[schema.GroupVersion][]Resource{}
	}
	c.resources.known[version] = all
	return all, nil
}
