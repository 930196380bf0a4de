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

// deadMirror is a program whose API servers are all away.
func deadMirror(t *testing.T) *manager.Manager {
	t.Helper()
	access := kubetest.DeadAccess(t)
	m, err := prepareMirror(config.Mirror{
		Base:           config.Base{ClusterName: "aws", Local: access, Remotes: []config.Remote{{Name: "gcp", Access: access, ServicePrefix: "gcp"}}},
		LeaderElection: true, Namespace: "sys-semaphore", MirrorNamespace: "sys-semaphore",
		MirrorSelector: "mirror=true", GlobalSelector: "global=true",
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestMirrorMetricsAreDocumented holds the program's metrics against docs/metrics.md.
func TestMirrorMetricsAreDocumented(t *testing.T) {
	docstest.CheckMetrics(t, deadMirror(t).Registry, "semaphore_service_mirror_")
}

func TestStatusOfMirrorThatHasNotRun(t *testing.T) {
	got := reporttest.Run(t, mirror.StatusCommand(), deadMirror(t).Status().(statuspage.Mirror))
	wrong, _ := got.Wrong()
	if got.Code != 1 || !slices.Contains(wrong, "no replica writes, as far as this one knows") {
		t.Errorf("code %d, printed:\n%s", got.Code, got.Stdout)
	}
}
