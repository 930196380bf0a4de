package kube

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// NetworkSets is the resource name of Calico's global network sets.
const NetworkSets = "globalnetworksets"

// CalicoAPIs returns the Calico APIs that a setting allows, in order of preference: all for
// "auto", none for an unknown version. If both are served, v3 is that of Calico's API
// server, which validates, and v1 has the custom resources behind it. Releases with native
// v3 resources have no v1.
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

// DetectCalico returns the first of apis that serves network sets, or the zero value. An
// API that is registered but unavailable is an error, not a reason to use the next one.
func DetectCalico(ctx context.Context, client rest.Interface, apis []schema.GroupVersion) (schema.GroupVersion, error) {
	for _, gv := range apis {
		var list metav1.APIResourceList
		err := client.Get().AbsPath("/apis", gv.Group, gv.Version).Do(ctx).Into(&list)
		switch {
		case apierrors.IsNotFound(err):
			continue
		case err != nil:
			return schema.GroupVersion{}, fmt.Errorf("discover Calico API %v: %w", gv, err)
		}
		for i := range list.APIResources {
			if list.APIResources[i].Name == NetworkSets {
				return gv, nil
			}
		}
	}
	return schema.GroupVersion{}, nil
}
