package main

import (
	"log/slog"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/docstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
)

// TestRelayMetricsAreDocumented holds the program's metrics against docs/metrics.md.
func TestRelayMetricsAreDocumented(t *testing.T) {
	access := kubetest.DeadAccess(t)
	p, err := prepareRelay(config.Relay{
		Base:           config.Base{ClusterName: "aws", Local: access, Remotes: []config.Remote{{Name: "gcp", Access: access}}},
		LeaderElection: true, Namespace: "sys-semaphore",
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	docstest.CheckMetrics(t, p.Registry, "semaphore_relay_")
}
