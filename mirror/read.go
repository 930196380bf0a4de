package mirror

import (
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-semaphore/kube-semaphore/internal/keep"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/pathreport"
	"github.com/kube-semaphore/kube-semaphore/internal/run"
	"github.com/kube-semaphore/kube-semaphore/mirror/mcs"
	"github.com/kube-semaphore/kube-semaphore/mirror/published"
)

// excluding adds to a selector that labels don't have these values, so that API servers
// don't send what other mirrors made. pairs are labels and values.
func excluding(selector labels.Selector, pairs ...string) labels.Selector {
	for pair := range slices.Chunk(pairs, 2) {
		// It fails for labels and values that are not valid, and these are constants.
		if r, err := labels.NewRequirement(pair[0], selection.NotEquals, pair[1:]); err == nil {
			selector = selector.Add(*r)
		}
	}
	return selector
}

// without adds to a selector that a label doesn't exist.
func without(selector labels.Selector, label string) labels.Selector {
	if r, err := labels.NewRequirement(label, selection.DoesNotExist, nil); err == nil {
		selector = selector.Add(*r)
	}
	return selector
}

func servicesOf(namespace string) func(kube.Client) kube.Resource[*corev1.ServiceList] {
	return func(c kube.Client) kube.Resource[*corev1.ServiceList] {
		return c.Services(namespace)
	}
}

func slicesOf(namespace string) func(kube.Client) kube.Resource[*discoveryv1.EndpointSliceList] {
	return func(c kube.Client) kube.Resource[*discoveryv1.EndpointSliceList] {
		return c.EndpointSlices(namespace)
	}
}

// newSource returns the source of a set.
func (c *Controller) newSource(id published.ID) *published.Source {
	runner := map[published.Kind]string{published.Mirrored: "mirror-", published.Merged: "global-", published.Exported: "export-"}[id.Kind] + id.Cluster
	watcher := map[string]string{"service": "-serviceWatcher", "endpointslice": "-endpointSliceWatcher", "serviceexport": "-serviceExportWatcher"}
	cfg := published.SourceConfig{
		Set: c.state.sets[id], Server: c.servers[id.Cluster], Made: isMade, MadeSlice: isMadeSlice, LocalFirst: c.cfg.LocalFirstSelector,
		Client: func() (kube.Client, error) { return c.cfg.Client, nil },
		Count: func(resource string) func(watch.EventType) {
			return c.metrics.events(id.Cluster+watcher[resource], resource, runner)
		},
		Notify: c.trigger.Fire, Logger: c.log, Metrics: c.cfg.WatchMetrics,
	}
	remote := c.remote(id.Cluster)
	if remote != nil {
		cfg.Client, cfg.Bounds, cfg.Pods = remote.Client, remote.Bounds, remote.PodSubnetsMap
	}
	selector := map[published.Kind]labels.Selector{published.Mirrored: c.cfg.MirrorSelector, published.Merged: c.cfg.GlobalSelector, published.Exported: labels.Everything()}[id.Kind]
	cfg.Services = excluding(selector, labelMirrored, labelValue, labelGlobal, labelValue)
	cfg.Slices = excluding(selector, discoveryv1.LabelManagedBy, managedBy)
	switch {
	case id.Kind == published.Merged, id.Kind == published.Exported && (remote != nil || c.cfg.GlobalSelector == nil):
		cfg.Drained = annotDrained // of the local cluster once
	}
	if id.Kind == published.Exported {
		cfg.Served = c.multi.served
		cfg.Services, cfg.Slices = excluding(cfg.Services, mcs.LabelImported, labelValue), without(cfg.Slices, mcs.LabelSourceCluster)
	}
	src := published.NewSource(&cfg)
	c.metrics.watch(id.Cluster+watcher["service"], "service", runner, src.Services.Len)
	c.metrics.watch(id.Cluster+watcher["endpointslice"], "endpointslice", runner, src.Slices.Len)
	if src.Exports != nil {
		c.metrics.watch(id.Cluster+watcher["serviceexport"], "serviceexport", runner, src.Exports.Len)
	}
	return src
}

