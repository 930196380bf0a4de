package doctor

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
)

func controllerRules() []Rule {
	return []Rule{
		{
			ID: "mirror-not-running", After: []string{"admission-refuses", "own-api-failing"},
			Remedy: "find out why its pods don't run, or scale its Deployment up",
			Find:   func(f *Facts, found func(Finding)) { notRunning(f, inspect.ServiceMirror, found) },
		},
		{
			ID: "policy-not-running", After: []string{"admission-refuses", "own-api-failing"},
			Remedy: "find out why its pods don't run, or scale its Deployment up",
			Find:   func(f *Facts, found func(Finding)) { notRunning(f, inspect.NetworkPolicy, found) },
		},
		{
			ID: "coredns-config-invalid", Local: true,
			Remedy: "correct the ConfigMap before CoreDNS restarts; of two server blocks for one zone, remove the one outside of join's marks, or join again",
			Find:   configInvalid,
		},
		{
			ID: "coredns-block-missing", Local: true,
			Remedy: "run semaphorectl join, which puts the server blocks of deploy/coredns where this CoreDNS keeps them, or add them by hand, one for each remote",
			After:  []string{"coredns-config-invalid"},
			Find:   blockMissing,
		},
		{
			ID: "node-local-dns-zone-missing", Local: true,
			Remedy: "add the zones to NodeLocal DNSCache's configuration as the evidence says (docs/service-mirror.md, \"NodeLocal DNSCache\")",
			Find:   cachedElsewhere,
		},
		{
			ID: "calico-pools-missing", Local: true,
			Remedy: "create IP pools for the remote's pod subnets with disabled: true and disableBGPExport: true (docs/policy.md, \"IP pools for remote subnets\"): without them Calico masquerades pods' packets to these subnets",
			Find:   poolsMissing,
		},
		{
			ID: "set-name-taken", Local: true,
			Remedy: "rename or delete the foreign network set, or select network sets by labels instead of by name",
			Find:   nameTaken,
		},
		{
			ID: "service-not-in-order", After: append([]string{"mirror-not-running", "admission-refuses", "own-api-failing"}, connecting()...),
			Remedy: "correct what the error names at the Service, in its own cluster",
			Fix:    serviceFix,
			Find:   services,
		},
		{
			ID:     "pods-skipped",
			Remedy: "add the subnet of these pods to SEMAPHORE_REMOTE_<NAME>_POD_SUBNETS if it belongs to that cluster; pods in the host's network need SEMAPHORE_POLICY_INCLUDE_HOST_NETWORK",
			Find: func(f *Facts, found func(Finding)) {
				for c, p := range f.policies() {
					for j := range p.Value.Remotes {
						r := &p.Value.Remotes[j]
						for _, reason := range slices.Sorted(maps.Keys(r.Skipped)) {
							if s := r.Skipped[reason]; reason != "finished" && reason != "no_address" {
								found(Finding{Scope{Cluster: c.Name, Remote: r.Name}, fmt.Sprintf("network sets of %s lack %d labelled pods of %s", c.Name, s.Pods, r.Name), []Evidence{{reason + ": " + strings.Join(s.Examples, ", "), p.Source}}})
							}
						}
					}
				}
			},
		},
		{
			ID: "set-not-written", Local: true, After: []string{"policy-not-running", "admission-refuses", "own-api-failing"},
			Remedy: "Calico's API refuses the network set: correct what the error names, or check that Calico's API server runs",
			Find:   sets,
		},
	}
}

func notRunning(f *Facts, program string, found func(Finding)) {
	for _, c := range f.Clusters {
		w, installed := c.Workload(program)
		if !installed || w.Ready > 0 || f.unreadyWith(c, program) {
			continue
		}
		evidence := []Evidence{{cli.Of(int(w.Ready), int(w.Wanted), "pod") + " ready", c.Workloads.Source}}
		for _, p := range c.Pods.Value {
			if p.Program == program && (p.Waiting != "" || !p.Ready) {
				evidence = append(evidence, Evidence{fmt.Sprintf("%s: %s %s %s", p.Name, p.Phase, p.Waiting, p.Ended), c.Kubectl("-n sys-semaphore logs %s", p.Name)})
				break
			}
		}
		found(Finding{Scope{Cluster: c.Name}, program + " doesn't run in " + c.Name, evidence})
	}
}

// unreadyWith reports whether all pods of a program that aren't ready are on nodes that aren't,
// either.
func (f *Facts) unreadyWith(c *inspect.Cluster, program string) bool {
	var nodes []string
	for _, p := range c.Pods.Value {
		if p.Program == program && !p.Ready {
			nodes = append(nodes, p.Node)
		}
	}
	return f.onUnready(c, nodes)
}

