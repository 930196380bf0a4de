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
			Remedy: "see why its pods don't run, or scale it up: kubectl -n sys-semaphore scale deployment semaphore-service-mirror --replicas=2",
			Find:   func(f *Facts) []Finding { return notRunning(f, survey.ServiceMirror) },
		},
		{
			ID:     "policy-not-running",
			Remedy: "see why its pods don't run, or scale it up: kubectl -n sys-semaphore scale deployment semaphore-policy --replicas=2",
			Find:   func(f *Facts) []Finding { return notRunning(f, survey.NetworkPolicy) },
		},
		{
			ID:     "coredns-block-missing",
			Remedy: "add the server blocks of deploy/coredns to CoreDNS's ConfigMap, one for each remote; semaphorectl join does it",
			Find:   blockMissing,
		},
		{
			ID:     "calico-pools-missing",
			Remedy: "give Calico the remote's pod subnets as IP pools with disabled: true and disableBGPExport: true (docs/policy.md, \"IP pools for remote subnets\"): without them it masquerades what pods send there",
			Find:   poolsMissing,
		},
		{
			ID:     "set-name-taken",
			Remedy: "rename or remove the network set that somebody else has made, or select by labels instead of by name",
			Find:   nameTaken,
		},
		{
			ID: "service-not-in-order", After: []string{"mirror-not-running", "wrong-ca", "token-refused", "rights-missing", "credentials-missing", "api-away", "api-failing"},
			Remedy: "see docs/service-mirror.md for what each of them means",
			Find:   services,
		},
		{
			ID: "set-not-written", After: []string{"policy-not-running"},
			Remedy: "see docs/troubleshooting.md, \"A network set is empty\"",
			Find:   sets,
		},
	}
}

func notRunning(f *Facts, program string) []Finding {
	var found []Finding
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
		found = append(found, Finding{Scope{Cluster: c.Name}, program + " doesn't run in " + c.Name, evidence})
	}
	return found
}

// blockMissing looks for a server block for the names of each remote where the mirror is
// installed.
func blockMissing(f *Facts) []Finding {
	var found []Finding
	for _, c := range f.Clusters {
		if _, installed := c.Workload(survey.ServiceMirror); !installed || !c.Corefile.Known() {
			continue
		}
		for _, other := range f.Clusters {
			if other != c && !manifests.Zones(c.Corefile.Value)["cluster."+other.Name] {
				found = append(found, Finding{
					Scope{Cluster: c.Name, Remote: other.Name}, fmt.Sprintf("CoreDNS of %s serves no names of %s", c.Name, other.Name),
					[]Evidence{{"no server block for cluster." + other.Name, c.Corefile.Source}},
				})
			}
		}
	}
	return found
}

// poolsMissing holds Calico's pools against the remotes' pod subnets: by the word of
// semaphore-policy, and by the pools and settings themselves where it isn't there.
func poolsMissing(f *Facts) []Finding {
	var found []Finding
	for _, c := range f.Clusters {
		told := map[string]bool{}
		for of, p := range f.policies() {
			for _, remote := range slices.Sorted(maps.Keys(p.Value.Pools.Faults)) {
				if of == c && !told[remote] {
					told[remote] = true
					found = append(found, Finding{
						Scope{Cluster: c.Name, Remote: remote}, fmt.Sprintf("Calico of %s lacks IP pools for %s", c.Name, remote),
						[]Evidence{{strings.Join(p.Value.Pools.Faults[remote], "; "), p.Source}},
					})
				}
			}
		}
		if !c.Pools.Known() || len(c.Pools.Value) == 0 {
			continue // Not Calico's addresses.
		}
		for _, v := range f.views() {
			if v.cluster != c || told[v.Remote] {
				continue
			}
			for _, subnet := range v.remote.PodSubnets {
				if !pooled(c.Pools.Value, subnet) {
					told[v.Remote] = true
					found = append(found, Finding{
						Scope{Cluster: c.Name, Remote: v.Remote}, fmt.Sprintf("Calico of %s lacks IP pools for %s", c.Name, v.Remote),
						[]Evidence{{"no disabled pool without BGP export holds " + subnet, c.Pools.Source}},
					})
					break
				}
			}
		}
	}
	return found
}

// pooled tells whether a disabled pool that isn't exported holds a subnet.
func pooled(pools []survey.Pool, subnet string) bool {
	want, err := netip.ParsePrefix(subnet)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(pools, func(p survey.Pool) bool {
		have, err := netip.ParsePrefix(p.CIDR)
		return err == nil && p.Disabled && p.NoExport && have.Bits() <= want.Bits() && have.Overlaps(want)
	})
}

