package coredns

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Owner is what sets a ConfigMap of CoreDNS back to its own copy. The zero value: nothing is
// known to.
type Owner struct {
	Name string
	// When it sets the ConfigMap back.
	When string
	// AtOnce is whether that is so soon that writing is useless.
	AtOnce bool
	// Instead says where server blocks are kept.
	Instead string
}

// owner returns the owner of a ConfigMap by its marks; nil: the ConfigMap doesn't exist. Those
// that apply a manifest leave a key that isn't in it: added is whether ours is one.
//
//	mark                                              owner                   set back
//	namespace openshift-dns                           OpenShift DNS operator  at once
//	controller in ownerReferences                     that controller         at once
//	resources.gardener.cloud/managed-by               Gardener                at once
//	addonmanager.kubernetes.io/mode=Reconcile         addon manager           at once
//	kustomize.toolkit.fluxcd.io/name                  Flux                    at once
//	helm.toolkit.fluxcd.io/name                       Flux                    next upgrade
//	argocd.argoproj.io/tracking-id, instance          Argo CD                 next sync
//	objectset.rio.cattle.io/owner-name                K3s                     next start
//	meta.helm.sh/release-name rke2-coredns            RKE2                    next upgrade
//	meta.helm.sh/release-name, managed-by=Helm        Helm                    next upgrade
//	eks.amazonaws.com/component, field manager eks    EKS add-on              next update
//	addon.kops.k8s.io/name                            kOps                    next update
//	none, addonmanager.kubernetes.io/mode=EnsureExists                        never
func owner(m *corev1.ConfigMap, namespace string, added bool) Owner {
	if m == nil {
		return Owner{}
	}
	mark := func(names ...string) string {
		for _, name := range names {
			for _, marks := range []map[string]string{m.Labels, m.Annotations} {
				if value, has := marks[name]; has {
					return name + "=" + value
				}
			}
		}
		return ""
	}
	controller := metav1.GetControllerOf(m)
	release := m.Annotations["meta.helm.sh/release-name"]
	switch {
	case namespace == "openshift-dns":
		return Owner{"OpenShift's DNS operator", "within seconds", true,
			"run another CoreDNS with deploy/coredns/Corefile, and forward the zones to it: spec.servers of dns.operator.openshift.io default"}
	case controller != nil:
		return Owner{controller.Kind + " " + controller.Name, "as soon as it sees the change", true, "put them into the " + controller.Kind}
	case mark("resources.gardener.cloud/managed-by") != "" && m.Annotations["resources.gardener.cloud/ignore"] != "true":
		return Owner{"Gardener", "within minutes", true, "put them into the ConfigMap coredns-custom"}
	case added:
		return Owner{}
	case m.Labels["addonmanager.kubernetes.io/mode"] == "Reconcile":
		return Owner{"the addon manager", "within a minute", true, "put them into the manifest that it applies"}
	case mark("helm.toolkit.fluxcd.io/name") != "":
		return Owner{"Flux", "at the next upgrade of its HelmRelease", false, "put them into the values in its Git repository"}
	case mark("kustomize.toolkit.fluxcd.io/name") != "":
		return Owner{"Flux", "at its next reconciliation", true, "put them into its Git repository"}
	case mark("argocd.argoproj.io/tracking-id", "argocd.argoproj.io/instance") != "":
		return Owner{"Argo CD", "at its next sync", false, "put them into its Git repository"}
	case mark("objectset.rio.cattle.io/owner-name") != "":
		return Owner{"K3s", "at the next start of a server", false,
			"upgrade to a K3s whose Corefile has the line import /etc/coredns/custom/*.server, and join again"}
	case release == "rke2-coredns":
		return Owner{"RKE2", "at its next upgrade", false, "put them into the HelmChartConfig kube-system/rke2-coredns, or join again after it"}
	case release != "" || m.Labels["app.kubernetes.io/managed-by"] == "Helm":
		return Owner{strings.TrimSpace("Helm release " + release), "at its next upgrade", false, "put them into its values, or join again after it"}
	case m.Labels["eks.amazonaws.com/component"] != "" && managed(m, "eks"):
		return Owner{"the EKS add-on coredns", "when it is updated with the conflict resolution OVERWRITE", false,
			"put them into the add-on's configuration values (corefile), or update it with PRESERVE"}
	case mark("addon.kops.k8s.io/name") != "":
		return Owner{"kOps", "when it updates its addons", false, "put them into spec.kubeDNS.externalCoreFile of the cluster, or join again after it"}
	}
	return Owner{}
}

// managed reports whether a field manager owns fields of an object.
func managed(m *corev1.ConfigMap, manager string) bool {
	for _, entry := range m.ManagedFields {
		if entry.Manager == manager {
			return true
		}
	}
	return false
}