// onUnready reports whether none of these nodes of pods is ready, which node-not-ready reports.
// A pod without a node needs any that is.
func (f *Facts) onUnready(c *inspect.Cluster, nodes []string) bool {
	unready := map[string]bool{}
	for i := range c.Nodes.Value {
		if n := &c.Nodes.Value[i]; n.Ready != "" && n.Ready != "True" {
			unready[n.Name] = true
		}
	}
	unready[""] = len(unready) == len(c.Nodes.Value)
	return len(nodes) > 0 && !slices.ContainsFunc(nodes, func(n string) bool { return !unready[n] }) && f.explained(Scope{Cluster: c.Name}, "node-not-ready")
}

// poolsMissing looks for IP pools of Calico that contain the remotes' pod subnets: in the
// report of semaphore-policy, and in the pools and settings themselves.
func poolsMissing(f *Facts, found func(Finding)) {
	reported := map[Scope]bool{}
	missing := func(c *inspect.Cluster, remote string, evidence Evidence) {
		scope := Scope{Cluster: c.Name, Remote: remote}
		if reported[scope] {
			return
		}
		reported[scope] = true
		found(Finding{scope, fmt.Sprintf("Calico of %s lacks IP pools for %s", c.Name, remote), []Evidence{evidence}})
	}
	for c, p := range f.policies() {
		for _, remote := range slices.Sorted(maps.Keys(p.Value.Pools.Faults)) {
			missing(c, remote, Evidence{strings.Join(p.Value.Pools.Faults[remote], "; "), p.Source})
		}
	}
	pooled := map[*inspect.Cluster]map[netip.Prefix]bool{}
	for _, c := range f.Clusters {
		pooled[c] = pools(c)
	}
	for v := range f.views() {
		if len(v.cluster.Pools.Value) == 0 {
			continue // Calico doesn't allocate the addresses.
		}
		for _, subnet := range v.remote.PodSubnets {
			if !contains(pooled[v.cluster], subnet) {
				missing(v.cluster, v.Remote, Evidence{"no disabled pool without BGP export contains " + subnet, v.cluster.Pools.Source})
				break
			}
		}
	}
}

// pools returns the prefixes of a cluster's disabled pools that aren't exported.
func pools(c *inspect.Cluster) map[netip.Prefix]bool {
	all := map[netip.Prefix]bool{}
	for _, p := range c.Pools.Value {
		if prefix, err := netip.ParsePrefix(p.CIDR); err == nil && p.Disabled && p.NoExport {
			all[prefix.Masked()] = true
		}
	}
	return all
}

// contains reports whether one of the prefixes contains a subnet.
func contains(prefixes map[netip.Prefix]bool, subnet string) bool {
	want, err := netip.ParsePrefix(subnet)
	for bits := want.Bits(); err == nil && bits >= 0; bits-- {
		if prefixes[netip.PrefixFrom(want.Addr(), bits).Masked()] {
			return true
		}
	}
	return false
}

// nameTaken finds network sets whose name another object has.
func nameTaken(f *Facts, found func(Finding)) {
	for c, p := range f.policies() {
		if !p.Value.Leading {
			continue
		}
		for j := range p.Value.Remotes {
			r := &p.Value.Remotes[j]
			for _, s := range r.Sets {
				if s.NameTaken != "" {
					found(Finding{Scope{Cluster: c.Name, Remote: r.Name}, fmt.Sprintf("the network set %s has another name than it would in %s", s.Object, c.Name), []Evidence{{s.NameTaken, p.Source}}})
				}
			}
		}
	}
}

