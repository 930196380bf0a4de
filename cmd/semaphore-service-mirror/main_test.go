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
	"github.com/kube-semaphore/kube-semaphore/mirror"
)

// deadProgram is a program whose API servers are all away.
func deadProgram(t *testing.T) *manager.Manager {
	t.Helper()
	access := kubetest.DeadAccess(t)
	m, err := prepare(config.Mirror{
		Base:           config.Base{ClusterName: "aws", Local: access, Remotes: []config.Remote{{Name: "gcp", Access: access, ServicePrefix: "gcp"}}},
		LeaderElection: true, Namespace: "sys-semaphore", MirrorNamespace: "sys-semaphore",
		MirrorSelector: "mirror=true", GlobalSelector: "global=true",
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestMetricsAreDocumented holds the program's metrics against docs/metrics.md.
func TestMetricsAreDocumented(t *testing.T) {
	docstest.CheckMetrics(t, deadProgram(t).Registry, "semaphore_service_mirror_")
}

func TestStatusOfAProgramThatHasNotRun(t *testing.T) {
	got := reporttest.Run(t, mirror.StatusCommand(), deadProgram(t).Status().(statuspage.Mirror))
	wrong, _ := got.Wrong()
	if got.Code != 1 || !slices.Contains(wrong, "no replica writes, as far as this one knows") {
		t.Errorf("code %d, printed:\n%s", got.Code, got.Stdout)
	}
}
