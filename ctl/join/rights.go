package join

import (
	"context"
	"slices"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/probe"
)

// reads returns the rights to read the facts of a cluster.
func reads(f *inspect.Facts) []authorizationv1.ResourceAttributes {
	var services []authorizationv1.ResourceAttributes
	switch {
	case f.ServicesGiven:
	case f.Minor >= servesCIDRs:
		services = append(services, authorizationv1.ResourceAttributes{Verb: "list", Group: "networking.k8s.io", Resource: "servicecidrs"})
	default: // a dry run, see inspect.Read
		services = append(services, authorizationv1.ResourceAttributes{Verb: "create", Resource: "services", Namespace: "default"})
	}
	return append(services, []authorizationv1.ResourceAttributes{
		{Verb: "list", Resource: "nodes"},
		{Verb: "get", Resource: "namespaces"},
		{Verb: "get", Resource: "configmaps", Namespace: "kube-system"},
		{Verb: "list", Resource: "configmaps", Namespace: "kube-system"},
		{Verb: "list", Group: "apps", Resource: "daemonsets", Namespace: cli.Namespace},
		{Verb: "list", Group: "apps", Resource: "deployments", Namespace: cli.Namespace},
		{Verb: "list", Group: "apps", Resource: "deployments", Namespace: "kube-system"},
		{Verb: "list", Group: "apps", Resource: "daemonsets", Namespace: "kube-system"},
	}...)
}

// rights returns a fault if the administrator lacks rights to apply the objects, or others that are
// given.
func rights(ctx context.Context, c *cli.Cluster, f *inspect.Facts, objects []*unstructured.Unstructured, others ...authorizationv1.ResourceAttributes) []fault {
	wanted := append(reads(f), []authorizationv1.ResourceAttributes{
		{Verb: "create", Resource: "pods", Namespace: "kube-system"},
		{Verb: "get", Resource: "pods", Namespace: "kube-system"},
		{Verb: "deletecollection", Resource: "pods", Namespace: "kube-system"},
		{Verb: "create", Resource: "configmaps", Namespace: "kube-system"},
		{Verb: "update", Resource: "configmaps", Namespace: "kube-system"},
		{Verb: "create", Resource: "serviceaccounts", Subresource: "token", Namespace: cli.Namespace},
		{Verb: "patch", Resource: "secrets", Namespace: cli.Namespace},
		// The roles may grant more than the administrator has.
		{Verb: "escalate", Group: "rbac.authorization.k8s.io", Resource: "clusterroles"},
		{Verb: "bind", Group: "rbac.authorization.k8s.io", Resource: "clusterroles"},
	}...)
	wanted = slices.Concat(wanted, ofRelease(), reports(ctx, c), others)
	for _, o := range objects {
		r, err := c.ResourceOf(ctx, o.GroupVersionKind())
		if err != nil {
			continue // Reported by foreign.
		}
		for _, verb := range []string{"get", "create", "patch"} {
			a := authorizationv1.ResourceAttributes{Verb: verb, Group: r.Group, Resource: r.Resource, Namespace: o.GetNamespace()}
			if !slices.Contains(wanted, a) {
				wanted = append(wanted, a)
			}
		}
	}
	return lacks(ctx, c, wanted)
}

// ofRelease returns the rights to read and write the revisions of the release.
func ofRelease() (all []authorizationv1.ResourceAttributes) {
	for _, verb := range []string{"list", "get", "create", "update", "delete"} {
		all = append(all, authorizationv1.ResourceAttributes{Verb: verb, Resource: "secrets", Namespace: cli.Namespace})
	}
	return all
}

// reports returns the rights to read what programs report of their new credentials: one of two ways
// is enough.
func reports(ctx context.Context, c *cli.Cluster) []authorizationv1.ResourceAttributes {
	wanted := []authorizationv1.ResourceAttributes{{Verb: "list", Resource: "pods", Namespace: cli.Namespace}}
	proxy := authorizationv1.ResourceAttributes{Verb: "get", Resource: "pods", Subresource: "proxy", Namespace: cli.Namespace}
	if lacks, err := c.Lacks(ctx, []authorizationv1.ResourceAttributes{proxy}); err == nil && lacks == "" {
		return wanted
	}
	return append(wanted, authorizationv1.ResourceAttributes{Verb: "create", Resource: "pods", Subresource: "exec", Namespace: cli.Namespace})
}

