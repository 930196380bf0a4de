package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/tools"
)

// TestChartIsGenerated compares deploy/chart with what make chart would write.
func TestChartIsGenerated(t *testing.T) {
	root, err := tools.Root()
	if err != nil {
		t.Fatal(err)
	}
	want, err := chart(root, options{})
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(root, "deploy", "chart")
	got := map[string][]byte{}
	err = filepath.WalkDir(folder, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(folder, path)
		if err == nil {
			got[filepath.ToSlash(name)], err = os.ReadFile(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	rules, err := prometheusRule(root)
	if err != nil {
		t.Fatal(err)
	}
	want[rule] = rules
	if got[rule], err = os.ReadFile(filepath.Join(root, "deploy", "observability", rule)); err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if diff := cmp.Diff(string(want[name]), string(got[name])); diff != "" {
			t.Errorf("%s is out of date, run make chart (-want +got):\n%s", name, diff)
		}
		delete(got, name)
	}
	for name := range got {
		t.Errorf("%s isn't a file of the chart, run make chart", name)
	}
}

// TestMerge evaluates merged texts: under one condition each is its variant, and variants of
// different lines can be combined.
func TestMerge(t *testing.T) {
	base := strings.Split("a\nb\nc\nd\ne", "\n")
	variants := []variant{
		{"same", base},
		{"more", strings.Split("a\nb\nc\nd\nd2\ne", "\n")},
		{"less", strings.Split("a\nc\nd\ne", "\n")},
		{"other", strings.Split("A\nb\nc\nd\ne", "\n")},
		{"end", strings.Split("a\nb\nc\nd\ne\nf\ng", "\n")},
		{"begin", strings.Split("0\na\nb\nc\nd\ne", "\n")},
		{"lesser", strings.Split("a\nc\ne", "\n")},
	}
	merged := merge(base, variants)
	for _, c := range []struct{ on, want string }{
		{"", "a b c d e"}, {"same", "a b c d e"}, {"more", "a b c d d2 e"}, {"less", "a c d e"}, {"other", "A b c d e"},
		{"end", "a b c d e f g"}, {"begin", "0 a b c d e"}, {"lesser", "a c e"},
		{"more less other end", "A c d d2 e f g"}, {"less lesser", "a c e"},
	} {
		if got := strings.Join(evaluate(t, merged, strings.Fields(c.on)), " "); got != c.want {
			t.Errorf("with %q: %s, expected %s, from\n%s", c.on, got, c.want, strings.Join(merged, "\n"))
		}
	}
}

// evaluate returns the lines that remain under conditions.
func evaluate(t *testing.T, lines, on []string) []string {
	t.Helper()
	var kept []string
	skipping := false
	for _, l := range lines {
		condition, is := strings.CutPrefix(l, "{{- if ")
		switch condition = strings.TrimSuffix(condition, " }}"); {
		case is && strings.HasPrefix(condition, "not "):
			all := strings.FieldsFunc(condition, func(r rune) bool { return strings.ContainsRune("() ", r) })
			skipping = slices.ContainsFunc(all, func(word string) bool { return slices.Contains(on, word) })
		case is:
			skipping = !slices.Contains(on, condition)
		case l == "{{- end }}":
			skipping = false
		case !skipping:
			kept = append(kept, l)
		}
	}
	return kept
}

func TestKeys(t *testing.T) {
	settings := settings()
	for key, want := range map[string]string{
		"podSubnets": "POD_SUBNETS", "apiURL": "API_URL", "caSHA256": "CA_SHA256", "wgListenPort": "WG_LISTEN_PORT", "wgMTU": "WG_MTU", "wgMaxAllowedIPs": "WG_MAX_ALLOWED_IPS",
	} {
		if got := settings.remotes[key].Variable; got != remotePrefix+want {
			t.Errorf("%s sets %q", key, got)
		}
	}
	if got := settings.settings["logLevel"].Variable; got != "SEMAPHORE_LOG_LEVEL" {
		t.Errorf("logLevel sets %q", got)
	}
	for _, key := range []string{"nodeName", "podName", "probeSocket", "clusterName", "remotes", "wgEngine", "listenAuth"} {
		if d, has := settings.settings[key]; has {
			t.Errorf("%s sets %s, which is set elsewhere", key, d.Variable)
		}
	}
}

// TestRelease writes the chart of a release, and nothing over other files.
func TestRelease(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "chart")
	const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	if err := run([]string{"-version", "v1.2.3", "-image", "registry.example:5000/a/kube-semaphore@" + digest, "-o", folder}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]string{
		"Chart.yaml":  {"\nversion: 1.2.3\n", "\nappVersion: v1.2.3\n"},
		"values.yaml": {"\n  registry: \"registry.example:5000\"\n", "\n  repository: a/kube-semaphore\n", "\n  digest: \"" + digest + "\"\n"},
	} {
		content, err := os.ReadFile(filepath.Join(folder, name))
		for _, text := range want {
			if err != nil || !strings.Contains(string(content), text) {
				t.Errorf("%s lacks %q: %v\n%s", name, text, err, content)
			}
		}
	}
	for want, args := range map[string][]string{
		"expected one such as v1.2.3": {"-version", "1.2", "-o", folder},
		"expected a name without":     {"-image", "registry.example/kube-semaphore:v1", "-o", folder},
		"isn't a chart":               {"-o", filepath.Dir(folder)},
	} {
		if err := run(args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", args, err)
		}
	}
}
