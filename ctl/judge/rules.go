package judge

import (
	"slices"

	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
)

// rules returns the function that finds faults, for each reason.
func rules() map[string]func(f *Facts, found func(Finding)) {
	all := map[string]func(f *Facts, found func(Finding)){
		"cluster-away": clusterAway, "other-cluster": otherCluster, "not-installed": notInstalled, "clocks-apart": clocksApart,
		"node-not-ready": nodeNotReady, "agent-crash-loop": crashing, "admission-refuses": admissionRefuses, "agent-missing": agentMissing,
		"own-api-failing": ownFailing, "token-expiring": tokenExpiring,

		"virtual-subnets-missing": virtualMissing, "virtual-subnets-differ": virtualDiffers, "subnets-overlap": overlapping, "remote-missing": remoteMissing,
		"annotations-gone": annotationsGone, "key-changed": keyChanged,
		"duplicate-key": rejected("duplicate_key"), "pod-subnets-wrong": rejected("pod_cidr"), "node-rejected": rejected(""),
		"port-taken": portTaken, "device-missing": deviceMissing, "foreign-route": foreignRoute, "forwarding-off": notForwarding,
		"not-translated": notTranslated, "foreign-rule": foreignRule, "repairs-undone": undone, "peers-outdated": peersOutdated,

		"udp-one-way": oneWay, "udp-blocked": blocked, "mtu-too-large": tooLarge, "path-down": pathDown, "old-agent": oldAgents,

		"relay-not-running": relayNotRunning, "relay-silent": relaySilent, "relay-objects-not-written": relayObjects, "relay-incomplete": relayIncomplete, "agent-behind": agentBehind,

		"mirror-not-running": notRunning(inspect.ServiceMirror), "policy-not-running": notRunning(inspect.NetworkPolicy),
		"coredns-config-invalid": configInvalid, "coredns-block-missing": blockMissing, "node-local-dns-zone-missing": cachedElsewhere,
		"calico-pools-missing": poolsMissing, "set-name-taken": nameTaken, "service-not-in-order": services, "pods-skipped": podsSkipped, "set-not-written": sets,

		"mirror-missing": mirrorMissing, "origin-without-endpoints": withoutEndpoints, "mirror-outdated": mirrorsBehind,

		"imports-not-served": notServed, "cluster-id-mismatch": importFaults(true), "export-not-imported": importFaults(false), "export-conflict": exportConflict,
		"import-held": importHeld, "imports-differ": importsDiffer, "clusterset-zone-missing": zoneMissing,

		"pods-masqueraded": masqueraded, "pods-mtu": podsMTU, "pods-dropped": dropped, "pods-unreached": podsUnreached,

		"test-pods-refused": testsRefused, "cluster-ip-unanswered": virtualUnanswered, "dns-unanswered": dnsUnanswered, "name-wrong": nameWrong,
		"endpoint-not-listening": notListening, "service-denied": denied,

		"agent-failing": failing, "program-not-ready": notReady(""), "not-ready": notReady(inspect.WireGuard),
		"mirror-not-ready": notReady(inspect.ServiceMirror), "policy-not-ready": notReady(inspect.NetworkPolicy), "relay-not-ready": notReady(inspect.Relay),
	}
	reasons := kube.Reasons()
	for _, reason := range reasons {
		all[reason] = func(f *Facts, found func(Finding)) {
			f.unread(func(scope Scope, why string, evidence Evidence) {
				if why == reason || reason == kube.OtherReason && !slices.Contains(reasons, why) {
					found(Finding{Scope: scope, Evidence: []Evidence{evidence}})
				}
			})
		}
	}
	return all
}
