package join

import (
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
	"github.com/kube-semaphore/kube-semaphore/internal/endpoint"
)

// servesCIDRs is the first minor version that serves ServiceCIDRs: agents read them, too.
const servesCIDRs = 33

// oldest is the minimum minor version of Kubernetes 1, for the manifests.
const oldest = 30

// unreachable returns why a node would have no endpoint for a cluster; empty: it has one, or
// needs none.
func unreachable(n *inspect.Node, remote string, settings map[string]string) string {
	location, err := n.Location(remote, settings)
	switch {
	case err != nil:
		return ": its endpoint for other clusters: " + err.Error()
	case location.Type == endpoint.InternalIP && len(n.Addresses) == 0:
		return " has no InternalIP"
	case location.Type == endpoint.ExternalIP && !n.External:
		return " has no ExternalIP"
	}
	return ""
}

// unread returns faults for facts that couldn't be read or are invalid.
func unread(f *inspect.Facts) []fault {
	var faults []fault
	for _, err := range f.Unread {
		remedy := "check that the kubeconfig context of " + f.Name + " works and may read this"
		if advised, is := errors.AsType[*cli.Advised](err); is {
			remedy = advised.Remedy
		}
		if inspect.IsInvalid(err) {
			remedy = "find out what has written this value, and correct it; it isn't used until then"
		}
		faults = append(faults, fault{cluster: f.Name, what: err.Error(), remedy: remedy, forbidden: apierrors.IsForbidden(err)})
	}
	return faults
}

// check returns the faults of a cluster that prevent joining it with these remotes.
func check(f *inspect.Facts, w *InstallOptions, remotes []string) []fault {
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
		wrong("Kubernetes "+f.Version+" is too old", fmt.Sprintf("upgrade to 1.%d or later, which has ValidatingAdmissionPolicies", oldest))
	}
	s := w.remoteSettings(f)
	if len(f.Nodes) == 0 && len(f.Unread) == 0 {
		wrong("it has no nodes", "add one")
	}
	for _, n := range f.Nodes {
		switch {
		case n.Agentless() != "":
			warn("node "+n.Name+" "+n.Agentless()+", and gets no agent", "")
		case n.Ready != "True":
			warn("node "+n.Name+" isn't ready", "it joins when it becomes ready")
		default:
			for _, remote := range remotes {
				if what := unreachable(&n, remote, f.Installed.Settings); what != "" {
					wrong("node "+n.Name+what, "configure its cloud provider or kubelet to set one (--node-ip), or set its endpoint: kubectl annotate node "+cli.Quote(n.Name)+" wireguard.semaphore.uw.io/endpoint-address=<address>")
					break // It is mostly the same for all remotes.
				}
			}
		}
	}
	if len(s.pods) == 0 && len(f.Unread) == 0 {
		wrong("its pod subnets are unknown", "specify them, as in --pod-subnets "+f.Name+"=10.4.0.0/16")
	} else if len(s.pods) > 0 && len(w.Pods[f.Name]) == 0 && !f.PodsSure {
		warn("pods are in "+shortened(s.pods)+", according to "+f.PodsFrom, "if future nodes may have other subnets, use --pod-subnets "+f.Name+"=<the whole range>")
	}
	if s.server == "" {
		wrong("its API server is at "+strings.TrimPrefix(strings.Join(f.Servers, ", "), ", ")+", which other clusters can't reach", "use --api-server "+f.Name+"=https://...")
	}
	if s.server != "" && !strings.HasPrefix(s.server, "https://") {
		wrong("the address of its API server, "+s.server+", doesn't begin with https://", "use --api-server "+f.Name+"=https://...")
	}
	for _, remote := range remotes {
		if w.Proxies[remote] != "" && f.Installed.Settings[cluster.Name(remote).Variables()+"_KUBECONFIG"] != "" {
			wrong("it reads "+remote+" with a kubeconfig", "set its proxy-url instead of --proxy-url "+remote+"=...")
		}
	}
	if f.CA == "" && len(f.Unread) == 0 {
		wrong("the ConfigMap kube-system/kube-root-ca.crt is missing, so its API server can't be verified", "check that kube-controller-manager runs")
	}
	if f.OtherCA != "" {
		warn("the API server in its kubeconfig has a certificate of another CA than the cluster's own: "+f.OtherCA,
			"other clusters get both CAs, and accept API servers with a certificate of either")
	}
	if misnamed := misnamed(f); misnamed != nil {
		faults = append(faults, *misnamed)
	}
	if level := f.Installed.Restricted; level != "" {
		wrong("its namespace sys-semaphore enforces the Pod Security Standard "+level, "kubectl label namespace sys-semaphore pod-security.kubernetes.io/enforce=privileged --overwrite")
	}
	for _, needs := range f.Masquerade {
		warn("pods' packets are probably masqueraded", needs)
	}
	return faults
}
