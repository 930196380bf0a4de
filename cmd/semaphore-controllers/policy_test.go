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

// deadPolicy is a program whose API servers are all away.
func deadPolicy(t *testing.T) *manager.Manager {
	t.Helper()
	access := kubetest.DeadAccess(t)
	m, err := preparePolicy(config.Policy{
		Base:           config.Base{ClusterName: "aws", Local: access, Remotes: []config.Remote{{Name: "gcp", Access: access}}},
		LeaderElection: true, Namespace: "sys-semaphore",
		LabelDomain: "policy.semaphore.uw.io", ManagedBy: "semaphore-policy", CalicoAPI: config.CalicoAPIAuto,
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestPolicyMetricsAreDocumented holds the program's metrics against docs/metrics.md.
func TestPolicyMetricsAreDocumented(t *testing.T) {
	docstest.CheckMetrics(t, deadPolicy(t).Registry, "semaphore_policy_", "kube_policy_semaphore_")
}

func TestStatusOfPolicyThatHasNotRun(t *testing.T) {
	got := reporttest.Run(t, policy.StatusCommand(), deadPolicy(t).Status().(statuspage.Policy))
	wrong, _ := got.Wrong()
	if got.Code != 1 || !slices.Contains(wrong, "no replica writes, as far as this one knows") {
		t.Errorf("code %d, printed:\n%s", got.Code, got.Stdout)
	}
}
