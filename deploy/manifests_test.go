package deploy_test

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/mcs-api/config/crd"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/tools"
)

// update makes tests write what they compare: make manifests.
var update = flag.Bool("update", false, "write the manifests, and the schema of the chart's values")

// rendering is what the folders of deploy have of the chart with some values.
type rendering struct {
	set string
	// files are the written files by template; nil: all, by the same name.
	files map[string]string
}

func renderings() []rendering {
	all := []rendering{
		// The agents' component for semaphore-relay is a folder of its own, as is that for tokens.
		{set: "policy.enabled=true,relay.enabled=true,relay.agents=false,mcs.enabled=true,mcs.crds=false,metrics.podMonitor.enabled=true,metrics.prometheusRule.enabled=true"},
		{"metrics.auth=true", map[string]string{"authenticated/rbac.yaml": "authenticated/rbac.yaml"}},
		{"relay.enabled=true", map[string]string{"wireguard/relay/rbac.yaml": "wireguard/relay/rbac.yaml"}},
		// A replacement of the component puts the setting in place of its name.
		{"settings.podSubnetsMap=SEMAPHORE_POD_SUBNETS_MAP", map[string]string{"wireguard/map/rbac.yaml": "wireguard/map/rbac.yaml"}},
	}
	for _, source := range []string{"calico", "cilium", "pods", "prefixes"} {
		all = append(all, rendering{"wireguard.podPrefixes=" + source, map[string]string{"wireguard/pods/rbac.yaml": "wireguard/pods/" + source + "/rbac.yaml"}})
	}
	return all
}

// written are the files of the folders for kubectl apply -k that aren't from the chart: Helm keeps
// its release in the namespace, and the rest is kustomize's.
var written = []string{"kustomization.yaml", "wireguard/namespace.yaml", "remote/names.yaml", "observability/rules_test.yaml"}

