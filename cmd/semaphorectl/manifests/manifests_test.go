package manifests

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
)

func example() *Cluster {
	return &Cluster{
		Name: "aws", Tools: Tools(), Remotes: []cluster.Name{"gcp", "merit"}, Image: "registry.example:5000/kube-semaphore:v1.2.3",
		Settings: map[string]string{"SEMAPHORE_CLUSTER_NAME": "aws", "SEMAPHORE_REMOTES": "gcp,merit"},
	}
}

// TestRender checks the rendered objects.
func TestRender(t *testing.T) {
	objects, err := example().Render()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, o := range objects {
		names = append(names, o.GetKind()+" "+o.GetName())
		if o.GetLabels()[ManagedLabel] != Manager {
			t.Errorf("%s %s has the labels %v", o.GetKind(), o.GetName(), o.GetLabels())
		}
		if o.GetKind() == "Secret" && (o.Object["data"] != nil || o.Object["stringData"] != nil) {
			t.Errorf("Secret %s has content", o.GetName())
		}
		if o.GetKind() == "DaemonSet" {
			text, _ := o.MarshalJSON()
			if !strings.Contains(string(text), `"image":"registry.example:5000/kube-semaphore:v1.2.3"`) || !strings.Contains(string(text), `"name":"semaphore-`) {
				t.Errorf("%s", text)
			}
			if strings.Contains(string(text), `"`+Manager+`"`) && strings.Count(string(text), `"`+Manager+`"`) > 1 {
				t.Errorf("the label is in selectors or templates: %s", text)
			}
		}
	}
	for _, want := range []string{
		"Namespace sys-semaphore", "DaemonSet semaphore-wireguard", "Deployment semaphore-service-mirror", "Deployment semaphore-policy",
		"CronJob semaphore-tokens", "ServiceAccount semaphore-wireguard-remote-gcp", "ServiceAccount semaphore-policy-remote-merit",
	} {
		if !slices.Contains(names, want) {
			t.Errorf("no %s in %q", want, names)
		}
	}
}

func TestFewerTools(t *testing.T) {
	c := example()
	c.Tools, c.Foreign, c.Cleanup = []string{Mirror}, true, false
	objects, err := c.Render()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		switch o.GetKind() + " " + o.GetName() {
		case "Namespace sys-semaphore", "DaemonSet semaphore-wireguard", "Deployment semaphore-policy":
			t.Errorf("there is a %s %s", o.GetKind(), o.GetName())
		}
	}
}

func TestImage(t *testing.T) {
	for name, want := range map[string]string{
		"a/b:v1": "a/b:v1", "a:5000/b": "a:5000/b:latest", "a:5000/b:v1": "a:5000/b:v1", "b": "b:latest", "a:5000/b@sha256:012": "a:5000/b@sha256:012",
	} {
		if got := withTag(name); got != want {
			t.Errorf("%s: %s, expected %s", name, got, want)
		}
	}
}

// TestBlock checks that our block is added and removed without a trace.
func TestBlock(t *testing.T) {
	const main = ".:53 {\n    errors\n    kubernetes k8s.example in-addr.arpa {\n    }\n    reload\n}\n"
	for name, before := range map[string]string{
		"ordinary": main, "empty": "", "without a last line break": strings.TrimSuffix(main, "\n"),
		"spaces and returns": main + "\r\n  \t\n\n", "comments": main + "# END semaphorectl\n# BEGIN something\n",
	} {
		one, two := WithBlock(before, "one {\n}"), WithBlock(WithBlock(before, "one {\n}"), "two {\n}")
		if !strings.Contains(one, "\none {\n}\n") || strings.Contains(two, "one") || WithBlock(two, "two {\n}") != two {
			t.Errorf("%s: %q, then %q", name, one, two)
		}
		for _, changed := range []string{one, two, two + "# foreign lines\n"} {
			want := before
			if strings.HasSuffix(changed, "foreign lines\n") {
				want = before + "# foreign lines\n"
			}
			if got := WithoutBlock(changed); got != want && name != "without a last line break" || !strings.HasPrefix(got, before) {
				t.Errorf("%s: %q, expected %q", name, got, want)
			}
		}
		if got := WithoutBlock(one); got != before {
			t.Errorf("%s: %q, expected %q", name, got, before)
		}
	}
	if got := Domain(main); got != "k8s.example" {
		t.Errorf("domain %q", got)
	}
}

// TestBlockIsFound changes a Corefile that was edited since.
func TestBlockIsFound(t *testing.T) {
	const main = ".:53 {\n    reload\n}\n"
	// An editor has removed the last line break: a second block must not be added.
	trimmed := strings.TrimSuffix(WithBlock(main, "one {\n}"), "\n")
	if got := WithBlock(trimmed, "one {\n}"); strings.Count(got, "one {") != 1 || Whole(trimmed) != nil {
		t.Errorf("with a block: %q", got)
	}
	if got := WithoutBlock(trimmed); got != main {
		t.Errorf("without a block: %q", got)
	}
	whole := WithBlock(main, "one {\n}")
	for name, broken := range map[string]string{
		"no end":     strings.Replace(whole, end+"\n", "", 1),
		"two begins": begin + "\nof others {\n}\n" + whole,
	} {
		if err := Whole(broken); err == nil {
			t.Errorf("%s: nothing is wrong with %q", name, broken)
		}
	}
	for _, fine := range []string{"", main, whole, whole + main} {
		if err := Whole(fine); err != nil {
			t.Errorf("%q: %v", fine, err)
		}
	}
}

