package kube

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// NetworkSets is the resource of Calico's global network sets in all of its APIs.
const NetworkSets = "globalnetworksets"

// CalicoAPIs returns those of Calico's APIs that a setting allows, the better one first:
// all for "auto", none for a version that there isn't. Where both are served v3 is that of
// Calico's API server, which validates, and v1 the custom resources that it keeps its
// objects in. Releases with native v3 resources have no v1.
func CalicoAPIs(setting string) []schema.GroupVersion {
	var allowed []schema.GroupVersion
	for _, gv := range []schema.GroupVersion{
		{Group: "projectcalico.org", Version: "v3"},
		{Group: "crd.projectcalico.org", Version: "v1"},
	} {
		if setting == "auto" || setting == gv.Version {
			allowed = append(allowed, gv)
		}
	}
	return allowed
}

// DetectCalico returns the first of Calico's APIs that serves network sets; empty: none
// does. One that is registered but doesn't answer is an error, not a reason to take the
// next. The client is one of the whole API server, as that of discovery.
func DetectCalico(ctx context.Context, client rest.Interface, apis []schema.GroupVersion) (schema.GroupVersion, error) {
	for _, gv := range apis {
		var list metav1.APIResourceList
		err := client.Get().AbsPath("/apis", gv.Group, gv.Version).Do(ctx).Into(&list)
		switch {
		case apierrors.IsNotFound(err):
			continue
		case err != nil:
			return schema.GroupVersion{}, fmt.Errorf("look for calico's API %v: %w", gv, err)
		}
		for i := range list.APIResources {
			if list.APIResources[i].Name == NetworkSets {
				return gv, nil
			}
		}
	}
	return schema.GroupVersion{}, nil
}
