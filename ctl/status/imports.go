package status

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
)

// Import is an import of the Multi-Cluster Services API as some clusters agree on it. If
// clusters disagree, there are several of its name.
type Import struct {
	Name  string   `json:"name"` // with its namespace
	Type  string   `json:"type,omitempty"`
	Ports []string `json:"ports,omitempty"`
	// Exports are the clusters that export it, by precedence, with the numbers of their used
	// endpoints.
	Exports []string `json:"exports,omitempty"`
	// Clusters are those that have this import, Without those that lack the namespace, Refusing
	// those that refuse exports by their settings, as in "aws (gcp)".
	Clusters []string `json:"clusters"`
	Without  []string `json:"namespaceMissing,omitempty"`
	Refusing []string `json:"refused,omitempty"`
	// Faults are conflicts, and what keeps exports from being imported.
	Faults []string `json:"faults,omitempty"`
}

// maxImports bounds the imports of a view.
const maxImports = 1000

// imports adds the imports of all clusters.
func (v *View) imports(clusters []*inspect.Cluster) {
	shared := inspect.SharedImports(clusters)
	for i := range shared {
		s := &shared[i]
		for _, of := range s.Views {
			one := Import{Name: s.Name, Type: of.Type, Ports: of.Ports, Clusters: of.Clusters, Without: s.Without, Refusing: s.Refusing, Faults: importFaults(&of.Import)}
			for _, cluster := range of.Exports {
				one.Exports = append(one.Exports, fmt.Sprintf("%s (%d)", cluster, of.Endpoints[cluster]))
			}
			if len(v.Imports) < maxImports {
				v.Imports = append(v.Imports, one)
			}
		}
	}
}

// importFaults describes the conflicts and faults of an import.
func importFaults(i *statuspage.Import) []string {
	var all []string
	for _, conflict := range i.Conflicts {
		all = append(all, "conflict with "+conflict.Cluster+": "+conflict.What)
	}
	for _, cluster := range slices.Sorted(maps.Keys(i.Faults)) {
		all = append(all, "the export of "+cluster+": "+i.Faults[cluster])
	}
	if i.Held != "" {
		all = append(all, i.Held)
	}
	return all
}

func (v *View) importsText(b *strings.Builder) {
	if len(v.Imports) == 0 {
		return
	}
	rows := [][]string{importColumns()}
	for i := range v.Imports {
		rows = append(rows, v.Imports[i].Cells())
	}
	table(b, rows)
}

func importColumns() []string {
	return []string{"IMPORT", "TYPE", "PORTS", "EXPORTED BY", "IMPORTED IN", "NO NAMESPACE IN", "REFUSED IN", "FAULTS"}
}

// Cells returns the import as a row.
func (i *Import) Cells() []string {
	join := func(list []string) string { return strings.Join(list, ", ") }
	faults := ""
	if len(i.Faults) > 0 {
		faults = cli.Some(1, i.Faults...)
	}
	return []string{i.Name, i.Type, join(i.Ports), join(i.Exports), join(i.Clusters), join(i.Without), join(i.Refusing), faults}
}
