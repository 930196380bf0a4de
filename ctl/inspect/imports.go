package inspect

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
)

// ImportReport returns the report of a cluster's leading service mirror about imports, and the
// command that shows it; nil: there is none.
func (c *Cluster) ImportReport() (report *statuspage.MultiCluster, source string) {
	for i := range c.Mirrors {
		if m := &c.Mirrors[i]; m.Known() && m.Value.Leading {
			return m.Value.MultiCluster, m.Source
		}
	}
	return nil, ""
}

// same is what clusters must agree on. The order of ports is that of each cluster's own export.
func same(i *statuspage.Import) string {
	ports := slices.Sorted(slices.Values(i.Ports))
	return fmt.Sprintf("%s, ports %s, exported by %s", cmp.Or(i.Type, "no import"), cmp.Or(strings.Join(ports, " and "), "none"), cmp.Or(strings.Join(i.Exports, ", "), "none"))
}

// SharedImport is an import in all clusters that have its namespace.
type SharedImport struct {
	Name string
	// Views are the different imports of that name; clusters that agree have one.
	Views []ImportView
	// Without are the clusters without the namespace.
	Without []string
	// Refusing are the clusters that refuse exports by their settings, each with those whose it
	// refuses, as in "aws (gcp)".
	Refusing []string
}

// ImportView is an import as some clusters agree on it.
type ImportView struct {
	statuspage.Import
	Clusters []string
}

// Compared are the views of clusters that import from all others. What a cluster refuses by its
// settings makes no difference that is a fault.
func (s *SharedImport) Compared() []ImportView {
	return slices.DeleteFunc(slices.Clone(s.Views), func(v ImportView) bool { return len(v.Refused) > 0 })
}

// Disagree describes what clusters have otherwise; empty: they agree.
func (s *SharedImport) Disagree() string {
	views := s.Compared()
	if len(views) < 2 {
		return ""
	}
	var all []string
	for i := range views {
		all = append(all, strings.Join(views[i].Clusters, ", ")+": "+same(&views[i].Import))
	}
	return strings.Join(all, "; ")
}

// SharedImports returns the imports of clusters by name. Clusters without the namespace, and
// those whose mirror doesn't report, have no view of them.
func SharedImports(clusters []*Cluster) []SharedImport {
	all := map[string]*SharedImport{}
	for _, c := range clusters {
		report, _ := c.ImportReport()
		if report == nil {
			continue
		}
		for _, i := range report.Imports {
			s := all[i.Name]
			if s == nil {
				s = &SharedImport{Name: i.Name}
				all[i.Name] = s
			}
			if i.Missing {
				s.Without = append(s.Without, c.Name)
				continue
			}
			if len(i.Refused) > 0 {
				s.Refusing = append(s.Refusing, fmt.Sprintf("%s (%s)", c.Name, strings.Join(i.Refused, ", ")))
				if i.Type == "" && i.InOrder() {
					continue // no other cluster exports it
				}
			}
			at := slices.IndexFunc(s.Views, func(v ImportView) bool { return same(&v.Import) == same(&i) && slices.Equal(v.Refused, i.Refused) })
			if at < 0 {
				s.Views = append(s.Views, ImportView{Import: i})
				at = len(s.Views) - 1
			}
			s.Views[at].Clusters = append(s.Views[at].Clusters, c.Name)
		}
	}
	var sorted []SharedImport
	for _, name := range slices.Sorted(maps.Keys(all)) {
		sorted = append(sorted, *all[name])
	}
	return sorted
}

// ClusterSetServices returns the imports of a cluster with endpoints and a port of TCP, as
// services that pods can ask.
func (c *Cluster) ClusterSetServices() []KubeService {
	report, _ := c.ImportReport()
	if report == nil {
		return nil
	}
	var all []KubeService
	for _, i := range report.Imports {
		namespace, name, _ := strings.Cut(i.Name, "/")
		// Names become words of commands and of DNS.
		if len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Label(name)) > 0 || namespace == cli.Namespace {
			continue
		}
		s := KubeService{Namespace: namespace, Name: name, ClusterSet: true, Headless: i.Type == "Headless", ClusterIPs: addresses(i.IPs)}
		for _, n := range i.Endpoints {
			s.Ready += n
		}
		for _, text := range i.Ports {
			port, number, named := strings.Cut(text, " ")
			if !named {
				port, number = "", text
			}
			digits, is := strings.CutSuffix(number, "/TCP")
			n, err := strconv.ParseUint(digits, 10, 16)
			if http := port == "http" || strings.HasPrefix(port, "http-"); is && err == nil && (s.Port == 0 || http && !s.HTTP) {
				s.Port, s.HTTP = int32(n), http
			}
		}
		if len(s.ClusterIPs) > 0 && s.Ready > 0 && s.Port > 0 {
			all = append(all, s)
		}
	}
	return all
}
