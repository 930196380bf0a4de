package main

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/internal/nstest"
	"github.com/kube-semaphore/kube-semaphore/routes"
)

// filterMetrics are the metrics of the source filter, by name, summed up.
func filterMetrics(t *testing.T, a *agent) map[string]float64 {
	t.Helper()
	families, err := a.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		if name := f.GetName(); strings.Contains(name, "filter") || strings.Contains(name, "forged") {
			for _, m := range f.GetMetric() {
				values[name] += m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return values
}

func TestStateOfTheSourceFilter(t *testing.T) {
	nstest.Root(t)
	const enforced, forged = "semaphore_wg_source_filter_enforced", "semaphore_wg_forged_packets_total"
	a, err := newAgent(testConfig(t), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer a.close()
	expect := func(what string, state filterState, values map[string]float64) {
		t.Helper()
		if got := a.status().(agentReport).Filter.State; got != state {
			t.Errorf("%s: %s, want %s", what, got, state)
		}
		if diff := cmp.Diff(values, filterMetrics(t, a)); diff != "" {
			t.Errorf("%s: metrics (-want +got):\n%s", what, diff)
		}
	}
	if _, err := a.filter.Sync(t.Context(), nil); err != nil { // of an earlier test
		t.Fatal(err)
	}
	expect("before the first pass", filterNotEnforced, map[string]float64{enforced: 0})
	if err := a.syncFilter(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect("after it", filterEnforced, map[string]float64{enforced: 1, forged: 0})

	// The rules of a remote that is no longer configured are removed.
	all, remotes := a.origins(), a.remotes
	a.remotes = remotes[:1]
	defer func() { a.remotes = remotes }()
	if err := a.syncFilter(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, still, err := a.filter.Status(t.Context(), all); err != nil || still {
		t.Errorf("the rules of a remote that is gone: %v, %v", still, err)
	}
	expect("with one remote less", filterEnforced, map[string]float64{enforced: 1, forged: 0})

	a.cfg.SourceFilter = false
	if err := a.syncFilter(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect("switched off", filterOff, map[string]float64{})
	if _, still, err := a.filter.Status(t.Context(), all[:1]); err != nil || still {
		t.Errorf("switched off, and the rules are there: %v, %v", still, err)
	}
}

// Without nf_tables in the kernel only the source filter fails, which is reported.
func TestNodeWithoutNetfilter(t *testing.T) {
	nstest.Root(t)
	a, err := newAgent(testConfig(t), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer a.close()
	err = nstest.WithoutNetfilter(nil, func() error {
		if err := a.syncFilter(t.Context()); !errors.Is(err, routes.ErrNoFilter) {
			t.Errorf("error %v, want %v", err, routes.ErrNoFilter)
		}
		rep, _ := a.filterStatus(t.Context())
		if rep.State != filterNotEnforced || !strings.Contains(rep.Error, "nf_tables") {
			t.Errorf("%+v", rep)
		}
		return errors.Join(a.syncRoutes(t.Context()), a.cleanup(t.Context()))
	})
	// Only the unreachable API server may fail.
	if err == nil || strings.Contains(err.Error(), "nf_tables") {
		t.Errorf("cleanup: %v", err)
	}
}
