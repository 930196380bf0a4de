package join

import (
	"context"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/probe"
	"github.com/kube-semaphore/kube-semaphore/internal/wireguardpeers/v1alpha1"
)

// wants are rights that a step needs.
type wants []authorizationv1.ResourceAttributes

// add adds verbs, separated by blanks, for resources, as in "secrets" or "pods/exec", of a group in a
// namespace; empty: in all, or without one.
func (w *wants) add(namespace, group, verbs string, resources ...string) {
	for _, text := range resources {
		resource, sub, _ := strings.Cut(text, "/")
		for verb := range strings.FieldsSeq(verbs) {
			one := authorizationv1.ResourceAttributes{Verb: verb, Group: group, Resource: resource, Subresource: sub, Namespace: namespace}
			if !slices.Contains(*w, one) {
				*w = append(*w, one)
			}
		}
	}
}

// objects adds the verbs to upgrade a release with these objects: settings have other names after each change.
// Kinds that aren't served are reported elsewhere.
func (w *wants) objects(ctx context.Context, c *cli.Cluster, objects []*unstructured.Unstructured) {
	for _, o := range objects {
		if r, err := c.ResourceOf(ctx, o.GroupVersionKind()); err == nil {
			w.add(o.GetNamespace(), r.Group, "get create patch delete", r.Resource)
		}
	}
}

// ofBoth returns the rights to read the facts of a cluster, and to read and write the release.
func ofBoth(f *inspect.Facts) (w wants) {
	switch {
	case f.ServicesGiven:
	case f.Minor >= servesCIDRs:
		w.add("", "networking.k8s.io", "list", "servicecidrs")
	default: // a dry run, see inspect.Read
		w.add("default", "", "create", "services")
	}
	w.add("", "", "list", "nodes")
	w.add("", "", "get", "namespaces")
	w.add("kube-system", "", "get list", "configmaps")
	for _, namespace := range []string{cli.Namespace, "kube-system"} {
		w.add(namespace, "apps", "list", "daemonsets", "deployments")
	}
	w.add(cli.Namespace, "", "list get create update delete patch", "secrets")
	// The roles may grant more than the administrator has.
	w.add("", "rbac.authorization.k8s.io", "escalate bind", "clusterroles")
	return w
}

// rights returns a fault if the administrator lacks rights to join a cluster with these objects, and to
// install or remove semaphore-relay.
func rights(ctx context.Context, c *cli.Cluster, f *inspect.Facts, objects []*unstructured.Unstructured, relay bool) []fault {
	w := ofBoth(f)
	w.add("kube-system", "", "create get list deletecollection", "pods")
	w.add("kube-system", "", "create update", "configmaps")
	w.add(cli.Namespace, "", "create", "serviceaccounts/token")
	// What programs report of their new credentials: one of two ways is enough.
	w.add(cli.Namespace, "", "list", "pods")
	var proxy wants
	proxy.add(cli.Namespace, "", "get", "pods/proxy")
	if lacks, err := c.Lacks(ctx, proxy); err != nil || lacks != "" {
		w.add(cli.Namespace, "", "create", "pods/exec")
	}
	if f.Installed.Relay || relay {
		w.relay(f.Installed.Relay && !relay)
	}
	w.objects(ctx, c, objects)
	return lacks(ctx, c, w)
}

// relay adds the rights to wait for the objects of semaphore-relay, and to delete them; and with
// removes those to remove it.
func (w *wants) relay(removes bool) {
	group := v1alpha1.GroupVersion().Group
	w.add(cli.Namespace, group, "get list delete", v1alpha1.Resource)
	w.add(cli.Namespace, coordinationv1.GroupName, "get list delete", "leases")
	if removes {
		w.add("", group, "list", v1alpha1.Resource)
		w.add(cli.Namespace, "apps", "get delete", "deployments")
		w.add("", "apiextensions.k8s.io", "get delete", "customresourcedefinitions")
	}
}

// rightsToLeave returns a fault if the administrator lacks rights to take a cluster out:
// without them leave would end half way.
func rightsToLeave(ctx context.Context, c *cli.Cluster, f *inspect.Facts, objects []*unstructured.Unstructured) []fault {
	w := ofBoth(f)
	w.add("kube-system", "", "update delete", "configmaps")
	w.add(cli.Namespace, "discovery.k8s.io", "delete", "endpointslices")
	w.add(cli.Namespace, "", "delete", "services")
	w.add(cli.Namespace, "", "patch", "configmaps")
	w.add(cli.Namespace, "apps", "patch", "daemonsets", "deployments")
	if f.MultiCluster.Installed {
		w.add("", v1beta1.GroupName, "list get", v1beta1.ServiceExportPluralName)
		w.add("", v1beta1.GroupName, "update", v1beta1.ServiceExportPluralName+"/status")
		w.add("", v1beta1.GroupName, "list delete", v1beta1.ServiceImportPluralName)
		w.add("", "", "list delete", "services")
		w.add("", "discovery.k8s.io", "list delete", "endpointslices")
	}
	for _, crd := range f.MultiCluster.CRDs {
		if crd.Ours {
			w.add("", v1beta1.GroupName, "list", v1beta1.ServiceExportPluralName)
			w.add("", "apiextensions.k8s.io", "delete", "customresourcedefinitions")
		}
	}
	if f.Installed.Relay {
		w.relay(true)
	}
	if f.Calico != (schema.GroupVersion{}) { // The policies of a killed verify.
		w.add(cli.Namespace, f.Calico.Group, "list delete", "networkpolicies")
		w.add(probe.Namespace, f.Calico.Group, "list delete", "networkpolicies")
	}
	w.add(probe.Namespace, "", "list", "secrets")
	w.add("", "", "delete", "namespaces")
	w.objects(ctx, c, objects)
	return lacks(ctx, c, w)
}

func lacks(ctx context.Context, c *cli.Cluster, wanted wants) []fault {
	missing, err := c.Lacks(ctx, wanted)
	if err != nil {
		return []fault{{cluster: c.Name, what: err.Error(), remedy: "check that the API server at " + c.Server + " works"}}
	}
	if missing == "" {
		return nil
	}
	return []fault{{cluster: c.Name, what: c.Account(ctx) + " may not " + missing,
		remedy: "use a context with these rights, such as those of the ClusterRole cluster-admin; what this one has: " + c.Kubectl("auth can-i --list")}}
}