func services(f *Facts, found func(Finding)) {
	for c, m := range f.mirrors() {
		if !m.Value.Leading {
			continue
		}
		for _, s := range m.Value.Services {
			var what []string
			if s.Error != "" {
				what = append(what, s.Error)
			}
			for _, conflict := range s.Conflicts {
				what = append(what, "conflict: "+conflict.Cluster+": "+conflict.What)
			}
			for _, cluster := range slices.Sorted(maps.Keys(s.Refused)) {
				what = append(what, "endpoints of "+cluster+" refused: "+s.Refused[cluster])
			}
			if len(s.Foreign) > 0 {
				what = append(what, "foreign EndpointSlices: "+strings.Join(s.Foreign[:min(len(s.Foreign), maxEvidence)], ", "))
			}
			if s.Held != "" {
				what = append(what, "held: "+s.Held)
			}
			for i := range s.Overridden {
				what = append(what, s.Overridden[i].String())
			}
			if len(what) > 0 {
				scope := Scope{Cluster: c.Name}
				if origin, _, _ := strings.Cut(s.Origin, "/"); len(s.Clusters) <= 1 && origin != c.Name {
					scope.Remote = origin // No other cluster has this service.
				}
				found(Finding{scope, "service " + s.Name + " has errors", []Evidence{{strings.Join(what, "; "), m.Source}}})
			}
		}
		for _, r := range m.Value.Rejected {
			origin, _, _ := strings.Cut(r.Origin, "/")
			found(Finding{Scope{Cluster: c.Name, Remote: origin}, "a service of " + origin + " isn't mirrored", []Evidence{{r.Origin + " isn't mirrored: " + r.Reason, m.Source}}})
		}
		for _, of := range m.Value.Former {
			found(Finding{Scope{Cluster: c.Name, Remote: of.Name}, of.Name + " is no longer configured, and still has services in " + c.Name, []Evidence{{
				fmt.Sprintf("%s is no longer configured: services (%d) and endpoint slices (%d) of it are left", of.Name, of.Services, of.Slices), m.Source,
			}}})
		}
		for _, name := range m.Value.Departed {
			found(Finding{Scope{Cluster: c.Name, Remote: name}, "services of " + name + " are ignored", []Evidence{{name + " is in SEMAPHORE_DEPARTED_REMOTES and in SEMAPHORE_REMOTES", m.Source}}})
		}
		for i := range m.Value.Clusters {
			if of := &m.Value.Clusters[i]; of.Bounds != "" {
				found(Finding{Scope{Cluster: c.Name, Remote: of.Name}, "services of " + of.Name + " exceed the limits for it", []Evidence{{of.Name + " isn't mirrored: " + of.Bounds, m.Source}}})
			}
		}
	}
}

// serviceFix returns the remedy for a service by what is wrong with it.
func serviceFix(finding Finding) string {
	for _, known := range []struct{ part, remedy string }{
		{"its name is taken", "rename the Service that has the name, or use the name with the hash"},
		{"conflict: ", "give the Services of this name the same ports and the same kind in all clusters"},
		{" refused: ", "add the endpoints' subnet to SEMAPHORE_REMOTE_<NAME>_POD_SUBNETS if it belongs to that cluster"},
		{"isn't mirrored: ", "correct what the reason names at the Service in its own cluster, or raise the limit"},
		{"is no longer configured", "add it to SEMAPHORE_REMOTES again if that was a mistake; they are removed after SEMAPHORE_REMOVAL_GRACE, and at once if it is in SEMAPHORE_DEPARTED_REMOTES"},
		{"SEMAPHORE_DEPARTED_REMOTES and", "remove it from SEMAPHORE_DEPARTED_REMOTES if it is to stay, or complete semaphorectl leave"},
		{"foreign EndpointSlices", "delete the EndpointSlices that others made for this Service"},
		{"held: ", "connect the mirror with that cluster again, or remove the cluster with semaphorectl leave"},
	} {
		if len(finding.Evidence) > 0 && strings.Contains(finding.Evidence[0].Text, known.part) {
			return known.remedy
		}
	}
	return ""
}

func sets(f *Facts, found func(Finding)) {
	for c, p := range f.policies() {
		for j := range p.Value.Remotes {
			r := &p.Value.Remotes[j]
			for _, name := range slices.Sorted(maps.Keys(r.Failing)) {
				found(Finding{Scope{Cluster: c.Name, Remote: r.Name}, "network set " + name + " can't be written", []Evidence{{r.Failing[name], p.Source}}})
			}
			for k := range r.Overridden {
				found(Finding{Scope{Cluster: c.Name, Remote: r.Name}, r.Overridden[k].Object + " is changed again after each write", []Evidence{{r.Overridden[k].String(), p.Source}}})
			}
		}
	}
}

// follows are the rules that explain a failure of an agent, by the first word of its name.
var follows = map[string][]string{
	"publish": {"admission-refuses", "own-api-failing", "annotations-gone", "key-changed"},
	"device":  {"device-missing", "port-taken", "subnets-overlap"},
	"routes":  {"device-missing", "port-taken", "subnets-overlap", "foreign-route"},
	"peers":   {"device-missing", "port-taken", "subnets-overlap", "node-rejected", "duplicate-key", "pod-subnets-wrong"},
	// These read the device, or write to it.
	"handshakes": {"device-missing"}, "signs": {"device-missing"}, "paths": {"device-missing"}, "silent": {"device-missing"}, "save": {"device-missing"},
	// Those of semaphore-relay.
	"objects": {"agent-behind", "relay-objects-not-written", "relay-not-running"},
}

