package mirror

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/keep"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/run"
	"github.com/kube-semaphore/kube-semaphore/mirror/feeds"
	"github.com/kube-semaphore/kube-semaphore/mirror/mcs"
	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

// selecting restricts requests to the objects that match a selector.
func selecting(selector labels.Selector) func(*metav1.ListOptions) {
	return func(options *metav1.ListOptions) { options.LabelSelector = selector.String() }
}

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

// source has the feeds of the origins of one kind of one cluster, and of their slices.
type source struct {
	id      setID
	origins *feeds.Tap[origin.Service]
	slices  *feeds.Tap[origin.Slice]
	drain   *kube.Feed[drainMark] // nil for mirrored origins
	// exports are those of exported origins. Origins and slices are read once there is one, and
	// the gate is open.
	exports *feeds.Tap[mcs.Export]
	gate    *feeds.Gate
}

// sourceConfig has the selectors of a source, and its names in metrics and logs.
type sourceConfig struct {
	runner, prefix   string
	services, slices labels.Selector
}

// newSource returns a source. remote is nil for the local cluster.
func (c *Controller) newSource(id setID, client func() (kube.Client, error), remote *Remote) *source {
	selector, cfg := c.cfg.MirrorSelector, sourceConfig{runner: "mirror-" + id.cluster}
	switch id.kind {
	case exported:
		return c.newExportSource(id, client, remote)
	case merged:
		selector, cfg.runner, cfg.prefix = c.cfg.GlobalSelector, "global-"+id.cluster, "global "
	}
	cfg.services = excluding(selector, labelMirrored, labelValue, labelGlobal, labelValue)
	cfg.slices = excluding(selector, discoveryv1.LabelManagedBy, managedBy)
	return c.newSourceOf(id, client, remote, cfg)
}

func (c *Controller) newSourceOf(id setID, client func() (kube.Client, error), remote *Remote, cfg sourceConfig) *source {
	runner, prefix := cfg.runner, cfg.prefix
	services := kube.WatchConfig[*origin.Service]{
		Cluster: id.cluster, Server: c.servers[id.cluster], Kind: prefix + "services", Object: &corev1.Service{},
		ListWatch: kube.ReadServices(client, metav1.NamespaceAll, selecting(cfg.services)),
		Count:     c.metrics.events(id.cluster+"-serviceWatcher", "service", runner),
		Keep: func(obj runtime.Object) (*origin.Service, bool) {
			svc, ok := obj.(*corev1.Service)
			if !ok || isMade(svc) {
				return nil, false
			}
			return origin.TrimService(svc, c.cfg.LocalFirstSelector), true
		},
		Equal: (*origin.Service).Equal, Notify: c.trigger.Fire, Logger: c.log, Metrics: c.cfg.WatchMetrics,
	}
	var pods config.SubnetMap
	if remote != nil {
		pods = remote.PodSubnetsMap
	}
	endpoints := kube.WatchConfig[*origin.Slice]{
		Cluster: id.cluster, Server: c.servers[id.cluster], Kind: prefix + "endpointslices", Object: &discoveryv1.EndpointSlice{},
		ListWatch: kube.ReadEndpointSlices(client, metav1.NamespaceAll, selecting(cfg.slices)),
		Count:     c.metrics.events(id.cluster+"-endpointSliceWatcher", "endpointslice", runner),
		Keep: func(obj runtime.Object) (*origin.Slice, bool) {
			sl, ok := obj.(*discoveryv1.EndpointSlice)
			if !ok || isMadeSlice(sl) {
				return nil, false
			}
			return origin.TrimSlice(sl, pods)
		},
		Equal: (*origin.Slice).Equal, Notify: c.trigger.Fire, Logger: c.log, Metrics: c.cfg.WatchMetrics,
	}
	if remote != nil {
		services.Bounds, endpoints.Bounds = remote.Bounds, remote.Bounds
	}
	src := &source{id: id, origins: feeds.NewTap(services), slices: feeds.NewTap(endpoints)}
	if id.kind == merged {
		src.drain = c.newDrain(id, client, services.Bounds)
	}
	c.metrics.watch(id.cluster+"-serviceWatcher", "service", runner, src.origins.Len)
	c.metrics.watch(id.cluster+"-endpointSliceWatcher", "endpointslice", runner, src.slices.Len)
	return src
}

