package doctor

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/manifests"
	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/survey"
)

func controllerRules() []Rule {
	return []Rule{
		{
			ID:     "mirror-not-running",
			Remedy: "find out why its pods don't run, or scale it up: kubectl -n sys-semaphore scale deployment semaphore-service-mirror --replicas=2",
			Find:   func(f *Facts, found func(Finding)) { notRunning(f, survey.ServiceMirror, found) },
		},
		{
			ID:     "policy-not-running",
			Remedy: "find out why its pods don't run, or scale it up: kubectl -n sys-semaphore scale deployment semaphore-policy --replicas=2",
			Find:   func(f *Facts, found func(Finding)) { notRunning(f, survey.NetworkPolicy, found) },
		},
		{
			ID: "coredns-block-missing", Local: true,
			Remedy: "add the server blocks of deploy/coredns to CoreDNS's ConfigMap, one for each remote, or run semaphorectl join, which adds them",
			Find:   blockMissing,
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
			ID: "service-not-in-order", After: []string{"mirror-not-running", "wrong-ca", "token-refused", "rights-missing", "credentials-missing", "api-away", "api-failing"},
			Remedy: "docs/service-mirror.md explains each error",
			Find:   services,
		},
		{
			ID: "set-not-written", Local: true, After: []string{"policy-not-running"},
			Remedy: "see docs/troubleshooting.md, \"A network set is empty\"",
			Find:   sets,
		},
	}
}

func notRunning(f *Facts, program string, found func(Finding)) {
	for _, c := range f.Clusters {
		w, installed := c.Workload(program)
		if !installed || w.Ready > 0 {
			continue
		}
		evidence := []Evidence{{fmt.Sprintf("%d of %d pods are ready", w.Ready, w.Wanted), c.Workloads.Source}}
		for _, p := range c.Pods.Value {
			if p.Program == program && (p.Waiting != "" || !p.Ready) {
				evidence = append(evidence, Evidence{fmt.Sprintf("%s: %s %s %s", p.Name, p.Phase, p.Waiting, p.Ended), c.Kubectl("-n sys-semaphore logs %s", p.Name)})
				break
			}
		}
		found(Finding{Scope{Cluster: c.Name}, program + " doesn't run in " + c.Name, evidence})
	}
}

// blockMissing looks for the server blocks of all remotes where the mirror is installed.
func blockMissing(f *Facts, found func(Finding)) {
	for _, c := range f.Clusters {
		if _, installed := c.Workload(survey.ServiceMirror); !installed || !c.Corefile.Known() {
			continue
		}
		for _, other := range f.Clusters {
			if other != c && !manifests.Zones(c.Corefile.Value)["cluster."+other.Name] {
				found(Finding{
					Scope{Cluster: c.Name, Remote: other.Name}, fmt.Sprintf("CoreDNS of %s serves no names of %s", c.Name, other.Name),
					[]Evidence{{"no server block for cluster." + other.Name, c.Corefile.Source}},
				})
			}
		}
	}
}

