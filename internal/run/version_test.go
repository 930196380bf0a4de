package run

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestBuildInfoHasTheConventionalForm(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(BuildInfo("semaphore_test"))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if len(families) != 1 || families[0].GetName() != "semaphore_test_build_info" {
		t.Fatalf("gathered %v, want semaphore_test_build_info alone", families)
	}
	metric := families[0].GetMetric()[0]
	if got := metric.GetGauge().GetValue(); got != 1 {
		t.Errorf("value = %v, want 1", got)
	}
	if got := len(metric.GetLabel()); got != 3 {
		t.Errorf("%d labels, want version, revision and goversion", got)
	}
}
