package mirror

import (
	"context"
	"errors"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/kube/clientset"
)

// inOrder waits until what is in gcp equals what a computation from nothing
// says of what is in all three clusters now.
func (b *bed) inOrder(t *testing.T, i *instance) {
	t.Helper()
	wait(t, "what must be", func() error { return b.differs(t.Context(), i.cfg) })
}

// differs compares what is in gcp with what must be, for a configuration.
func (b *bed) differs(ctx context.Context, cfg Config) error {
	cfg.Client = clientset.Client(b.gcp.Client())
	s := New(cfg).snapshot
	s.zones = []string{""}
	for _, id := range s.order {
		if err := b.read(ctx, cfg, s, id); err != nil {
			return err
		}
	}
	services, err := b.gcp.Client().CoreV1().Services(home).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	all, err := b.gcp.Client().DiscoveryV1().EndpointSlices(home).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var have []kube.Change[ObservedService]
	for i := range services.Items {
		o := s.sums.observedService(&services.Items[i])
		have = append(have, kube.Change[ObservedService]{Key: o.Name, After: o})
	}
	var parts []kube.Change[ObservedSlice]
	for i := range all.Items {
		o := s.sums.observedSlice(&all.Items[i])
		parts = append(parts, kube.Change[ObservedSlice]{Key: o.Name, After: o})
	}
	s.local.services.Observe(have, true)
	s.local.slices.Observe(parts, true)
	s.legacy = false
	s.observe()
	var lines []string
	m := NewMemo()
	for _, desired := range Desired(s, m) {
		want, have := s.want(m, desired.Name)
		for _, c := range Diff(have, want) {
			lines = append(lines, c.Verb+" "+c.Object+" "+c.Name)
		}
	}
	if len(lines) == 0 {
		return nil
	}
	return errors.New(strings.Join(lines[:min(len(lines), 20)], "\n"))
}

// read reads the origins of one kind of one cluster.
func (b *bed) read(ctx context.Context, cfg Config, s *Snapshot, id setID) error {
	c := b.cluster(id.cluster)
	options := metav1.ListOptions{LabelSelector: cfg.MirrorSelector.String()}
	if id.kind == merged {
		options.LabelSelector = cfg.GlobalSelector.String()
	}
	services, err := c.Client().CoreV1().Services("").List(ctx, options)
	if err != nil {
		return err
	}
	all, err := c.Client().DiscoveryV1().EndpointSlices("").List(ctx, options)
	if err != nil {
		return err
	}
	for i := range services.Items {
		o := trimOrigin(&services.Items[i], cfg.LocalFirstSelector)
		s.origin(id, o.Key, o)
	}
	for i := range all.Items {
		if sl, ok := trimSlice(&all.Items[i]); ok {
			s.slice(id, nil, sl)
		}
	}
	s.contact(id, true, false)
	return nil
}
