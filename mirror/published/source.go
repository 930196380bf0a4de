package published

import (
	"log/slog"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/run"
	"github.com/kube-semaphore/kube-semaphore/mirror/mcs"
	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

// SourceConfig describes a Source.
type SourceConfig struct {
	Set    *Set
	Client func() (kube.Client, error)
	// Server is that of a remote.
	Server *kube.Server
	// Bounds limit what is read of a remote.
	Bounds kube.Bounds
	// Pods translates the addresses of its pods.
	Pods config.SubnetMap
	// Services and Slices are what the API server selects. Of the rest those are ignored that a
	// mirror has made.
	Services, Slices labels.Selector
	Made, MadeSlice  func(metav1.Object) bool
	// LocalFirst selects services that prefer local endpoints; nil: none.
	LocalFirst labels.Selector
	// Served opens when the local cluster serves the API of exports.
	Served *Gate
	// Drained is the annotation that marks a cluster as drained; empty: it isn't read.
	Drained string
	// Count returns what counts the events of a watch of a resource.
	Count   func(resource string) func(watch.EventType)
	Notify  func()
	Logger  *slog.Logger
	Metrics *kube.Metrics
}

// Source reads a Set.
type Source struct {
	*Set
	Services *kube.Feed[origin.Service]
	Slices   *kube.Feed[origin.Slice]
	// Exports are nil for other kinds. Services and slices are read once there is an export, when
	// Needed opens.
	Exports *kube.Feed[mcs.Export]
	Needed  *Gate
	drain   *kube.Feed[drainMark]
	served  *Gate
}

// drainMark is the trimmed Service whose annotation marks its cluster as drained.
type drainMark struct{ drained bool }

// NewSource returns a source. It makes no request.
func NewSource(cfg *SourceConfig) *Source {
	prefix := map[Kind]string{Merged: "global ", Exported: "exported "}[cfg.Set.Kind]
	src := &Source{Set: cfg.Set, served: cfg.Served}
	src.Services = kube.NewFeed(watchOf(cfg, prefix+"services", "service", kube.ReadServices(cfg.Client, metav1.NamespaceAll, selecting(cfg.Services)),
		(*origin.Service).Equal, func(s *corev1.Service) (*origin.Service, bool) {
			if cfg.Made(s) {
				return nil, false
			}
			return origin.TrimService(s, cfg.LocalFirst), true
		}))
	src.Slices = kube.NewFeed(watchOf(cfg, prefix+"endpointslices", "endpointslice", kube.ReadEndpointSlices(cfg.Client, selecting(cfg.Slices)),
		(*origin.Slice).Equal, func(s *discoveryv1.EndpointSlice) (*origin.Slice, bool) {
			if cfg.MadeSlice(s) {
				return nil, false
			}
			return origin.TrimSlice(s, cfg.Pods)
		}))
	if cfg.Set.Kind == Exported {
		src.Needed = NewGate()
		src.Exports = kube.NewFeed(watchOf(cfg, "service exports", "serviceexport", kube.ReadServiceExports(cfg.Client),
			(*mcs.Export).Equal, func(e *v1beta1.ServiceExport) (*mcs.Export, bool) { return mcs.TrimExport(e, cfg.Set.Local) }))
	}
	if cfg.Drained != "" {
		src.drain = newDrain(cfg)
	}
	return src
}

// watchOf describes the watch of a resource.
func watchOf[O runtime.Object, T any](cfg *SourceConfig, kind, resource string, read *kube.Reader, equal func(a, b *T) bool, trim func(O) (*T, bool)) kube.WatchConfig[*T] {
	return kube.WatchConfig[*T]{
		Cluster: cfg.Set.Cluster, Server: cfg.Server, Kind: kind, Reader: read, Count: cfg.Count(resource),
		Keep: func(obj runtime.Object) (*T, bool) {
			o, ok := obj.(O)
			if !ok {
				return nil, false
			}
			return trim(o)
		},
		Equal: equal, Notify: cfg.Notify, Bounds: cfg.Bounds, Logger: cfg.Logger, Metrics: cfg.Metrics,
	}
}

func selecting(selector labels.Selector) func(*metav1.ListOptions) {
	return func(options *metav1.ListOptions) { options.LabelSelector = selector.String() }
}

// newDrain returns a feed of the Service kubernetes, which each API server creates, and which
// the mirrors of other clusters may read. Only administrators of the cluster may change it.
func newDrain(cfg *SourceConfig) *kube.Feed[drainMark] {
	return kube.NewFeed(kube.WatchConfig[*drainMark]{
		Cluster: cfg.Set.Cluster, Server: cfg.Server, Kind: "mark of being drained",
		Reader: kube.ReadServices(cfg.Client, metav1.NamespaceDefault, func(options *metav1.ListOptions) {
			options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, "kubernetes").String()
		}),
		Keep: func(obj runtime.Object) (*drainMark, bool) {
			s, ok := obj.(*corev1.Service)
			if !ok || s.Name != "kubernetes" {
				return nil, false
			}
			return &drainMark{s.Annotations[cfg.Drained] == "true"}, true
		},
		Equal:  func(a, b *drainMark) bool { return *a == *b },
		Notify: cfg.Notify, Bounds: cfg.Bounds, Logger: cfg.Logger, Metrics: cfg.Metrics,
	})
}