// read updates the snapshot with the next changes, and reports whether there are more. zones is
// whether those of the local nodes are known.
func (src *source) read(s *Snapshot, zones bool) (more bool) {
	put := s.origin
	if src.exports != nil {
		put = s.exportable
	}
	origins := src.origins.Take(func(c *kube.Change[origin.Service]) {
		o := c.After
		if o == nil {
			o = c.Before
		}
		put(src.id, o.Key, c.After)
	})
	slices := src.slices.Take(func(c *kube.Change[origin.Slice]) { s.slice(src.id, c.Before, c.After) })
	exports, synced, stale := false, src.origins.Complete && src.slices.Complete, src.origins.Outdated || src.slices.Outdated
	if src.exports != nil {
		if exports, synced = src.readExports(s); !src.gate.IsOpen() {
			stale = false
		}
		stale = stale || src.exports.Outdated
	}
	if idle := src.gate != nil && !src.gate.IsOpen(); !idle {
		drained := src.readDrain(s)
		synced = synced && drained && zones
	}
	s.contact(src.id, synced, stale)
	return origins || slices || exports
}

// tasks returns the feeds of a source. served is open when the local cluster serves the API of
// exports.
func (src *source) tasks(served *feeds.Gate) []run.Task {
	tasks := []run.Task{src.origins, src.slices}
	if src.exports != nil {
		tasks = []run.Task{feeds.Behind{Task: src.exports, Gate: served}, feeds.Behind{Task: src.origins, Gate: src.gate}, feeds.Behind{Task: src.slices, Gate: src.gate}}
	}
	switch {
	case src.drain != nil && src.exports != nil:
		tasks = append(tasks, feeds.Behind{Task: src.drain, Gate: src.gate})
	case src.drain != nil:
		tasks = append(tasks, src.drain)
	}
	return tasks
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

// localFeed returns a feed of objects of the local cluster.
func localFeed[T any, L runtime.Object](c *Controller, kind string, object runtime.Object, resource func(kube.Client) kube.Resource[L], restrict func(*metav1.ListOptions), keep func(runtime.Object) *T) *kube.Feed[T] {
	client := func() (kube.Client, error) { return c.cfg.Client, nil }
	return kube.NewFeed(kube.WatchConfig[*T]{
		Cluster: c.cfg.Cluster, Kind: kind, Object: object,
		ListWatch: kube.ListWatch(kube.Of(client, resource), restrict),
		Keep: func(obj runtime.Object) (*T, bool) {
			o := keep(obj)
			return o, o != nil
		},
		Notify: c.trigger.Fire, Logger: c.log, Metrics: c.cfg.WatchMetrics,
	})
}

func (c *Controller) newLocalFeeds() *localFeeds {
	sums := c.snapshot.sums
	h := &localFeeds{
		zones: map[string]int{}, faults: map[string]error{},
		hinted: c.cfg.GlobalSelector != nil && c.cfg.LocalFirstSelector != nil,
	}
	h.services = localFeed(c, "own services", &corev1.Service{}, servicesOf(c.cfg.Namespace), nil, func(obj runtime.Object) *ObservedService {
		if s, ok := obj.(*corev1.Service); ok {
			return sums.observedService(s)
		}
		return nil
	})
	h.slices = localFeed(c, "own endpointslices", &discoveryv1.EndpointSlice{}, slicesOf(c.cfg.Namespace), nil, func(obj runtime.Object) *ObservedSlice {
		if s, ok := obj.(*discoveryv1.EndpointSlice); ok {
			return sums.observedSlice(s)
		}
		return nil
	})
	h.nodes, h.reports = c.newNodes(), c.newReports()
	return h
}

func (h *localFeeds) tasks() []run.Task {
	tasks := []run.Task{h.services, h.slices, h.nodes}
	if h.reports != nil {
		tasks = append(tasks, h.reports)
	}
	return tasks
}

// read updates the snapshot of the mirror namespace, and reports whether it is synced.
func (h *localFeeds) read(s *Snapshot) (known bool) {
	services, slices := observe(h.services, s.local.services, byName), observe(h.slices, s.local.slices.Ledger, byName)
	s.observe()
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
