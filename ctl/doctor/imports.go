package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/ctl/coredns"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
)

// importRules are about the Multi-Cluster Services API. They are silent where nothing is
// exported.
func importRules() []Rule {
	return []Rule{
		{
			ID: "imports-not-served", Local: true, After: []string{"own-api-failing"},
			Remedy: "run semaphorectl join, which installs the CRDs and the rights, or see docs/multi-cluster-services.md; to do without the API in this cluster, semaphorectl join --mcs=false",
			Find: func(f *Facts, found func(Finding)) {
				f.eachImporting(func(c *inspect.Cluster, report *statuspage.MultiCluster, source string) {
					if why := cmp.Or(report.Error, report.Off); why != "" {
						found(Finding{Scope{Cluster: c.Name}, "nothing is imported into " + c.Name, []Evidence{{why, source}}})
					}
				})
			},
		},
		{
			ID:     "cluster-id-mismatch",
			Remedy: "all clusters must call each other by the same names: configure the remote by the name that it calls itself, its SEMAPHORE_CLUSTER_NAME",
			Find: func(f *Facts, found func(Finding)) {
				f.importFaults(found, "the exports of %s aren't imported into %s: it calls itself otherwise", func(why string) bool { return strings.Contains(why, callsItself) })
			},
		},
		{
			ID:     "export-not-imported",
			Remedy: "correct what the reason names at the Service or the ServiceExport in its own cluster: its condition Valid says the same",
			Find: func(f *Facts, found func(Finding)) {
				f.importFaults(found, "exports of %s aren't imported into %s", func(why string) bool { return !strings.Contains(why, callsItself) })
			},
		},
		{
			ID:     "export-conflict",
			Remedy: "give the Services of this name the same ports, type and affinity in all clusters that export it; until then each of them has an import of its own, and the others have that of the first export",
			Find: func(f *Facts, found func(Finding)) {
				f.eachImport(func(c *inspect.Cluster, i *statuspage.Import, source string) {
					for _, conflict := range i.Conflicts {
						found(Finding{Scope{Cluster: c.Name, Remote: remoteOf(c, conflict.Cluster)}, "the exports of " + i.Name + " differ", []Evidence{{conflict.Cluster + ": " + conflict.What, source}}})
					}
				})
			},
		},
		{
			ID: "import-held", After: connecting(),
			Remedy: "connect the mirror with that cluster again, or remove the cluster with semaphorectl leave",
			Find: func(f *Facts, found func(Finding)) {
				f.eachImport(func(c *inspect.Cluster, i *statuspage.Import, source string) {
					if i.Held != "" {
						found(Finding{Scope{Cluster: c.Name}, "the import " + i.Name + " of " + c.Name + " waits", []Evidence{{i.Held, source}}})
					}
				})
			},
		},
		{
			ID: "imports-differ", After: append([]string{"mirror-not-running", "import-held", "imports-not-served", "export-conflict"}, connecting()...),
			Remedy: "delete the ServiceImport in each of these clusters, so that it is computed again by the age of the exports",
			Find: func(f *Facts, found func(Finding)) {
				shared := inspect.SharedImports(f.Clusters)
				for i := range shared {
					if what := shared[i].Disagree(); what != "" {
						views := shared[i].Compared()
						found(Finding{Scope{Cluster: views[0].Clusters[0], Remote: views[1].Clusters[0]}, "clusters disagree about the import " + shared[i].Name, []Evidence{{what, ""}}})
					}
				}
			},
		},
		{
			ID: "clusterset-zone-missing", Local: true, After: []string{"coredns-config-invalid"},
			Remedy: `run semaphorectl join, which adds the zone where CoreDNS is 1.12.2 or later, or see "CoreDNS by hand" in docs/multi-cluster-services.md`,
			Find: func(f *Facts, found func(Finding)) {
				for c := range f.named() {
					report, _ := c.ImportReport()
					if dns := c.DNS.Value; report != nil && len(report.Imports) > 0 && !dns.Serves(coredns.ClusterSet) {
						evidence := []Evidence{{"no server block for " + coredns.ClusterSet, c.DNS.Source}}
						if what, remedy := dns.ClusterSetFault(); what != "" {
							evidence = append(evidence, Evidence{what + ": " + remedy, ""})
						}
						found(Finding{Scope{Cluster: c.Name}, "CoreDNS of " + c.Name + " serves no names of imports", evidence})
					}
				}
			},
		},
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

// importFaults finds exports that aren't imported, for some reasons.
func (f *Facts) importFaults(found func(Finding), what string, is func(why string) bool) {
	f.eachImport(func(c *inspect.Cluster, i *statuspage.Import, source string) {
		for _, of := range slices.Sorted(maps.Keys(i.Faults)) {
			if why := i.Faults[of]; is(why) {
				found(Finding{Scope{Cluster: c.Name, Remote: remoteOf(c, of)}, fmt.Sprintf(what, of, c.Name), []Evidence{{i.Name + ": " + why, source}}})
			}
		}
	})
}

// remoteOf is the remote of a scope for a fault of a cluster.
func remoteOf(c *inspect.Cluster, of string) string {
	if of == c.Name {
		return ""
	}
	return of
}