// restRules report faults that no earlier rule explains, so that none is left out. A failure
// of an agent is explained only by a fault that has to do with it.
func restRules() []Rule {
	ready := func(id, program string, after ...string) Rule {
		return Rule{ID: id, After: after, Remedy: "find out why these pods aren't ready: kubectl -n sys-semaphore describe pods", Find: func(f *Facts, found func(Finding)) {
			for _, c := range f.Clusters {
				if w, _ := c.Workload(program); w.Ready < w.Wanted && !f.unreadyWith(c, program) {
					found(Finding{Scope{Cluster: c.Name}, fmt.Sprintf("%s: %d of %d pods of %s are ready", c.Name, w.Ready, w.Wanted, w.Name), unready(c, program)})
				}
			}
		}}
	}
	return []Rule{
		{
			ID:     "agent-failing",
			Remedy: "correct what the error names on that node; the agent tries again by itself",
			Find: func(f *Facts, found func(Finding)) {
				failures(f, found)
				for c, a := range f.agents() {
					if a.Value.Standby != nil {
						continue // The filters are those of the agent that is active.
					}
					scope := Scope{Cluster: c.Name, Node: a.Pod.Node}
					// At any moment it may be there or not.
					flushed := slices.ContainsFunc(a.Value.Conditions, func(c statuspage.Condition) bool {
						return c.Object == "packet filter" && c.Reason == statuspage.ReasonUndone
					})
					if s := a.Value.Filter; !flushed && s.State != "" && s.State != "enforced" && s.State != "off" {
						found(Finding{scope, "the source filter isn't enforced on " + a.Pod.Node + ": plaintext packets with remote pods' source addresses aren't dropped", []Evidence{{s.State + " " + s.Error, statusOf(a)}}})
					}
					if s := a.Value.Exit; !flushed && s.State != "" && s.State != "enforced" {
						found(Finding{scope, "the exit filter isn't enforced on " + a.Pod.Node + ": packets to remote pods that another program leads past the tunnel leave in plaintext", []Evidence{{s.State + " " + s.Error, statusOf(a)}}})
					}
					if a.Value.Networkd {
						found(Finding{scope, "systemd-networkd removes rules and routes on " + a.Pod.Node, []Evidence{{"10-semaphore.conf is missing in /etc/systemd/networkd.conf.d", statusOf(a)}}})
					}
				}
			},
		},
		{
			ID: "program-not-ready", After: []string{"admission-refuses"},
			Remedy: "find out why these pods aren't ready: kubectl -n sys-semaphore describe pods. Without semaphore-tokens, tokens expire",
			Find: func(f *Facts, found func(Finding)) {
				for _, c := range f.Clusters {
					for _, w := range c.Workloads.Value {
						if other := !slices.Contains([]string{inspect.WireGuard, inspect.ServiceMirror, inspect.NetworkPolicy, inspect.Relay}, w.Name); other && (w.Ready < w.Wanted || w.Wanted == 0) && !f.unreadyWith(c, w.Name) {
							found(Finding{Scope{Cluster: c.Name}, fmt.Sprintf("%s: %d of %d pods of %s are ready", c.Name, w.Ready, w.Wanted, w.Name), unready(c, w.Name)})
						}
					}
				}
			},
		},
		ready("not-ready", inspect.WireGuard, append([]string{"agent-failing", "admission-refuses", "device-missing", "subnets-overlap", "port-taken", "annotations-gone", "key-changed"}, agentGone...)...),
		ready("mirror-not-ready", inspect.ServiceMirror, "mirror-not-running", "admission-refuses", "own-api-failing"),
		ready("policy-not-ready", inspect.NetworkPolicy, "policy-not-running", "admission-refuses", "own-api-failing"),
		ready("relay-not-ready", inspect.Relay, "relay-not-running", "admission-refuses", "own-api-failing"),
	}
}

// failures are those of agents' loops.
func failures(f *Facts, found func(Finding)) {
	for c, a := range f.agents() {
		scope := Scope{Cluster: c.Name, Node: a.Pod.Node}
		remotes := map[string]bool{}
		for i := range a.Value.Remotes {
			remotes[a.Value.Remotes[i].Name] = true
		}
		for _, fails := range a.Value.Of(statuspage.Failing) {
			scope := scope
			if remote := lastWord(fails.Object); remotes[remote] {
				scope.Remote = remote
			}
			word, _, _ := strings.Cut(fails.Object, " ")
			if f.explained(scope, follows[word]...) || fails.Reason == statuspage.ReasonRefused || fails.Reason == statuspage.ReasonUndone {
				continue
			}
			found(Finding{scope, "the agent of " + a.Pod.Node + " fails: " + fails.Object, []Evidence{{fails.Message, statusOf(a)}}})
		}
	}
}

// unready is evidence about the pods of a program that aren't ready.
func unready(c *inspect.Cluster, program string) []Evidence {
	all := []Evidence{{"", c.Workloads.Source}}
	for _, p := range c.Pods.Value {
		if p.Program == program && !p.Ready && !p.Deleting && len(all) < maxEvidence {
			all = append(all, Evidence{fmt.Sprintf("%s on %s: %s %s %s", p.Name, p.Node, p.Phase, p.Waiting, p.Ended), c.Kubectl("-n sys-semaphore logs %s --previous", p.Name)})
		}
	}
	return all
}
