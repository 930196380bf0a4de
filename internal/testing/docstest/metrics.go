package docstest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

// Metric is a documented or registered metric.
type Metric struct {
	Name string
	// Type is counter, gauge or histogram; empty for a registered metric without values.
	Type string
	// Labels are sorted.
	Labels []string
}

// row is a row of the table: name, type, labels, meaning.
var row = regexp.MustCompile("(?m)^\\| `([a-z0-9_]+)` \\| ([a-z]+) \\| ([a-z_, ]*?) *\\| [^|]+ \\|$")

// Metrics returns the metrics of docs/metrics.md whose names start with one of
// the prefixes, all of them if there are none, sorted by name.
func Metrics(prefixes ...string) ([]Metric, error) {
	root, err := Root()
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(root, "docs", "metrics.md"))
	if err != nil {
		return nil, fmt.Errorf("read the documented metrics: %w", err)
	}
	var found []Metric
	for _, m := range row.FindAllStringSubmatch(string(text), -1) {
		wanted := len(prefixes) == 0 || slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(m[1], p) })
		if !wanted {
			continue
		}
		found = append(found, Metric{Name: m[1], Type: m[2], Labels: labels(m[3])})
	}
	return sorted(found), nil
}

// described matches the String method of a descriptor, the only way to read one.
var described = regexp.MustCompile(`^Desc\{fqName: "([^"]+)", .*constLabels: \{(.*?)\}, variableLabels: \{(.*?)\}\}$`)

// CheckMetrics fails the test unless the registry has just the metrics that are
// documented with one of the prefixes, with these labels and types.
func CheckMetrics(t testing.TB, registry *prometheus.Registry, prefixes ...string) {
	t.Helper()
	want, err := Metrics(prefixes...)
	if err != nil {
		t.Fatal(err)
	}
	got, err := registered(registry)
	if err != nil {
		t.Fatal(err)
	}
	types := map[string]string{}
	for _, m := range want {
		types[m.Name] = m.Type
	}
	for i := range got {
		if got[i].Type == "" {
			got[i].Type = types[got[i].Name]
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("metrics (-docs/metrics.md +registered):\n%s", diff)
	}
}

// registered returns the metrics of a registry, also those without values, sorted by
// name.
func registered(registry *prometheus.Registry) ([]Metric, error) {
	types, err := typesOf(registry)
	if err != nil {
		return nil, err
	}
	descriptors := make(chan *prometheus.Desc)
	go func() {
		registry.Describe(descriptors)
		close(descriptors)
	}()
	var found []Metric
	for d := range descriptors {
		m := described.FindStringSubmatch(d.String())
		if m == nil {
			err = fmt.Errorf("descriptor is written in another way than expected: %s", d)
			continue
		}
		// Those of every Go program.
		if strings.HasPrefix(m[1], "go_") || strings.HasPrefix(m[1], "process_") {
			continue
		}
		var names []string
		for _, constant := range labels(m[2]) {
			name, _, _ := strings.Cut(constant, "=")
			names = append(names, name)
		}
		names = append(names, labels(m[3])...)
		slices.Sort(names)
		found = append(found, Metric{Name: m[1], Type: types[m[1]], Labels: names})
	}
	return sorted(found), err
}

// typesOf returns the types of the metrics that have values.
func typesOf(registry *prometheus.Registry) (map[string]string, error) {
	families, err := registry.Gather()
	if err != nil {
		return nil, fmt.Errorf("gather metrics: %w", err)
	}
	types := map[string]string{}
	for _, f := range families {
		types[f.GetName()] = strings.ToLower(f.GetType().String())
	}
	return types, nil
}

// labels splits a list of labels.
func labels(list string) []string {
	var names []string
	for name := range strings.SplitSeq(list, ",") {
		if name = strings.TrimSpace(name); name != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func sorted(metrics []Metric) []Metric {
	slices.SortFunc(metrics, func(a, b Metric) int { return strings.Compare(a.Name, b.Name) })
	return metrics
}
