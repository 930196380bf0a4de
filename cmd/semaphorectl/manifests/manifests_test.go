package manifests

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func example() Cluster {
	return Cluster{
		Name: "aws", Tools: Tools(), Remotes: []string{"gcp", "merit"}, Image: "registry.example:5000/kube-semaphore:v1.2.3",
		Settings: map[string]string{"SEMAPHORE_CLUSTER_NAME": "aws", "SEMAPHORE_REMOTES": "gcp,merit"},
	}
}

// TestRender renders what semaphorectl writes, as kubectl apply -k would.
func TestRender(t *testing.T) {
	tree, err := New(example())
	if err != nil {
		t.Fatal(err)
	}
	objects, err := tree.Render("aws")
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
	tree, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := tree.Render("aws")
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
	for name, want := range map[string]object{
		"a/b:v1":              {"name": "kube-semaphore", "newName": "a/b", "newTag": "v1"},
		"a:5000/b":            {"name": "kube-semaphore", "newName": "a:5000/b", "newTag": "latest"},
		"a:5000/b@sha256:012": {"name": "kube-semaphore", "newName": "a:5000/b", "digest": "sha256:012"},
	} {
		if diff := cmp.Diff(want, image(name)); diff != "" {
			t.Errorf("%s: (-want +got):\n%s", name, diff)
		}
	}
}

// TestBlock holds that what is ours in a Corefile comes and goes without a trace.
func TestBlock(t *testing.T) {
	const main = ".:53 {\n    errors\n    kubernetes k8s.example in-addr.arpa {\n    }\n    reload\n}\n"
	for name, before := range map[string]string{
		"ordinary": main, "empty": "", "without a last line's end": strings.TrimSuffix(main, "\n"),
		"spaces and returns": main + "\r\n  \t\n\n", "comments": main + "# END semaphorectl\n# BEGIN something\n",
	} {
		one, two := WithBlock(before, "one {\n}"), WithBlock(WithBlock(before, "one {\n}"), "two {\n}")
		if !strings.Contains(one, "\none {\n}\n") || strings.Contains(two, "one") || WithBlock(two, "two {\n}") != two {
			t.Errorf("%s: %q, then %q", name, one, two)
		}
		for _, changed := range []string{one, two, two + "# more of others\n"} {
			want := before
			if strings.HasSuffix(changed, "others\n") {
				want = before + "# more of others\n"
			}
			if got := WithoutBlock(changed); got != want && name != "without a last line's end" || !strings.HasPrefix(got, before) {
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

// TestBlockIsFound changes a Corefile that somebody has edited since.
func TestBlockIsFound(t *testing.T) {
	const main = ".:53 {\n    reload\n}\n"
	// An editor has taken the last line's end away: a second block would be one too much.
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

// TestBlocksOfOthers leaves zones out that the Corefile has by other means: CoreDNS
// doesn't start with two server blocks of one.
func TestBlocksOfOthers(t *testing.T) {
	byRemote := map[string]string{"gcp": "gcp", "merit": "merit"}
	corefile := ".:53 {\n    forward cluster.merit 192.0.2.1\n}\n# cluster.merit:53 {\ndns://cluster.gcp.:53, cluster.global {\n    errors\n}\n"
	got, err := Blocks(byRemote, []string{"gcp", "merit"}, corefile)
	if err != nil || strings.Contains(got, "cluster.gcp") || strings.Contains(got, "cluster.global") || !strings.HasPrefix(got, "cluster.merit:53 {") {
		t.Errorf("error %v, blocks\n%s", err, got)
	}
	// Our own don't count, and come again as they were.
	all, err := Blocks(byRemote, []string{"gcp", "merit"}, "")
	if err != nil {
		t.Fatal(err)
	}
	if again, err := Blocks(byRemote, []string{"gcp", "merit"}, WithBlock("", all)); err != nil || again != all {
		t.Errorf("error %v, again\n%s", err, again)
	}
	if none, err := Blocks(byRemote, []string{"gcp", "merit"}, all); err != nil || WithBlock("x", none) != "x" {
		t.Errorf("error %v, blocks of others twice:\n%s", err, none)
	}
}

func TestBlocks(t *testing.T) {
	got, err := Blocks(map[string]string{"gcp": "g", "merit": "merit"}, []string{"gcp", "merit"}, ".:53 {\n    kubernetes k8s.example\n}\n")
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
		t.Errorf("left of the example:\n%s", got)
	}
}
