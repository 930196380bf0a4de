package scenarios_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

// TestRefusedTokens deletes an account of the joined clusters, whose watches go on: status is red,
// join creates the account again and hands over its token, and status is green when it ends.
func TestRefusedTokens(t *testing.T) {
	t.Parallel()
	nstest.Root(t)
	tb, clusters := startTwo(t)
	ctx := within(t, 10*time.Minute)
	join := []string{"join", "--yes", "--no-probe", "--tools", "wireguard"}
	for _, c := range clusters {
		_, err := c.Client().CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem}}, metav1.CreateOptions{})
		exists(t, err)
		join = append(join, "--pod-subnets", fmt.Sprintf("%s=%s %s", c.Name, c.PodSubnets[0], c.PodSubnets[1]))
	}
	join = append(join, "aws", "gcp")
	agent := program(t, programs.WireGuard)
	fakeKubelet := programs.StartFakeKubelet(t.Context(), t.TempDir(), map[string]string{
		programs.WireGuard: agent, programs.Engine: filepath.Join(filepath.Dir(agent), programs.Engine),
	}, clusters...)
	t.Cleanup(fakeKubelet.Stop)
	a := newAdministrator(t, tb)
	run := func(args ...string) string {
		t.Helper()
		out, code, err := a.run(ctx, args...)
		must(t, err)
		t.Logf("semaphorectl %s: exit code %d\n%s", strings.Join(args, " "), code, out)
		if code != 0 {
			t.Fatalf("exit code %d; the stand-in: %v", code, fakeKubelet.Err())
		}
		return out
	}
	run(join...)
	eventually(t, time.Minute, "no faults", func(ctx context.Context) error {
		var v statusView
		code, err := a.ask(ctx, &v, "status", "aws", "gcp")
		if err == nil && code != 0 {
			err = fmt.Errorf("code %d: %+v", code, v)
		}
		return err
	})

	const account = "semaphore-wireguard-remote-aws"
	must(t, clusters[1].Client().CoreV1().ServiceAccounts(systemNamespace).Delete(ctx, account, metav1.DeleteOptions{}))
	eventually(t, 2*time.Minute, "a token that is refused", func(ctx context.Context) error {
		var v statusView
		code, err := a.ask(ctx, &v, "status", "aws", "gcp")
		red := slices.ContainsFunc(v.Wrong, func(line string) bool {
			return strings.HasPrefix(line, "token-refused: aws to gcp: ") && strings.Contains(line, "Unauthorized")
		})
		if err == nil && (code != 1 || !red) {
			err = fmt.Errorf("code %d: %+v", code, v)
		}
		return err
	})
	out := run(join...)
	if want := "aws: tokens for gcp: wireguard"; !strings.Contains(out, want) {
		t.Errorf("join doesn't say %q", want)
	}
	if strings.Contains(out, "gcp: tokens for aws") {
		t.Error("join replaces a token that is accepted")
	}
	run("status", "aws", "gcp")
	if out := run(join...); strings.Contains(out, "tokens") {
		t.Error("another join hands over tokens again")
	}
}
