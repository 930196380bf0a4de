// Package observability_test tests the alert rules with promtool, and checks that the
// metrics and labels in rules and dashboard exist.
package observability_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/docstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/tools"
)

// query is an expression with the place that it is from.
type query struct{ where, expr string }

type rule struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

func readRules(t *testing.T) []rule {
	t.Helper()
	var file struct {
		Groups []struct {
			Name  string `json:"name"`
			Rules []rule `json:"rules"`
		} `json:"groups"`
	}
	if err := yaml.UnmarshalStrict([]byte(read(t, "rules.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	var rules []rule
	for _, g := range file.Groups {
		rules = append(rules, g.Rules...)
	}
	if len(rules) == 0 {
		t.Fatal("no rules")
	}
	return rules
}

type panel struct {
	ID      int    `json:"id"`
	Type    string `json:"type"`
	Title   string `json:"title"`
	GridPos struct{ H, W, X, Y int }
	Targets []struct {
		RefID  string `json:"refId"`
		Expr   string `json:"expr"`
		Legend string `json:"legendFormat"`
	} `json:"targets"`
}

func readPanels(t *testing.T) []panel {
	t.Helper()
	var dashboard struct {
		UID           string  `json:"uid"`
		Title         string  `json:"title"`
		SchemaVersion int     `json:"schemaVersion"`
		Panels        []panel `json:"panels"`
	}
	if err := json.Unmarshal([]byte(read(t, "dashboard.json")), &dashboard); err != nil {
		t.Fatal(err)
	}
	if dashboard.UID == "" || dashboard.Title == "" || dashboard.SchemaVersion == 0 || len(dashboard.Panels) == 0 {
		t.Fatal("the dashboard lacks a uid, a title, a schema version or panels")
	}
	return dashboard.Panels
}

// queries returns all expressions of the rules and of the dashboard, these with
// the dashboard's variables filled in.
func queries(t *testing.T) []query {
	t.Helper()
	var all []query
	for _, r := range readRules(t) {
		all = append(all, query{"alert " + r.Alert, r.Expr})
	}
	fill := strings.NewReplacer("$__rate_interval", "5m", "$cluster", "gcp")
	for _, p := range readPanels(t) {
		for _, target := range p.Targets {
			all = append(all, query{fmt.Sprintf("panel %q %s", p.Title, target.RefID), fill.Replace(target.Expr)})
		}
	}
	return all
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// promtool runs Prometheus' tool in this folder.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	if testing.Short() {
		t.Skip("promtool is built from source, which takes minutes the first time")
	}
	binaries, err := tools.Build(t.Context(), t.Output(), tools.Promtool)
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), binaries[tools.Promtool], args...).CombinedOutput()
	if err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func TestRules(t *testing.T) {
	promtool(t, "check", "rules", "--lint=all", "--lint-fatal", "rules.yaml")
	promtool(t, "test", "rules", "rules_test.yaml")
}

// TestEveryAlertIsTested checks that each alert fires in rules_test.yaml.
func TestEveryAlertIsTested(t *testing.T) {
	tests := read(t, "rules_test.yaml")
	for _, r := range readRules(t) {
		if !strings.Contains(tests, `alertname="`+r.Alert+`"`) {
			t.Errorf("no test of %s", r.Alert)
		}
		if !slices.Contains([]string{"critical", "warning", "info"}, r.Labels["severity"]) || r.Annotations["summary"] == "" {
			t.Errorf("%s lacks a severity or a summary", r.Alert)
		}
	}
}

// TestAdviceExists checks references to docs/troubleshooting.md.
func TestAdviceExists(t *testing.T) {
	guide := read(t, filepath.Join("..", "..", "docs", "troubleshooting.md"))
	chapter := regexp.MustCompile(`docs/troubleshooting\.md, "([^"]+)"`)
	found := 0
	for _, r := range readRules(t) {
		for _, text := range r.Annotations {
			for _, m := range chapter.FindAllStringSubmatch(text, -1) {
				found++
				if !strings.Contains(guide, "\n## "+m[1]+"\n") {
					t.Errorf("%s: docs/troubleshooting.md has no chapter %q", r.Alert, m[1])
				}
			}
		}
	}
	if found == 0 {
		t.Error("no rule refers to docs/troubleshooting.md")
	}
}

// TestQueriesAreValid lets promtool parse the dashboard's queries, as rules.
func TestQueriesAreValid(t *testing.T) {
	type record struct {
		Record string `json:"record"`
		Expr   string `json:"expr"`
	}
	var records []record
	for i, q := range queries(t) {
		records = append(records, record{fmt.Sprintf("query:%d", i), q.expr})
	}
	text, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "queries", "rules": records}}})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "queries.yaml")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "check", "rules", path)
}

