package mirror

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// inOrder waits until what is in gcp equals what a computation from nothing
// says of what is in all three clusters now.
func (b *bed) inOrder(t *testing.T, i *instance) {
	t.Helper()
	wait(t, "what must be", func() error { return b.differs(t.Context(), i.cfg) })
}

// differs compares what is in gcp with what must be, for a configuration.
func (b *bed) differs(ctx context.Context, cfg Config) error {
	sums := newSummer()
	own := newHoldings()
	clusters := []clusterConfig{{name: cfg.Cluster, local: true}}
	for i := range cfg.Remotes {
		clusters = append(clusters, clusterConfig{name: cfg.Remotes[i].Name, prefix: cfg.Remotes[i].Prefix, subnets: cfg.Remotes[i].PodSubnets})
	}
	p := newPlan(clusters, (&Controller{cfg: cfg}).kinds, own)
	views := map[setID]setView{}
	for _, id := range p.order {
		v, err := b.view(ctx, cfg, id)
		if err != nil {
			return err
		}
		views[id] = v
	}
	services, err := b.gcp.Client().CoreV1().Services(home).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	// Who was accepted first is known of the objects alone.
	var kept []*ownService
	for i := range services.Items {
		kept = append(kept, sums.ownService(&services.Items[i]))
	}
	own.update(kept, nil, nil, time.Now())
	p.update(views, []string{""}, nil)

	want := map[string]sum{}
	for _, tg := range p.targets {
		want["service "+tg.name] = sums.service(tg.service(home))
		for i := range tg.slices {
			object := tg.slices[i].object(home, tg)
			want["slice "+object.Name] = sums.slice(object)
		}
	}
	have := map[string]sum{}
	for _, o := range kept {
		if o.ours {
			have["service "+o.name] = o.sum
		}
	}
	slicesNow, err := b.gcp.Client().DiscoveryV1().EndpointSlices(home).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range slicesNow.Items {
		if o := sums.ownSlice(&slicesNow.Items[i]); o.ours {
			have["slice "+o.name] = o.sum
		}
	}
	return difference(have, want)
}

func difference(have, want map[string]sum) error {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(want)) {
		switch s, ok := have[name]; {
		case !ok:
			lines = append(lines, "missing: "+name)
		case s != want[name]:
			lines = append(lines, "different: "+name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(have)) {
		if _, ok := want[name]; !ok {
			lines = append(lines, "surplus: "+name)
		}
	}
	if len(lines) == 0 {
		return nil
	}
	return errors.New(strings.Join(lines[:min(len(lines), 20)], "\n"))
}

func (b *bed) view(ctx context.Context, cfg Config, id setID) (setView, error) {
	c := b.cluster(id.cluster)
	options := metav1.ListOptions{LabelSelector: cfg.MirrorSelector.String()}
	if id.kind == globalSet {
		options.LabelSelector = cfg.GlobalSelector.String()
	}
	services, err := c.Client().CoreV1().Services("").List(ctx, options)
	if err != nil {
		return setView{}, err
	}
	all, err := c.Client().DiscoveryV1().EndpointSlices("").List(ctx, options)
	if err != nil {
		return setView{}, err
	}
	v := setView{known: true}
	for i := range services.Items {
		v.services = append(v.services, TrimService(&services.Items[i], cfg.LocalFirstSelector))
	}
	for i := range all.Items {
		if s, ok := TrimSlice(&all.Items[i]); ok {
			v.slices = append(v.slices, s)
		}
	}
	return v, nil
}