// Read updates the set. It returns whether the set is complete and stale, for Set.Synced and
// Set.Stale. drained is called with whether the cluster is marked as drained, when that changes.
func (src *Source) Read(drained func(is bool)) (synced, stale bool) {
	// In this order: if a feed isn't stale, its list is complete before Changes is called.
	stale = src.Services.Stale() || src.Slices.Stale()
	services, synced := src.Services.Changes()
	for _, c := range services {
		o := c.After
		if o == nil {
			o = c.Before
		}
		src.PutService(o.Key, c.After)
	}
	slices, known := src.Slices.Changes()
	for _, c := range slices {
		src.PutSlice(c.Before, c.After)
	}
	synced = synced && known
	if src.Exports != nil {
		outdated := src.Exports.Stale()
		exports, known := src.Exports.Changes()
		for _, c := range exports {
			k := origin.Key{}
			k.Namespace, k.Name, _ = strings.Cut(c.Key, "/")
			src.PutExport(k, c.After)
		}
		if src.Exports.Len() > 0 {
			src.Needed.Open()
		}
		if !src.Needed.IsOpen() {
			return known, outdated
		}
		synced, stale = synced && known, stale || outdated
	}
	if src.drain != nil {
		changes, known := src.drain.Changes()
		for _, c := range changes {
			drained(c.After != nil && c.After.drained)
		}
		// A cluster that doesn't let it be read isn't drained. The error may come and go.
		synced = synced && (known || src.Synced || src.drain.Err() != nil)
	}
	return synced, stale
}

// Tasks returns the feeds.
func (src *Source) Tasks() []run.Task {
	tasks := []run.Task{src.Services, src.Slices}
	if src.drain != nil {
		tasks = append(tasks, src.drain)
	}
	if src.Exports == nil {
		return tasks
	}
	for i, task := range tasks {
		tasks[i] = Behind{Task: task, Gate: src.Needed}
	}
	return append(tasks, Behind{Task: src.Exports, Gate: src.served})
}

// Health is the status of a feed.
type Health interface {
	Synced() bool
	Stale() bool
	LastContact() time.Time
	Err() error
	OverQuota() error
}

// Watch is one of the watches of a source.
type Watch struct {
	Kind string
	Health
}

// Watches returns those that run.
func (src *Source) Watches() (all []Watch) {
	if src.Exports != nil {
		if !src.served.IsOpen() {
			return nil
		}
		all = append(all, Watch{"service exports", src.Exports})
		if !src.Needed.IsOpen() {
			return all // nothing else is read of a cluster that exports nothing
		}
	}
	return append(all, Watch{src.Kind.String(), src.Services}, Watch{"endpoint slices of " + src.Kind.String(), src.Slices})
}
