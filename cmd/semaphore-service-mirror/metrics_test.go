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
	p, err := newProgram(config.Mirror{
		Base:           config.Base{ClusterName: "aws", Local: access, Remotes: []config.Remote{{Name: "gcp", Access: access, ServicePrefix: "gcp"}}},
		LeaderElection: true, Namespace: "sys-semaphore", MirrorNamespace: "sys-semaphore",
		MirrorSelector: "mirror=true", GlobalSelector: "global=true",
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestMetricsAreDocumented holds the program's metrics against docs/metrics.md.
func TestMetricsAreDocumented(t *testing.T) {
	docs.CheckMetrics(t, deadProgram(t).registry, "semaphore_service_mirror_")
}