// nameTaken finds network sets that have another name than theirs.
func nameTaken(f *Facts) []Finding {
	var found []Finding
	for c, p := range f.policies() {
		if !p.Value.Leading {
			continue
		}
		for j := range p.Value.Remotes {
			r := &p.Value.Remotes[j]
			for _, s := range r.Sets {
				natural := r.Name + "-" + s.Namespace + "-" + s.Name
				// Large sets have parts, whose names say so; what is too long is no fault.
				if strings.HasPrefix(s.Object, natural+"-") && told(c, natural) != "" {
					found = append(found, Finding{
						Scope{Cluster: c.Name, Remote: r.Name}, fmt.Sprintf("the name of the network set %s is taken in %s", natural, c.Name),
						[]Evidence{{told(c, natural), c.Warnings.Source}, {"the set is " + s.Object, p.Source}},
					})
				}
			}
		}
	}
	return found
}

// told is what an Event says of a set's name.
func told(c *survey.Cluster, natural string) string {
	for _, e := range c.Warnings.Value {
		if e.Reason == "NameTaken" && strings.Contains(e.Message, natural) {
			return e.Message
		}
	}
	return ""
}

func services(f *Facts) []Finding {
	var found []Finding
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
				found = append(found, Finding{Scope{Cluster: c.Name}, "service " + s.Name + " isn't in order", []Evidence{{strings.Join(what, "; "), m.Source}}})
			}
		}
	}
	return found
}

func sets(f *Facts) []Finding {
	var found []Finding
	for c, p := range f.policies() {
		for j := range p.Value.Remotes {
			r := &p.Value.Remotes[j]
			for _, name := range slices.Sorted(maps.Keys(r.Failing)) {
				found = append(found, Finding{Scope{Cluster: c.Name, Remote: r.Name}, "network set " + name + " can't be written", []Evidence{{r.Failing[name], p.Source}}})
			}
		}
	}
	return found
}

// restRules find what no rule before explains, so that nothing is well that isn't.
func restRules() []Rule {
	var all []string
	for _, rules := range [][]Rule{clusterRules(), contactRules(), nodeRules(), pathRules(), controllerRules(), podRules()} {
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
			Remedy: "the error says what; docs/troubleshooting.md has more about most of them",
			Find: func(f *Facts) []Finding {
				var found []Finding
				for c, a := range f.agents() {
					scope := Scope{Cluster: c.Name, Node: a.Pod.Node}
					for _, what := range slices.Sorted(maps.Keys(a.Value.Failing)) {
						found = append(found, Finding{scope, "the agent of " + a.Pod.Node + " fails: " + what, []Evidence{{a.Value.Failing[what], statusOf(c, a.Pod.Node)}}})
					}
					if s := a.Value.Filter; s.State != "" && s.State != "enforced" && s.State != "off" {
						found = append(found, Finding{scope, "plaintext packets that claim remote pods' addresses aren't dropped on " + a.Pod.Node, []Evidence{{s.State + " " + s.Error, statusOf(c, a.Pod.Node)}}})
					}
					if a.Value.Networkd {
						found = append(found, Finding{scope, "systemd-networkd removes rules and routes on " + a.Pod.Node, []Evidence{{"10-semaphore.conf isn't in /etc/systemd/networkd.conf.d", statusOf(c, a.Pod.Node)}}})
					}
				}
				return found
			},
		},
		{
			ID:     "not-ready",
			After:  append([]string{"agent-failing"}, all...),
			Remedy: "see why these pods aren't ready: kubectl -n sys-semaphore describe pods",
			Find: func(f *Facts) []Finding {
				var found []Finding
				for _, c := range f.Clusters {
					for _, w := range c.Workloads.Value {
						if w.Ready < w.Wanted {
							found = append(found, Finding{Scope{Cluster: c.Name}, fmt.Sprintf("%s: %d of %d pods of %s are ready", c.Name, w.Ready, w.Wanted, w.Name), []Evidence{{"", c.Workloads.Source}}})
						}
					}
				}
				return found
			},
		},
		{
			ID:     "not-installed",
			Remedy: "semaphorectl join installs it",
			Find: func(f *Facts) []Finding {
				var found []Finding
				for _, c := range f.Clusters {
					if c.Kubernetes.Known() && c.Workloads.Known() && len(c.Workloads.Value) == 0 {
						found = append(found, Finding{Scope{Cluster: c.Name}, "nothing of Kube-Semaphore is installed in " + c.Name, []Evidence{{"no DaemonSet or Deployment of ours", c.Workloads.Source}}})
					}
				}
				return found
			},
		},
	}
}
