package status

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/inspecttest"
)

// importing lets the mirror of a cluster report about imports.
func importing(c *inspect.Cluster, imports ...statuspage.Import) {
	c.Mirrors = []inspect.Reported[statuspage.Mirror]{{Fact: inspect.Fact[*statuspage.Mirror]{Value: &statuspage.Mirror{
		Leading: true, MultiCluster: &statuspage.MultiCluster{Imports: imports},
	}}}}
}

// TestImports shows the imports of all clusters in one table, and which clusters disagree.
func TestImports(t *testing.T) {
	web := statuspage.Import{Name: "shop/web", Type: "ClusterSetIP", IPs: []string{"10.102.0.1"}, Ports: []string{"http 80/TCP"}, Exports: []string{"gcp", "aws"}, Endpoints: map[string]int{"gcp": 2}}
	inGCP := web
	inGCP.IPs = []string{"10.104.0.1"} // Each cluster has its own addresses.
	missing := statuspage.Import{Name: "shop/web", Missing: true}
	headless := web
	headless.Type = "Headless"
	conflict := web
	conflict.Conflicts = append(conflict.Conflicts, statuspage.Conflict{Cluster: "aws", What: "port http is 8080"})
	own := web
	own.Exports, own.Endpoints, own.Refused = []string{"aws"}, nil, []string{"gcp"}
	refused := statuspage.Import{Name: "shop/web", Refused: []string{"gcp"}}
	faulty := statuspage.Import{Name: "shop/db", Faults: map[string]string{"aws": "no Service"}}
	for name, c := range map[string]struct {
		aws, gcp []statuspage.Import
		rows     []string
		wrong    []string
	}{
		"nothing is exported": {},
		"clusters agree": {[]statuspage.Import{web}, []statuspage.Import{inGCP},
			[]string{"shop/web ClusterSetIP http 80/TCP gcp (2), aws (0) aws, gcp - - -"}, nil},
		"a cluster lacks the namespace": {[]statuspage.Import{web}, []statuspage.Import{missing},
			[]string{"shop/web ClusterSetIP http 80/TCP gcp (2), aws (0) aws gcp - -"}, nil},
		"a cluster refuses the exports of another one": {[]statuspage.Import{own}, []statuspage.Import{inGCP},
			[]string{"shop/web ClusterSetIP http 80/TCP aws (0) aws - aws (gcp) -", "shop/web ClusterSetIP http 80/TCP gcp (2), aws (0) gcp - aws (gcp) -"}, nil},
		"a cluster refuses all exports": {[]statuspage.Import{refused}, []statuspage.Import{inGCP},
			[]string{"shop/web ClusterSetIP http 80/TCP gcp (2), aws (0) gcp - aws (gcp) -"}, nil},
		"clusters disagree": {[]statuspage.Import{web}, []statuspage.Import{headless},
			[]string{"shop/web ClusterSetIP http 80/TCP gcp (2), aws (0) aws - - -", "shop/web Headless http 80/TCP gcp (2), aws (0) gcp - - -"},
			[]string{"imports-differ: clusters disagree about the import shop/web: aws: ClusterSetIP, ports http 80/TCP, exported by gcp, aws; gcp: Headless, ports http 80/TCP, exported by gcp, aws"}},
		"a conflict": {[]statuspage.Import{conflict}, []statuspage.Import{conflict},
			[]string{"shop/web ClusterSetIP http 80/TCP gcp (2), aws (0) aws, gcp - - conflict with aws: port http is 8080"},
			[]string{"export-conflict: the exports of shop/web differ: aws: port http is 8080", "export-conflict: the exports of shop/web differ: aws: port http is 8080"}},
		"an export without a Service": {[]statuspage.Import{faulty}, nil,
			[]string{"shop/db - - - aws - - the export of aws: no Service"}, []string{"export-not-imported: exports of aws aren't imported into aws: shop/db: no Service"}},
	} {
		clusters := inspecttest.Pair(2)
		importing(clusters[0], c.aws...)
		importing(clusters[1], c.gcp...)
		v := view(t, clusters)
		wrong := slices.DeleteFunc(slices.Clone(v.Wrong), func(line string) bool { return !strings.Contains(line, "import") && !strings.Contains(line, "export") })
		if diff := cmp.Diff(c.wrong, wrong); len(c.wrong)+len(wrong) > 0 && diff != "" {
			t.Errorf("%s: wrong (-want +got):\n%s", name, diff)
		}
		var text, page strings.Builder
		if err := v.Text(&text, false); err != nil {
			t.Fatal(err)
		}
		if err := v.HTML(&page); err != nil {
			t.Fatal(err)
		}
		var rows []string
		for line := range strings.Lines(text.String()) {
			if strings.HasPrefix(line, "shop/") {
				rows = append(rows, strings.Join(strings.Fields(line), " "))
			}
		}
		if diff := cmp.Diff(c.rows, rows); diff != "" {
			t.Errorf("%s: rows (-want +got):\n%s", name, diff)
		}
		if is := len(c.rows) > 0; strings.Contains(text.String(), "IMPORT ") != is || strings.Contains(page.String(), `id="imports"`) != is || len(v.Imports) != len(c.rows) {
			t.Errorf("%s: a table, or none", name)
		}
	}
}