// rightsToLeave returns a fault if the administrator lacks rights to take a cluster out:
// without them leave would end half way.
func rightsToLeave(ctx context.Context, c *cli.Cluster, f *inspect.Facts, objects []*unstructured.Unstructured) []fault {
	wanted := append(append(reads(f), ofRelease()...),
		authorizationv1.ResourceAttributes{Verb: "update", Resource: "configmaps", Namespace: "kube-system"},
		authorizationv1.ResourceAttributes{Verb: "delete", Group: "discovery.k8s.io", Resource: "endpointslices", Namespace: cli.Namespace},
		authorizationv1.ResourceAttributes{Verb: "delete", Resource: "services", Namespace: cli.Namespace},
		authorizationv1.ResourceAttributes{Verb: "patch", Resource: "configmaps", Namespace: cli.Namespace},
		authorizationv1.ResourceAttributes{Verb: "patch", Resource: "secrets", Namespace: cli.Namespace},
		authorizationv1.ResourceAttributes{Verb: "patch", Group: "apps", Resource: "daemonsets", Namespace: cli.Namespace},
		authorizationv1.ResourceAttributes{Verb: "patch", Group: "apps", Resource: "deployments", Namespace: cli.Namespace},
	)
	if f.MultiCluster.Installed {
		wanted = append(wanted,
			authorizationv1.ResourceAttributes{Verb: "list", Group: v1beta1.GroupName, Resource: v1beta1.ServiceExportPluralName},
			authorizationv1.ResourceAttributes{Verb: "get", Group: v1beta1.GroupName, Resource: v1beta1.ServiceExportPluralName},
			authorizationv1.ResourceAttributes{Verb: "update", Group: v1beta1.GroupName, Resource: v1beta1.ServiceExportPluralName, Subresource: "status"})
		for _, r := range []authorizationv1.ResourceAttributes{
			{Group: v1beta1.GroupName, Resource: v1beta1.ServiceImportPluralName}, {Resource: "services"}, {Group: "discovery.k8s.io", Resource: "endpointslices"},
		} {
			for _, verb := range []string{"list", "delete"} {
				r.Verb = verb
				wanted = append(wanted, r)
			}
		}
	}
	for _, crd := range f.MultiCluster.CRDs {
		if crd.Ours {
			wanted = append(wanted,
				authorizationv1.ResourceAttributes{Verb: "list", Group: v1beta1.GroupName, Resource: v1beta1.ServiceExportPluralName},
				authorizationv1.ResourceAttributes{Verb: "delete", Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"})
			break
		}
	}
	if f.Installed.Relay {
		wanted = append(wanted, relayRights(true)...)
	}
	if f.Calico.Version != "" { // The policies of a killed verify.
		for _, namespace := range []string{cli.Namespace, probe.Namespace} {
			for _, verb := range []string{"list", "delete"} {
				wanted = append(wanted, authorizationv1.ResourceAttributes{Verb: verb, Group: f.Calico.Group, Resource: "networkpolicies", Namespace: namespace})
			}
		}
	}
	wanted = append(wanted,
		authorizationv1.ResourceAttributes{Verb: "list", Resource: "secrets", Namespace: probe.Namespace},
		authorizationv1.ResourceAttributes{Verb: "delete", Resource: "namespaces"},
		// The roles, which the agents' cleanup applies again, may grant more than the administrator has.
		authorizationv1.ResourceAttributes{Verb: "escalate", Group: "rbac.authorization.k8s.io", Resource: "clusterroles"},
		authorizationv1.ResourceAttributes{Verb: "bind", Group: "rbac.authorization.k8s.io", Resource: "clusterroles"})
	for _, o := range objects {
		r, err := c.ResourceOf(ctx, o.GroupVersionKind())
		if err != nil {
			continue // Not served, or reported by the upgrade.
		}
		for _, verb := range []string{"get", "patch", "delete"} {
			one := authorizationv1.ResourceAttributes{Verb: verb, Group: r.Group, Resource: r.Resource, Namespace: o.GetNamespace()}
			if !slices.Contains(wanted, one) {
				wanted = append(wanted, one)
			}
		}
	}
	return lacks(ctx, c, wanted)
}

func lacks(ctx context.Context, c *cli.Cluster, wanted []authorizationv1.ResourceAttributes) []fault {
	missing, err := c.Lacks(ctx, wanted)
	if err != nil {
		return []fault{{cluster: c.Name, what: err.Error(), remedy: "check that the API server at " + c.Server + " works"}}
	}
	if missing == "" {
		return nil
	}
	return []fault{{cluster: c.Name, what: c.Account(ctx) + " may not " + missing,
		remedy: "use a context with these rights, such as those of the ClusterRole cluster-admin; what this one has: " + cli.Kubectl(c.Context, "auth can-i --list")}}
}
