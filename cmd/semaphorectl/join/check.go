package join

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/cli"
	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/facts"
	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/manifests"
	"github.com/kube-semaphore/kube-semaphore/internal/endpoint"
)

// oldest is the minor version of Kubernetes that the manifests need.
const oldest = 30

// unreachable says why a node would have no endpoint for a cluster; empty: it has one, or
// is to have none.
func unreachable(n *facts.Node, remote string, settings map[string]string) string {
	location, err := n.Location(remote, settings)
	switch {
	case err != nil:
		return ": where other clusters' nodes reach it: " + err.Error()
	case location.Type == endpoint.InternalIP && len(n.Addresses) == 0:
		return " has no InternalIP"
	case location.Type == endpoint.ExternalIP && !n.External:
		return " has no ExternalIP"
	}
	return ""
}

// unread are what couldn't be read of a cluster, and what was read and can't be what it
// says.
func unread(f *facts.Facts) []fault {
	var faults []fault
	for _, err := range f.Unread {
		remedy := "see that the context " + f.Name + " of the kubeconfig works and may read this"
		if facts.IsInvalid(err) {
			remedy = "find out who has written that, and correct it; until then nothing is done with it"
		}
		faults = append(faults, fault{cluster: f.Name, what: err.Error(), remedy: remedy})
	}
	return faults
}

// check says what is wrong with a cluster by itself, which is to have these remotes.
func check(f *facts.Facts, w *Wishes, remotes []string) []fault {
	var faults []fault
	wrong := func(what, remedy string) { faults = append(faults, fault{cluster: f.Name, what: what, remedy: remedy}) }
	warn := func(what, remedy string) {
		faults = append(faults, fault{cluster: f.Name, what: what, remedy: remedy, warning: true})
	}
	faults = append(faults, unread(f)...)
	if f.Version == "" {
		return faults
	}
	if f.Minor < oldest {
		wrong("Kubernetes "+f.Version+" is too old", fmt.Sprintf("update it to 1.%d or later, which has ValidatingAdmissionPolicies", oldest))
	}
	s := w.side(f)
	if len(f.Nodes) == 0 {
		wrong("it has no nodes", "add one")
	}
	for _, n := range f.Nodes {
		switch {
		case n.OS != "" && n.OS != "linux":
			warn("node "+n.Name+" runs "+n.OS+", and gets no agent", "")
		case !n.Ready:
			warn("node "+n.Name+" isn't ready", "it joins when it is")
		default:
			for _, remote := range remotes {
				if what := unreachable(&n, remote, f.Installed.Settings); what != "" {
					wrong("node "+n.Name+what, "see to it that its cloud provider or kubelet sets one (--node-ip), or say where it is reached: kubectl annotate node "+cli.Quote(n.Name)+" wireguard.semaphore.uw.io/endpoint-address=<address>")
					break // Mostly it is the same for all.
				}
			}
		}
		if len(n.Pods) == 0 && f.Plugin == "" {
			warn("node "+n.Name+" has no podCIDR, and its network plugin isn't known", "see SEMAPHORE_WG_POD_CIDRS in docs/network-plugins.md")
		}
	}
	if len(s.pods) == 0 {
		wrong("where its pods are isn't known", "say --pod-subnets "+f.Name+"=10.4.0.0/16")
	} else if len(w.Pods[f.Name]) == 0 && !f.PodsSure {
		warn("pods are in "+shortened(s.pods)+", by "+f.PodsFrom, "when more nodes may have others, say --pod-subnets "+f.Name+"=<the whole range>")
	}
	if s.server == "" {
		wrong("its API server is at "+strings.TrimPrefix(strings.Join(f.Servers, ", "), ", ")+", which no other cluster reaches", "say --api-server "+f.Name+"=https://...")
	}
	if s.server != "" && !strings.HasPrefix(s.server, "https://") {
		wrong("its API server "+s.server+" isn't asked over https", "say --api-server "+f.Name+"=https://...")
	}
	if f.CA == "" && len(f.Unread) == 0 {
		wrong("there is no ConfigMap kube-system/kube-root-ca.crt, so its API server can't be verified", "see that kube-controller-manager runs")
	}
	if misnamed := misnamed(f); misnamed != nil {
		faults = append(faults, *misnamed)
	}
	if level := f.Installed.Restricted; level != "" {
		wrong("its namespace sys-semaphore enforces the Pod Security Standard "+level, "kubectl label namespace sys-semaphore pod-security.kubernetes.io/enforce=privileged --overwrite")
	}
	for _, needs := range f.Masquerade {
		warn("pods' packets may be masqueraded", needs)
	}
	if slices.Contains(w.Tools, manifests.Mirror) {
		switch {
		case f.DNS == nil:
			warn("no ConfigMap of CoreDNS is in kube-system", "names such as web.shop.svc.cluster.gcp need the blocks of deploy/coredns/Corefile, wherever its configuration is")
		case manifests.Whole(f.DNS.Corefile) != nil:
			wrong("ConfigMap "+f.DNS.Namespace+"/"+f.DNS.Name+": "+manifests.Whole(f.DNS.Corefile).Error(), "then join again")
		case !f.DNS.Reloads:
			warn("CoreDNS has no plugin reload", "restart it afterwards: kubectl -n kube-system rollout restart deployment coredns")
		}
	}
	return faults
}