// TestBlocksOfOthers skips zones that the Corefile already serves: CoreDNS doesn't start with
// two server blocks of one zone.
func TestBlocksOfOthers(t *testing.T) {
	both := []Zone{{"gcp", "gcp"}, {"merit", "merit"}}
	corefile := ".:53 {\n    forward cluster.merit 192.0.2.1\n}\n# cluster.merit:53 {\ndns://cluster.gcp.:53, cluster.global {\n    errors\n}\n"
	got, err := Blocks(both, corefile)
	if err != nil || strings.Contains(got, "cluster.gcp") || strings.Contains(got, "cluster.global") || !strings.HasPrefix(got, "cluster.merit:53 {") {
		t.Errorf("error %v, blocks\n%s", err, got)
	}
	// Our own blocks don't count, and are rendered again.
	all, err := Blocks(both, "")
	if err != nil {
		t.Fatal(err)
	}
	if again, err := Blocks(both, WithBlock("", all)); err != nil || again != all {
		t.Errorf("error %v, again\n%s", err, again)
	}
	if none, err := Blocks(both, all); err != nil || WithBlock("x", none) != "x" {
		t.Errorf("error %v, blocks of others twice:\n%s", err, none)
	}
}

func TestBlocks(t *testing.T) {
	got, err := Blocks([]Zone{{"gcp", "g"}, {"merit", "merit"}}, ".:53 {\n    kubernetes k8s.example\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"cluster.gcp:53 {", "cluster.merit:53 {", "cluster.global:53 {", "kubernetes k8s.example {",
		`\.svc\.cluster\.gcp\.?$ {1}g-{3}-73736d-{2}.sys-semaphore.svc.k8s.example`,
		`answer name ^((?:[a-z0-9_-]+\.)*)merit-([a-z0-9-]+)-73736d-([a-z0-9-]+)\.sys-semaphore\.svc\.k8s\.example\.?$ {1}{3}.{2}.svc.cluster.merit`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.Contains(got, "aws") || strings.Contains(got, "cluster.local") {
		t.Errorf("remains of the example:\n%s", got)
	}
}

// TestBlocksOfTheDomain rejects zones that shadow the cluster's domain: a server block for
// cluster.local answers NXDOMAIN to kubernetes.default.svc.cluster.local.
func TestBlocksOfTheDomain(t *testing.T) {
	corefile := func(domain string) string { return ".:53 {\n    kubernetes " + domain + " in-addr.arpa\n}\n" }
	for name, c := range map[string]struct {
		zone   Zone
		domain string
		ok     bool
	}{
		"another":                  {Zone{"gcp", "gcp"}, "cluster.local", true},
		"beneath the domain":       {Zone{"gcp", "gcp"}, "cluster", true},
		"the domain":               {Zone{"gcp", "gcp"}, "cluster.gcp", false},
		"above the domain":         {Zone{"gcp", "gcp"}, "eu.cluster.gcp", false},
		"a name that ends like it": {Zone{"gcp", "gcp"}, "mycluster.gcp", true},
		"that of global services":  {Zone{"gcp", "gcp"}, "cluster.global", false},
		"local":                    {Zone{"local", "x"}, "cluster.local", false},
		"global":                   {Zone{"global", "x"}, "cluster.local", false},
		"no name":                  {Zone{"gcp {\n}\n.", "gcp"}, "cluster.local", false},
		"no prefix":                {Zone{"gcp", "gcp\n}"}, "cluster.local", false},
	} {
		if got, err := Blocks([]Zone{c.zone}, corefile(c.domain)); (err == nil) != c.ok || err != nil && got != "" {
			t.Errorf("%s: error %v, blocks\n%s", name, err, got)
		}
	}
}

// TestNamesAreChecked renders nothing for invalid names.
func TestNamesAreChecked(t *testing.T) {
	for _, name := range []cluster.Name{"", "..", "a/b", "a\nb", "x?ref=--upload-pack=id", "https://x.example/y", "local"} {
		for _, c := range []*Cluster{{Name: name, Image: "x"}, {Name: "aws", Remotes: []cluster.Name{name}, Image: "x"}} {
			if objects, err := c.Render(); err == nil || objects != nil {
				t.Errorf("%q: %d objects", name, len(objects))
			}
		}
	}
}

// TestFilesAreTheObjects reads back the files for a Git repository.
func TestFilesAreTheObjects(t *testing.T) {
	c := example()
	c.Settings["SEMAPHORE_X"] = "---\nkind: ClusterRoleBinding\n# \"'\n"
	want, err := c.Render()
	if err != nil {
		t.Fatal(err)
	}
	files, err := c.Files()
	if err != nil {
		t.Fatal(err)
	}
	got, err := decode(files["semaphore.yaml"])
	if err != nil || len(got) != len(want) {
		t.Fatalf("%d objects of %d, error %v", len(got), len(want), err)
	}
	for i := range got {
		if diff := cmp.Diff(want[i].Object, got[i].Object); diff != "" {
			t.Errorf("object %d (-want +got):\n%s", i, diff)
		}
	}
}

// TestNothingIsFetched checks that kustomize isn't linked: it treats a resource that isn't a
// file as the URL of a repository, and runs git.
func TestNothingIsFetched(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl").Output()
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.Lines(string(out)) {
		if strings.Contains(name, "kustomize") || strings.Contains(name, "go-getter") {
			t.Errorf("semaphorectl links %s", name)
		}
	}
}
