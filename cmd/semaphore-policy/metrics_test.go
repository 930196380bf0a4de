package main

import (
	"log/slog"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/docs"
	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/kube/kubetest"
)

// deadProgram is a program whose API servers are all away.
func deadProgram(t *testing.T) *program {
	t.Helper()
	access := kubetest.DeadAccess(t)
	p, err := newProgram(config.Policy{
		Base:           config.Base{ClusterName: "aws", Local: access, Remotes: []config.Remote{{Name: "gcp", Access: access}}},
		LeaderElection: true, Namespace: "sys-semaphore",
		LabelDomain: "policy.semaphore.uw.io", ManagedBy: "semaphore-policy", CalicoAPI: config.CalicoAPIAuto,
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestMetricsAreDocumented holds the program's metrics against docs/metrics.md.
func TestMetricsAreDocumented(t *testing.T) {
	docs.CheckMetrics(t, deadProgram(t).registry, "semaphore_policy_", "kube_policy_semaphore_")
}
