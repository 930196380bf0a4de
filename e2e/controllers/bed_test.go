package controllers_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

const (
	home = programs.Namespace
	// settle is how long a change may take on a busy machine. After an outage, watches
	// try again every half minute at the latest.
	settle = 2 * time.Minute
)

// bed is three clusters of API servers without Kubernetes' own controllers, so that objects
// are what a test makes of them.
type bed struct {
	tb              *testbed.Testbed
	aws, gcp, merit *testbed.Cluster

	accounts map[string]*testbed.Credentials // by cluster and service account
	binaries map[string]string               // of programs, by name
}

// newBed starts the clusters and applies manifests to each, by its name. Paths are relative to the
// root of the repository.
func newBed(t *testing.T, manifests map[string][]string) *bed {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	b := &bed{tb: testbed.Start(t, testbed.Config{}), accounts: map[string]*testbed.Credentials{}, binaries: map[string]string{}}
	// In this order their pods are in 10.2.0.0/16, 10.4.0.0/16 and 10.6.0.0/16.
	all, err := b.tb.StartClusters(ctx, testbed.ClusterConfig{Name: "gcp"}, testbed.ClusterConfig{Name: "aws"}, testbed.ClusterConfig{Name: "merit"})
	must(t, err)
	b.gcp, b.aws, b.merit = all[0], all[1], all[2]
	for _, c := range all {
		createNamespace(t, c, home)
		var paths []string
		for _, m := range manifests[c.Name] {
			paths = append(paths, "../../"+m)
		}
		must(t, c.Apply(ctx, paths...))
	}
	return b
}

// all returns the clusters.
func (b *bed) all() []*testbed.Cluster { return []*testbed.Cluster{b.aws, b.gcp, b.merit} }

// account returns the credentials of a service account in the namespace of our manifests.
func (b *bed) account(t *testing.T, c *testbed.Cluster, name string) *testbed.Credentials {
	t.Helper()
	key := c.Name + "/" + name
	if b.accounts[key] == nil {
		var err error
		b.accounts[key], err = c.Credentials(t.Context(), home, name)
		must(t, err)
	}
	return b.accounts[key]
}

// as returns a client configuration with the rights of a service account only.
func as(c *testbed.Cluster, account *testbed.Credentials) *rest.Config {
	cfg := c.RESTConfig()
	cfg.CertData, cfg.KeyData = nil, nil
	cfg.BearerTokenFile = account.TokenFile()
	cfg.UserAgent = "kube-semaphore/test"
	return cfg
}

// binary builds a program with the race detector, once, and returns its path.
func (b *bed) binary(t *testing.T, program string) string {
	t.Helper()
	if b.binaries[program] == "" {
		path, err := programs.Build(t.Context(), program, b.tb.Dir(), "-race")
		must(t, err)
		b.binaries[program] = path
	}
	return b.binaries[program]
}

// node returns the node of a cluster that programs run on.
func (b *bed) node(t *testing.T, c *testbed.Cluster) *testbed.Node {
	t.Helper()
	if nodes := c.Nodes(); len(nodes) > 0 {
		return nodes[0]
	}
	ctx, cancel := context.WithTimeout(t.Context(), settle)
	defer cancel()
	node, err := c.AddNode(ctx, testbed.NodeConfig{})
	must(t, err)
	return node
}

// replica prepares a replica of a program in a cluster. At the end of the test it is
// killed, and its log must show neither data races nor panics.
func (b *bed) replica(t *testing.T, program, name string, port int, local *testbed.Cluster, remotes ...*testbed.Cluster) *programs.Program {
	t.Helper()
	r, err := programs.Prepare(t.Context(), programs.Config{
		Name: program, Replica: name, Binary: b.binary(t, program), Port: port,
	}, b.node(t, local), remotes...)
	must(t, err)
	t.Cleanup(func() {
		p := r.Process()
		if p == nil {
			return
		}
		p.Kill()
		if log := p.Log(); strings.Contains(log, "DATA RACE") || strings.Contains(log, "panic:") {
			t.Errorf("%s:\n%s", name, log)
		}
	})
	return r
}

// oneLeader waits until exactly one of the replicas leads, and returns it. A replica that
// doesn't answer in time, or has just lost the lease, is asked again.
func oneLeader(t *testing.T, replicas ...*programs.Program) (leader *programs.Program) {
	t.Helper()
	wait(t, "one leader", func() error {
		count := 0
		for _, r := range replicas {
			if leads, err := r.Leads(t.Context()); err == nil && leads {
				leader = r
				count++
			}
		}
		if count != 1 {
			return fmt.Errorf("%d leaders", count)
		}
		return nil
	})
	return leader
}

// must fails the test for errors.
func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// wait fails the test unless the condition holds within settle.
func wait(t *testing.T, what string, condition func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), settle)
	defer cancel()
	must(t, testbed.Wait(ctx, what, func(context.Context) error { return condition() }))
}

func createNamespace(t *testing.T, c *testbed.Cluster, name string) {
	t.Helper()
	_, err := c.Client().CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

// namespaces returns the names of a cluster's namespaces.
func namespaces(ctx context.Context, t *testing.T, c *testbed.Cluster) (names []string) {
	t.Helper()
	list, err := c.Client().CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	must(t, err)
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names
}

// eventsAbout returns the Events in the namespace of our manifests that are about an object.
func eventsAbout(t *testing.T, c *testbed.Cluster, name string) (all []corev1.Event) {
	t.Helper()
	list, err := c.Client().CoreV1().Events(home).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	return slices.DeleteFunc(list.Items, func(e corev1.Event) bool { return e.InvolvedObject.Name != name })
}

// sample is the value of a metric, or how many values a histogram has.
type sample struct {
	labels map[string]string
	value  float64
}

// samples returns the samples of a collector's metrics of one name, and their sum.
func samples(t *testing.T, c prometheus.Collector, name string) (all []sample, sum float64) {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	must(t, err)
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			s := sample{map[string]string{}, m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())}
			for _, l := range m.GetLabel() {
				s.labels[l.GetName()] = l.GetValue()
			}
			all, sum = append(all, s), sum+s.value
		}
	}
	return all, sum
}
