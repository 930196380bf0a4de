package judge

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/ctl/coredns"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
)

// Faults of the Multi-Cluster Services API are silent where nothing is exported.

func notServed(f *Facts, found func(Finding)) {
	f.eachImporting(func(c *inspect.Cluster, report *statuspage.MultiCluster, source string) {
		if why := cmp.Or(report.Error, report.Off); why != "" {
			found(Finding{Scope: Scope{Cluster: c.Name}, Evidence: says(why, source)})
		}
	})
}

func exportConflict(f *Facts, found func(Finding)) {
	f.eachImport(func(c *inspect.Cluster, i *statuspage.Import, source string) {
		for _, conflict := range i.Conflicts {
			found(Finding{Scope: Scope{Cluster: c.Name, Remote: remoteOf(c, conflict.Cluster)}, Evidence: says(conflict.Cluster+": "+conflict.What, source), With: []string{"{import}", i.Name}})
		}
	})
}

func importHeld(f *Facts, found func(Finding)) {
	f.eachImport(func(c *inspect.Cluster, i *statuspage.Import, source string) {
		if i.Held != "" {
			found(Finding{Scope: Scope{Cluster: c.Name}, Evidence: says(i.Held, source), With: []string{"{import}", i.Name}})
		}
	})
}

func importsDiffer(f *Facts, found func(Finding)) {
	shared := inspect.SharedImports(f.Clusters)
	for i := range shared {
		if what := shared[i].Disagree(); what != "" {
			views := shared[i].Compared()
			found(Finding{Scope: Scope{Cluster: views[0].Clusters[0], Remote: views[1].Clusters[0]}, Evidence: says(what, ""), With: []string{"{import}", shared[i].Name}})
		}
	}
}

func zoneMissing(f *Facts, found func(Finding)) {
	for c := range f.named() {
		report, _ := c.ImportReport()
		if dns := c.DNS.Value; report != nil && len(report.Imports) > 0 && !dns.Serves(coredns.ClusterSet) {
			evidence := says("no server block for "+coredns.ClusterSet, c.DNS.Source)
			if what, remedy := dns.ClusterSetFault(); what != "" {
				evidence = append(evidence, Evidence{what + ": " + remedy, ""})
			}
			found(Finding{Scope: Scope{Cluster: c.Name}, Evidence: evidence})
		}
	}
}

// callsItself is part of the mirror's reason for refusing a cluster's exports.
const callsItself = "the cluster calls itself"

// eachImporting iterates over the clusters whose mirror reports about imports, if any cluster
// exports something.
func (f *Facts) eachImporting(do func(c *inspect.Cluster, report *statuspage.MultiCluster, source string)) {
	if len(inspect.SharedImports(f.Clusters)) == 0 {
		return
	}
	for _, c := range f.Clusters {
		if report, source := c.ImportReport(); report != nil && !f.done() {
			do(c, report, source)
		}
	}
}

func (f *Facts) eachImport(do func(c *inspect.Cluster, i *statuspage.Import, source string)) {
	f.eachImporting(func(c *inspect.Cluster, report *statuspage.MultiCluster, source string) {
		for i := range report.Imports {
			do(c, &report.Imports[i], source)
		}
	})
}

// importFaults finds exports that aren't imported: those of clusters that call themselves otherwise,
// or others.
func importFaults(otherwise bool) func(f *Facts, found func(Finding)) {
	return func(f *Facts, found func(Finding)) {
		f.eachImport(func(c *inspect.Cluster, i *statuspage.Import, source string) {
			for _, of := range slices.Sorted(maps.Keys(i.Faults)) {
				if why := i.Faults[of]; strings.Contains(why, callsItself) == otherwise {
					found(Finding{Scope: Scope{Cluster: c.Name, Remote: remoteOf(c, of)}, Evidence: says(i.Name+": "+why, source), With: []string{"{of}", of}})
				}
			}
		})
	}
}

// remoteOf is the remote of a scope for a fault of a cluster.
func remoteOf(c *inspect.Cluster, of string) string {
	if of == c.Name {
		return ""
	}
	return of
}
