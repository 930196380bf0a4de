package coredns

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// setupOf reads a Corefile of a cluster in which CoreDNS isn't a workload.
func setupOf(t *testing.T, corefile string) *Setup {
	t.Helper()
	s, err := Read(t.Context(), fake.NewClientset(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "coredns", Namespace: "kube-system"}, Data: map[string]string{"Corefile": corefile},
	}))
	if err != nil || s == nil {
		t.Fatalf("%v, %v", s, err)
	}
	return s
}

// TestBlock checks that our block is added and removed without a trace.
func TestBlock(t *testing.T) {
	const main = ".:53 {\n    errors\n    kubernetes k8s.example in-addr.arpa {\n    }\n    reload\n}\n"
	for name, before := range map[string]string{
		"ordinary": main, "empty": "", "without a last line break": strings.TrimSuffix(main, "\n"),
		"spaces and returns": main + "\r\n  \t\n\n", "comments": main + "# END semaphorectl\n# BEGIN something\n",
	} {
		one, two := withBlock(before, "one {\n}"), withBlock(withBlock(before, "one {\n}"), "two {\n}")
		if !strings.Contains(one, "\none {\n}\n") || strings.Contains(two, "one") || withBlock(two, "two {\n}") != two {
			t.Errorf("%s: %q, then %q", name, one, two)
		}
		for _, changed := range []string{one, two, two + "# foreign lines\n"} {
			want := before
			if strings.HasSuffix(changed, "foreign lines\n") {
				want = before + "# foreign lines\n"
			}
			if got := withoutBlock(changed); got != want && name != "without a last line break" || !strings.HasPrefix(got, before) {
				t.Errorf("%s: %q, expected %q", name, got, want)
			}
		}
		if got := withoutBlock(one); got != before {
			t.Errorf("%s: %q, expected %q", name, got, before)
		}
	}
	if got := setupOf(t, main).Domain; got != "k8s.example" {
		t.Errorf("domain %q", got)
	}
}

// TestBlockIsFound changes a Corefile that was edited since.
func TestBlockIsFound(t *testing.T) {
	const main = ".:53 {\n    reload\n}\n"
	// An editor has removed the last line break: a second block must not be added.
	trimmed := strings.TrimSuffix(withBlock(main, "one {\n}"), "\n")
	if got := withBlock(trimmed, "one {\n}"); strings.Count(got, "one {") != 1 || whole(trimmed) != nil {
		t.Errorf("with a block: %q", got)
	}
	if got := withoutBlock(trimmed); got != main {
		t.Errorf("without a block: %q", got)
	}
	complete := withBlock(main, "one {\n}")
	for name, broken := range map[string]string{
		"no end":     strings.Replace(complete, end+"\n", "", 1),
		"two begins": begin + "\nof others {\n}\n" + complete,
	} {
		if err := whole(broken); err == nil {
			t.Errorf("%s: nothing is wrong with %q", name, broken)
		}
	}
	for _, fine := range []string{"", main, complete, complete + main} {
		if err := whole(fine); err != nil {
			t.Errorf("%q: %v", fine, err)
		}
	}
}

// TestBlocksOfOthers skips zones that the Corefile already serves: CoreDNS doesn't start with
// two server blocks of one zone.
func TestBlocksOfOthers(t *testing.T) {
	both := []Zone{{"gcp", "gcp"}, {"merit", "merit"}}
	corefile := ".:53 {\n    forward cluster.merit 192.0.2.1\n}\n# cluster.merit:53 {\ndns://cluster.gcp.:53, cluster.global {\n    errors\n}\n"
	got, err := setupOf(t, corefile).Blocks(both)
	if err != nil || strings.Contains(got, "cluster.gcp") || strings.Contains(got, "cluster.global") || !strings.HasPrefix(got, "cluster.merit:53 {") {
		t.Errorf("error %v, blocks\n%s", err, got)
	}
	// Our own blocks don't count, and are rendered again.
	all, err := setupOf(t, "").Blocks(both)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := setupOf(t, withBlock("", all)).Blocks(both); err != nil || again != all {
		t.Errorf("error %v, again\n%s", err, again)
	}
	if none, err := setupOf(t, all).Blocks(both); err != nil || withBlock("x", none) != "x" {
		t.Errorf("error %v, blocks of others twice:\n%s", err, none)
	}
}

func TestBlocks(t *testing.T) {
	got, err := setupOf(t, ".:53 {\n    kubernetes k8s.example\n}\n").Blocks([]Zone{{"gcp", "g"}, {"merit", "merit"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"cluster.gcp:53 {", "cluster.merit:53 {", "cluster.global:53 {", "kubernetes k8s.example cluster.gcp {",
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

// TestWordsOfNames has names that contain words of our example, and a block without arguments of
// kubernetes, whose zones are those of the block.
func TestWordsOfNames(t *testing.T) {
	got, err := setupOf(t, "{\n    kubernetes\n}\n10.in-addr.arpa:1053 k8s.example:1053 {\n    kubernetes\n}\n").Blocks([]Zone{{"local-aws", "aws-1"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"cluster.local-aws:1053 {", "kubernetes k8s.example cluster.local-aws {", "aws-1-{3}-73736d-{2}.sys-semaphore.svc.k8s.example"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
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
		if got, err := setupOf(t, corefile(c.domain)).Blocks([]Zone{c.zone}); (err == nil) != c.ok || err != nil && got != "" {
			t.Errorf("%s: error %v, blocks\n%s", name, err, got)
		}
	}
}