// TestManifests compares the folders for kubectl apply -k with what the chart renders. The components'
// patches are written by hand: TestChartRendersAsKustomize compares them.
func TestManifests(t *testing.T) {
	want := map[string]string{}
	for _, name := range []string{"rules.yaml", "dashboard.json"} {
		content, err := os.ReadFile("chart/files/" + name)
		if err != nil {
			t.Fatal(err)
		}
		want["observability/"+name] = string(content)
	}
	helm := helm(t)
	for _, r := range renderings() {
		for template, text := range render(t, helm, r.set) {
			switch file := r.files[template]; {
			case r.files == nil && template != "settings.yaml": // That is a generator's.
				want[template] = text
			case file != "":
				want[file] = text
			}
		}
	}
	if *update {
		for name, text := range want {
			if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	got := map[string]string{}
	for _, folder := range []string{"authenticated", "coredns", "networkd", "observability", "policy", "relay", "remote", "service-mirror", "tokens", "wireguard"} {
		err := fs.WalkDir(os.DirFS("."), folder, func(path string, entry fs.DirEntry, err error) error {
			extension := filepath.Ext(path)
			if err != nil || entry.IsDir() || extension != ".yaml" && extension != ".json" || slices.Contains(written, path) || slices.Contains(written, entry.Name()) {
				return err
			}
			content, err := os.ReadFile(path)
			got[path] = string(content)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" || len(want) < 30 {
		t.Errorf("%d files, of which some are out of date: run make manifests (-chart +folders):\n%s", len(want), diff)
	}
}

var (
	// noise is what Helm puts before each object, and blanks at the end of a line.
	noise     = regexp.MustCompile(`(?m)^# Source: .*\n| +$`)
	separator = regexp.MustCompile(`\n+---\n`)
)

// helm returns the path of helm.
func helm(t *testing.T) string {
	t.Helper()
	binaries, err := tools.Build(t.Context(), t.Output(), tools.Helm)
	if err != nil {
		t.Fatal(err)
	}
	return binaries[tools.Helm]
}

// render returns the output of helm template, by template, with what kustomize puts in: the name of the
// ConfigMap, the tag of the image, and the suffix of the accounts for a remote.
func render(t *testing.T, helm, set string) map[string]string {
	t.Helper()
	folder := t.TempDir()
	const tag, suffix = ":later", "-suffixed-later"
	out, err := exec.CommandContext(t.Context(), helm, "template", "semaphore", "chart", "--namespace", "sys-semaphore", "--skip-tests", "--output-dir", folder,
		"--set", "cluster=x,image.tag=later,remotes.suffixed-later.kubeconfig=/x,remotes.suffixed-later.podSubnets={10.4.0.0/16},remotes.suffixed-later.wgListenPort=51840,"+set).CombinedOutput()
	if err != nil {
		t.Fatalf("--set %s: %v\n%s", set, err, out)
	}
	templates := os.DirFS(filepath.Join(folder, "kube-semaphore", "templates"))
	settings, err := fs.ReadFile(templates, "settings.yaml")
	if err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile(`semaphore-[0-9a-z]{10}`).FindString(string(settings))
	rendered := map[string]string{}
	err = fs.WalkDir(templates, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(templates, path)
		text := strings.NewReplacer(name, "semaphore", "kube-semaphore"+tag, "kube-semaphore", suffix, "").Replace(string(content))
		text = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(separator.ReplaceAllString(noise.ReplaceAllString(text, ""), "\n---\n")), "---\n"))
		rendered[path] = fmt.Sprintf("# Rendered by \"make manifests\" from deploy/chart/templates/%s.\n\n%s\n", path, text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return rendered
}

// TestNamesStay compares with a list: which objects users have installed with kubectl apply -k, and
// their fields that can't be changed. A release that changes one of these lines needs instructions.
func TestNamesStay(t *testing.T) {
	var lines []string
	for path, document := range documents(t) {
		var o unstructured.Unstructured
		if err := yaml.Unmarshal([]byte(document), &o.Object); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if o.Object == nil || o.GetKind() == "" || o.GetAPIVersion() == "" {
			continue
		}
		line := fmt.Sprintf("%s %s %s/%s", filepath.Dir(path), o.GroupVersionKind().GroupKind(), o.GetNamespace(), o.GetName())
		for _, fields := range [][]string{{"roleRef", "kind"}, {"roleRef", "name"}, {"type"}, {"spec", "selector"}, {"spec", "names"}, {"spec", "scope"}} {
			if value, has, err := unstructured.NestedFieldNoCopy(o.Object, fields...); err == nil && has {
				line += fmt.Sprintf(" %s=%v", strings.Join(fields, "."), value)
			}
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	got := strings.Join(lines, "\n") + "\n"
	const file = "testdata/installed.txt"
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if diff := cmp.Diff(string(want), got); diff != "" || err != nil {
		t.Errorf("%v (-installed +now):\n%s", err, diff)
	}
}

// TestCRDsOfImports compares the chart's CRDs of the Multi-Cluster Services API with the module's, which
// semaphorectl installs. Helm keeps them, and their objects, when the release is uninstalled.
func TestCRDsOfImports(t *testing.T) {
	got := render(t, helm(t), "mcs.enabled=true")["service-mirror/mcs/crds.yaml"]
	crds := map[string]map[string]any{}
	for document := range strings.SplitSeq(got, "\n---\n") {
		var o unstructured.Unstructured
		if err := yaml.Unmarshal([]byte(document), &o.Object); err != nil {
			t.Fatal(err)
		}
		crds[o.GetName()] = o.Object
	}
	want := map[string]map[string]any{}
	for _, content := range [][]byte{crd.ServiceExportCRD, crd.ServiceImportCRD} {
		var o unstructured.Unstructured
		if err := yaml.Unmarshal(content, &o.Object); err != nil {
			t.Fatal(err)
		}
		o.SetAnnotations(map[string]string{"helm.sh/resource-policy": "keep"})
		want[o.GetName()] = o.Object
	}
	if diff := cmp.Diff(want, crds); diff != "" {
		t.Errorf("(-module +chart):\n%s", diff)
	}
}
