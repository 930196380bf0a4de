package main

import (
	"log/slog"
	"slices"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/manager"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/docstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/reporttest"
	"github.com/kube-semaphore/kube-semaphore/policy"
)

// deadProgram is a program whose API servers are all away.
func deadProgram(t *testing.T) *manager.Manager {
	t.Helper()
	access := kubetest.DeadAccess(t)
	m, err := prepare(config.Policy{
		Base:           config.Base{ClusterName: "aws", Local: access, Remotes: []config.Remote{{Name: "gcp", Access: access}}},
		LeaderElection: true, Namespace: "sys-semaphore",
		LabelDomain: "policy.semaphore.uw.io", ManagedBy: "semaphore-policy", CalicoAPI: config.CalicoAPIAuto,
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestMetricsAreDocumented holds the program's metrics against docs/metrics.md.
func TestMetricsAreDocumented(t *testing.T) {
	docstest.CheckMetrics(t, deadProgram(t).Registry, "semaphore_policy_", "kube_policy_semaphore_")
}

func TestStatusOfAProgramThatHasNotRun(t *testing.T) {
	got := reporttest.Run(t, policy.StatusCommand(), deadProgram(t).Status().(statuspage.Policy))
	wrong, _ := got.Wrong()
	if got.Code != 1 || !slices.Contains(wrong, "no replica writes, as far as this one knows") {
		t.Errorf("code %d, printed:\n%s", got.Code, got.Stdout)
	}
}