// Of an expression, what matters here: names of ours, with the selector if one
// follows, and what aggregations and joins name.
var (
	selector = regexp.MustCompile(`\b((?:kube_policy_)?semaphore_[a-z_]+)(?:\{([^}]*)\})?`)
	matcher  = regexp.MustCompile(`([a-z_]+) *(?:=~|!~|!=|=)`)
	grouping = regexp.MustCompile(`\b(?:by|on|group_left) \(([^)]*)\)`)
)

// attached are the labels that every series has from its scrape, and that of
// the buckets of histograms.
var attached = []string{"job", "instance", "le"}

// TestQueriesAskForWhatExists compares metrics and labels with the documented ones, which
// the programs' tests compare with real registries.
func TestQueriesAskForWhatExists(t *testing.T) {
	metrics, err := docstest.Metrics()
	if err != nil {
		t.Fatal(err)
	}
	known := map[string][]string{}
	for _, m := range metrics {
		if m.Type == "histogram" {
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				known[m.Name+suffix] = m.Labels
			}
			continue
		}
		known[m.Name] = m.Labels
	}
	for _, q := range queries(t) {
		possible := slices.Clone(attached)
		found := selector.FindAllStringSubmatch(q.expr, -1)
		if len(found) == 0 {
			t.Errorf("%s asks for none of our metrics: %s", q.where, q.expr)
		}
		for _, m := range found {
			labels, exists := known[m[1]]
			if !exists {
				t.Errorf("%s asks for %s, which no program has", q.where, m[1])
			}
			possible = append(possible, labels...)
			for _, l := range matcher.FindAllStringSubmatch(m[2], -1) {
				if !slices.Contains(labels, l[1]) {
					t.Errorf("%s asks for the label %s of %s, which has %v", q.where, l[1], m[1], labels)
				}
			}
		}
		for _, g := range grouping.FindAllStringSubmatch(q.expr, -1) {
			for label := range strings.SplitSeq(g[1], ",") {
				if label = strings.TrimSpace(label); !slices.Contains(possible, label) {
					t.Errorf("%s groups by %s, which is a label of none of its metrics", q.where, label)
				}
			}
		}
	}
}

func TestDashboard(t *testing.T) {
	panels := readPanels(t)
	legend := regexp.MustCompile(`\{\{([a-z_]+)\}\}`)
	rows, ids := 0, map[int]string{}
	for i, p := range panels {
		if other, twice := ids[p.ID]; twice {
			t.Errorf("%q and %q have one id", p.Title, other)
		}
		ids[p.ID] = p.Title
		if p.Type == "row" {
			rows++
			continue
		}
		if p.Title == "" || len(p.Targets) == 0 {
			t.Errorf("panel %d lacks a title or queries", p.ID)
		}
		for _, target := range p.Targets {
			for _, m := range legend.FindAllStringSubmatch(target.Legend, -1) {
				if !regexp.MustCompile(`by \([^)]*\b` + m[1] + `\b`).MatchString(target.Expr) {
					t.Errorf("the legend of %q names %s, which its query drops", p.Title, m[1])
				}
			}
		}
		if p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("%q is wider than the page", p.Title)
		}
		for _, o := range panels[:i] {
			apart := p.GridPos.X >= o.GridPos.X+o.GridPos.W || o.GridPos.X >= p.GridPos.X+p.GridPos.W ||
				p.GridPos.Y >= o.GridPos.Y+o.GridPos.H || o.GridPos.Y >= p.GridPos.Y+p.GridPos.H
			if !apart {
				t.Errorf("%q lies over %q", p.Title, o.Title)
			}
		}
	}
	if rows != 4 {
		t.Errorf("%d rows, want one for each program", rows)
	}
}
