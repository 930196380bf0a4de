package docstest

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

func TestMetricsOfTheTable(t *testing.T) {
	all, err := Metrics()
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]Metric{}
	for _, m := range all {
		if _, twice := known[m.Name]; twice {
			t.Errorf("%s is listed twice", m.Name)
		}
		known[m.Name] = m
	}
	for _, want := range []Metric{
		{Name: "semaphore_wg_device_up", Type: "gauge", Labels: []string{"cluster", "device"}},
		{Name: "semaphore_service_mirror_leader", Type: "gauge"},
	} {
		if diff := cmp.Diff(want, known[want.Name]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", want.Name, diff)
		}
	}
	some, err := Metrics("semaphore_policy_", "kube_policy_")
	if err != nil || len(some) == 0 || len(some) >= len(all) || some[0].Name != "kube_policy_semaphore_calico_client_failures" {
		t.Errorf("%v, %v", some, err)
	}
}

// complaints collects what CheckMetrics says instead of failing.
type complaints struct {
	testing.TB
	said []string
}

func (c *complaints) Helper() {}
func (c *complaints) Errorf(format string, args ...any) {
	c.said = append(c.said, fmt.Sprintf(format, args...))
}

func TestCheckMetrics(t *testing.T) {
	counter := func(name string, labels ...string) prometheus.Collector {
		return prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: name, Help: `variableLabels: {x}}, "quoted"`, ConstLabels: prometheus.Labels{},
		}, labels)
	}
	const name = "kube_policy_semaphore_calico_client_failures"
	for _, c := range []struct {
		what      string
		collector prometheus.Collector
		right     bool
	}{
		{"as documented", counter(name, "type"), true},
		{"another label", counter(name, "kind"), false},
		{"another name", counter("kube_policy_semaphore_calico_client_failures_total", "type"), false},
		{"another type", prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: name, ConstLabels: prometheus.Labels{"type": "a"},
		}, func() float64 { return 1 }), false},
	} {
		t.Run(c.what, func(t *testing.T) {
			registry := prometheus.NewRegistry()
			registry.MustRegister(c.collector)
			found := &complaints{TB: t}
			CheckMetrics(found, registry, name)
			if right := len(found.said) == 0; right != c.right {
				t.Errorf("complaints %q", found.said)
			}
		})
	}
}