// localFeeds are the feeds of the mirror namespace, of the nodes, and of path reports.
type localFeeds struct {
	services *kube.Feed[ObservedService]
	slices   *kube.Feed[ObservedSlice]
	nodes    *kube.Feed[localNode]
	reports  *kube.Feed[seenReport] // nil: no namespace is configured
	hinted   bool                   // zones are needed
	zones    map[string]int         // number of nodes
	faults   map[string]error       // of reports, by name
}

// localFeed returns a feed of objects of the local cluster, in the form that trim returns. equal may
// be nil.
func localFeed[O, L runtime.Object, T any](c *Controller, kind string, resource func(kube.Client) kube.Resource[L], restrict func(*metav1.ListOptions), trim func(O) *T, equal func(a, b *T) bool) *kube.Feed[T] {
	client := func() (kube.Client, error) { return c.cfg.Client, nil }
	return kube.NewFeed(kube.WatchConfig[*T]{
		Cluster: c.cfg.Cluster, Kind: kind,
		ListWatch: kube.ListWatch(kube.Of(client, resource), restrict),
		Keep: func(obj runtime.Object) (*T, bool) {
			o, ok := obj.(O)
			if !ok {
				return nil, false
			}
			return trim(o), true
		},
		Equal: equal, Notify: c.trigger.Fire, Logger: c.log, Metrics: c.cfg.WatchMetrics,
	})
}

func (c *Controller) newLocalFeeds() *localFeeds {
	sums := c.state.sums
	h := &localFeeds{
		zones: map[string]int{}, faults: map[string]error{},
		hinted:   c.cfg.MultiCluster || c.cfg.GlobalSelector != nil && c.cfg.LocalFirstSelector != nil,
		services: localFeed(c, "own services", servicesOf(c.cfg.Namespace), nil, sums.observedService, nil),
		slices:   localFeed(c, "own endpointslices", slicesOf(c.cfg.Namespace), nil, sums.observedSlice, nil),
		nodes:    localFeed(c, "nodes", kube.Nodes, nil, trimNode, func(a, b *localNode) bool { return *a == *b }),
	}
	if c.cfg.ReportNamespace != "" {
		h.reports = localFeed(c, "path reports", func(client kube.Client) kube.Resource[*coordinationv1.LeaseList] {
			return client.Leases(c.cfg.ReportNamespace)
		}, func(options *metav1.ListOptions) {
			options.LabelSelector = pathreport.Label + "=" + pathreport.LabelValue
		}, readReport, equalReports)
	}
	return h
}

func (h *localFeeds) tasks() []run.Task {
	tasks := []run.Task{h.services, h.slices, h.nodes}
	if h.reports != nil {
		tasks = append(tasks, h.reports)
	}
	return tasks
}

// read updates the state of the mirror namespace, and reports whether it is synced.
func (h *localFeeds) read(s *state) (known bool) {
	services, slices := observe(h.services, s.local.home.services, byName), observe(h.slices, s.local.home.slices, byName)
	return services && slices
}

// observe passes the changes of a feed to a ledger, whose names are made of the keys of the feed.
func observe[T any](feed *kube.Feed[T], ledger *keep.Ledger[T], name func(key string) string) (synced bool) {
	changes, synced := feed.Changes()
	if len(changes) == 0 && ledger.Synced() == synced {
		return synced
	}
	for i := range changes {
		changes[i].Key = name(changes[i].Key)
	}
	ledger.Observe(changes, synced)
	return synced
}

// byName names objects that are all of one namespace, byKey those of several ones.
func byName(key string) string {
	_, name, _ := strings.Cut(key, "/")
	return name
}
func byKey(key string) string { return key }
