package judge

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/ctl/coredns"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/probe"
)

// named iterates over the clusters with the service mirror whose CoreDNS is known.
func (f *Facts) named() iter.Seq[*inspect.Cluster] {
	return func(yield func(*inspect.Cluster) bool) {
		for _, c := range f.Clusters {
			if _, installed := c.Workload(inspect.ServiceMirror); installed && c.DNS.Known() && c.DNS.Value != nil && !yield(c) {
				return
			}
		}
	}
}

const noCoreDNS = "kube-system has no CoreDNS, and the configuration of another DNS isn't read"

// withoutDNS returns the clusters with the service mirror and without CoreDNS.
func (f *Facts) withoutDNS() []*inspect.Cluster {
	return slices.DeleteFunc(slices.Clone(f.Clusters), func(c *inspect.Cluster) bool {
		_, installed := c.Workload(inspect.ServiceMirror)
		return !installed || !c.Kubernetes.Known() || !c.DNS.Known() || c.DNS.Value != nil
	})
}

// resolves reports whether a pod of a cluster has resolved the name of a service of another.
func (f *Facts) resolves(c *inspect.Cluster) bool {
	return slices.ContainsFunc(f.requests(), func(a probe.ServiceTest) bool {
		return a.From.Cluster == c.Name && a.Name != "" && a.Skipped == "" && a.Result.Name == "" && len(a.Result.Found) == 0
	})
}

// configInvalid looks for configurations that CoreDNS refuses when it starts or reloads.
func configInvalid(f *Facts, found func(Finding)) {
	for c := range f.named() {
		dns := c.DNS.Value
		var evidence []Evidence
		if dns.Invalid != nil {
			evidence = append(evidence, Evidence{dns.Invalid.Error(), c.DNS.Source})
		}
		if dns.Broken != nil {
			evidence = append(evidence, Evidence{dns.Broken.Error(), c.DNS.Source})
		}
		if twice := dns.Twice(); len(twice) > 0 {
			evidence = append(evidence, Evidence{"two server blocks for " + strings.Join(twice, ", "), c.DNS.Source})
		}
		if len(evidence) > 0 {
			found(Finding{Scope: Scope{Cluster: c.Name}, Evidence: evidence})
		}
	}
}

// blockMissing looks for the server blocks of all remotes where the mirror is installed.
func blockMissing(f *Facts, found func(Finding)) {
	for c := range f.named() {
		dns := c.DNS.Value
		for _, other := range f.Clusters {
			zone := "cluster." + other.Name
			if other == c || dns.Serves(zone) {
				continue
			}
			evidence := []Evidence{{"no server block for " + zone, c.DNS.Source}}
			if dns.Owner.Name != "" {
				evidence = append(evidence, Evidence{fmt.Sprintf("%s sets back %s %s: %s", dns.Owner.Name, dns.Target(), dns.Owner.When, dns.Owner.Instead), ""})
			}
			found(Finding{Scope: Scope{Cluster: c.Name, Remote: other.Name}, Evidence: evidence})
		}
	}
}

// cachedElsewhere looks for caches on nodes that ask others than CoreDNS for names of remotes.
func cachedElsewhere(f *Facts, found func(Finding)) {
	for c := range f.named() {
		cache := c.DNS.Value.NodeLocal
		if cache == nil {
			continue
		}
		zones := []string{"cluster.global"}
		if c.DNS.Value.Serves(coredns.ClusterSet) {
			zones = append(zones, coredns.ClusterSet)
		}
		for _, other := range f.Clusters {
			if other != c {
				zones = append(zones, "cluster."+other.Name)
			}
		}
		if missing := cache.Missing(zones); len(missing) > 0 {
			found(Finding{Scope: Scope{Cluster: c.Name}, Evidence: []Evidence{
				{"no server block or stub domain for " + strings.Join(missing, ", "), c.Kubectl("-n %s get configmap %s -o yaml", cache.Namespace, cache.Map)},
				{"to add them, " + cache.Remedy(missing), ""},
			}})
		}
	}
}
