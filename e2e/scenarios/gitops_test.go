package scenarios_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/tools"
)

// TestReconciledTwice applies the example, with the relay, as Argo CD and Flux do, client-side and
// server-side, and expects that a second time changes nothing, and that no difference is
// found.
func TestReconciledTwice(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{"client-side": nil, "server-side": {"--server-side", "--field-manager=gitops"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := startCluster(t)
			folder := overlay(t, []string{"example/aws", "relay"}, []string{"wireguard/relay"})
			apply := func(unchanged bool) map[string]string {
				t.Helper()
				out, err := cluster.Kubectl(within(t, 2*time.Minute), append([]string{"apply", "-k", folder}, flags...)...)
				if err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
				for line := range strings.Lines(out) {
					// A difference that the API server's defaults make is one to Argo CD. The
					// selector of a budget is always replaced, by the same one.
					if unchanged && flags == nil && !strings.HasSuffix(line, " unchanged\n") && !strings.HasPrefix(line, "poddisruptionbudget.policy/") {
						t.Errorf("the second time: %s", line)
					}
				}
				return versions(t, []*testbed.Cluster{cluster})
			}
			first := apply(false)
			if diff := cmp.Diff(first, apply(true)); diff != "" {
				t.Errorf("the second time changes (-first +second):\n%s", diff)
			}
			if out, err := cluster.Kubectl(within(t, time.Minute), append([]string{"diff", "-k", folder}, flags...)...); err != nil {
				t.Errorf("after it was applied, differences remain: %v\n%s", err, out)
			}
		})
	}
}

// TestBasesByURL builds the example from bases in a Git repository.
func TestBasesByURL(t *testing.T) {
	t.Parallel()
	binaries, err := tools.Build(t.Context(), t.Output(), tools.Kubectl)
	must(t, err)
	repository := t.TempDir()
	must(t, os.CopyFS(filepath.Join(repository, "deploy"), os.DirFS(deployFolder(t))))
	git := func(args ...string) {
		t.Helper()
		command(t, "git", append([]string{"-C", repository, "-c", "user.name=test", "-c", "user.email=test@example.org"}, args...)...)
	}
	git("init", "--quiet", "--initial-branch=main")
	git("add", ".")
	git("commit", "--quiet", "--message", "deploy")
	git("tag", "v1.2.3")
	url := func(folder string) string { return "file://" + repository + "//deploy/" + folder + "?ref=v1.2.3" }
	folder := t.TempDir()
	example, err := os.ReadFile(filepath.Join(deployFolder(t), "example", "aws", "kustomization.yaml"))
	must(t, err)
	text := string(example)
	for _, base := range []string{"wireguard", "service-mirror", "policy", "tokens"} {
		text = strings.Replace(text, "  - ../../"+base+"\n", "  - "+url(base)+"\n", 1)
	}
	text = strings.Replace(text, "  - remote\n", "  - "+url("example/aws/remote")+"\n", 1)
	if strings.Contains(text, "- ../") || strings.Count(text, url("")[:len("file://"+repository)]) != 5 {
		t.Fatalf("not all bases have a URL:\n%s", text)
	}
	text += "components:\n  - " + url("networkd") + "\n"
	must(t, os.WriteFile(filepath.Join(folder, "kustomization.yaml"), []byte(text), 0o644))
	got := manifestsByName(t, command(t, binaries[tools.Kubectl], "kustomize", folder))
	want := manifestsByName(t, command(t, binaries[tools.Kubectl], "kustomize", overlay(t, []string{"example/aws"}, []string{"networkd"})))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-files +URLs):\n%s", diff)
	}
}