// poolsMissing looks for IP pools of Calico that contain the remotes' pod subnets: in the
// report of semaphore-policy, and in the pools and settings themselves.
func poolsMissing(f *Facts, found func(Finding)) {
	reported := map[Scope]bool{}
	missing := func(c *survey.Cluster, remote string, evidence Evidence) {
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
	pooled := map[*survey.Cluster]map[netip.Prefix]bool{}
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
func pools(c *survey.Cluster) map[netip.Prefix]bool {
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

// nameTaken finds network sets whose name was taken by a foreign one.
func nameTaken(f *Facts, found func(Finding)) {
	for c, p := range f.policies() {
		if !p.Value.Leading {
			continue
		}
		for j := range p.Value.Remotes {
			r := &p.Value.Remotes[j]
			for _, s := range r.Sets {
				natural := r.Name + "-" + s.Namespace + "-" + s.Name
				// Shards of large sets and names that are too long have other names, too, but no Event.
				if strings.HasPrefix(s.Object, natural+"-") && takenEvent(c, natural) != "" {
					found(Finding{
						Scope{Cluster: c.Name, Remote: r.Name}, fmt.Sprintf("the name of the network set %s is taken in %s", natural, c.Name),
						[]Evidence{{takenEvent(c, natural), c.Warnings.Source}, {"the set is " + s.Object, p.Source}},
					})
				}
			}
		}
	}
}

// takenEvent returns the message of the Event NameTaken about a set's name, if there is one.
func takenEvent(c *survey.Cluster, natural string) string {
	for _, e := range c.Warnings.Value {
		if e.Reason == "NameTaken" && strings.Contains(e.Message, natural) {
			return e.Message
		}
	}
	return ""
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
			if s.Instead != "" {
				what = append(what, "its name is taken by "+s.Instead)
			}
			for _, conflict := range s.Conflicts {
				what = append(what, "conflict: "+conflict.Cluster+": "+conflict.What)
			}
			for _, cluster := range slices.Sorted(maps.Keys(s.Refused)) {
				what = append(what, "endpoints of "+cluster+" refused: "+s.Refused[cluster])
			}
			if len(what) > 0 {
				scope := Scope{Cluster: c.Name}
				if origin, _, _ := strings.Cut(s.Origin, "/"); len(s.Clusters) <= 1 && origin != c.Name {
					scope.Remote = origin // No other cluster has this service.
				}
				found(Finding{scope, "service " + s.Name + " has errors", []Evidence{{strings.Join(what, "; "), m.Source}}})
			}
		}
	}
}

func sets(f *Facts, found func(Finding)) {
	for c, p := range f.policies() {
		for j := range p.Value.Remotes {
			r := &p.Value.Remotes[j]
			for _, name := range slices.Sorted(maps.Keys(r.Failing)) {
				found(Finding{Scope{Cluster: c.Name, Remote: r.Name}, "network set " + name + " can't be written", []Evidence{{r.Failing[name], p.Source}}})
			}
		}
	}
}

// restRules report faults that no earlier rule explains, so that none is left out.
func restRules() []Rule {
	var all []string
	for _, rules := range [][]Rule{clusterRules(), apiRules(), nodeRules(), pathRules(), controllerRules(), podRules()} {
		for i := range rules {
			if rules[i].ID != "old-agent" {
				all = append(all, rules[i].ID)
			}
		}
	}
	return []Rule{
		{
			ID:     "agent-failing",
			After:  all,
			Remedy: "docs/troubleshooting.md explains most of these errors",
			Find: func(f *Facts, found func(Finding)) {
				for c, a := range f.agents() {
					scope := Scope{Cluster: c.Name, Node: a.Pod.Node}
					remotes := map[string]bool{}
					for i := range a.Value.Remotes {
						remotes[a.Value.Remotes[i].Name] = true
					}
					for _, what := range slices.Sorted(maps.Keys(a.Value.Failing)) {
						scope := scope
						if remote := lastWord(what); remotes[remote] {
							scope.Remote = remote
						}
						found(Finding{scope, "the agent of " + a.Pod.Node + " fails: " + what, []Evidence{{a.Value.Failing[what], statusOf(a)}}})
					}
					if s := a.Value.Filter; s.State != "" && s.State != "enforced" && s.State != "off" {
						found(Finding{scope, "the source filter isn't enforced on " + a.Pod.Node + ": plaintext packets with remote pods' source addresses aren't dropped", []Evidence{{s.State + " " + s.Error, statusOf(a)}}})
					}
					if a.Value.Networkd {
						found(Finding{scope, "systemd-networkd removes rules and routes on " + a.Pod.Node, []Evidence{{"10-semaphore.conf is missing in /etc/systemd/networkd.conf.d", statusOf(a)}}})
					}
				}
			},
		},
		{
			ID:     "not-ready",
			After:  append([]string{"agent-failing"}, all...),
			Remedy: "find out why these pods aren't ready: kubectl -n sys-semaphore describe pods",
			Find: func(f *Facts, found func(Finding)) {
				for _, c := range f.Clusters {
					for _, w := range c.Workloads.Value {
						if w.Ready < w.Wanted {
							found(Finding{Scope{Cluster: c.Name}, fmt.Sprintf("%s: %d of %d pods of %s are ready", c.Name, w.Ready, w.Wanted, w.Name), []Evidence{{"", c.Workloads.Source}}})
						}
					}
				}
			},
		},
		{
			ID:     "not-installed",
			Remedy: "install it with semaphorectl join",
			Find: func(f *Facts, found func(Finding)) {
				for _, c := range f.Clusters {
					if c.Kubernetes.Known() && c.Workloads.Known() && len(c.Workloads.Value) == 0 {
						found(Finding{Scope{Cluster: c.Name}, "Kube-Semaphore isn't installed in " + c.Name, []Evidence{{"no DaemonSet or Deployment of Kube-Semaphore", c.Workloads.Source}}})
					}
				}
			},
		},
	}
}
