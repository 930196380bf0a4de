package agent

import (
	"log/slog"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/docstest"
)

// TestMetricsAreDocumented holds the agent's metrics against docs/metrics.md.
func TestMetricsAreDocumented(t *testing.T) {
	a, err := newAgent(testConfig(t), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer a.close()
	docstest.CheckMetrics(t, a.registry, "semaphore_wg_")
}
