package mirror

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/run"
)

// source watches the services of one kind of one cluster.
type source struct {
	id       setID
	services *kube.Watch[*Service]
	slices   *kube.Watch[*Slice]
}

// counted is a resource whose events are counted.
type counted[L runtime.Object] struct {
	kube.Resource[L]
	count func(watch.EventType)
}

// Watch implements kube.Resource.
func (c counted[L]) Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	w, err := c.Resource.Watch(ctx, options)
	if err != nil {
		return nil, err
	}
	return watch.Filter(w, func(e watch.Event) (watch.Event, bool) {
		c.count(e.Type)
		return e, true
	}), nil
}

// selected reads the objects that match a selector, and has their events counted.
func selected[L runtime.Object](client func() (kubernetes.Interface, error), resource func(kubernetes.Interface) kube.Resource[L], selector labels.Selector, count func(watch.EventType)) cache.ListerWatcher {
	return kube.ListWatch(kube.Of(client, func(c kubernetes.Interface) kube.Resource[L] {
		return counted[L]{resource(c), count}
	}), func(options *metav1.ListOptions) { options.LabelSelector = selector.String() })
}

func servicesOf(namespace string) func(kubernetes.Interface) kube.Resource[*corev1.ServiceList] {
	return func(c kubernetes.Interface) kube.Resource[*corev1.ServiceList] {
		return c.CoreV1().Services(namespace)
	}
}

func slicesOf(namespace string) func(kubernetes.Interface) kube.Resource[*discoveryv1.EndpointSliceList] {
	return func(c kubernetes.Interface) kube.Resource[*discoveryv1.EndpointSliceList] {
		return c.DiscoveryV1().EndpointSlices(namespace)
	}
}

//nolint:staticcheck // See ownEndpoints.
func endpointsOf(namespace string) func(kubernetes.Interface) kube.Resource[*corev1.EndpointsList] {
	return func(c kubernetes.Interface) kube.Resource[*corev1.EndpointsList] {
		return c.CoreV1().Endpoints(namespace)
	}
}

// newSource returns a source that Run of its watches fills.
func (c *Controller) newSource(id setID, client func() (kubernetes.Interface, error), remote *Remote) *source {
	selector := c.cfg.MirrorSelector
	runner := "mirror-" + id.cluster
	if id.kind == globalSet {
		selector, runner = c.cfg.GlobalSelector, "global-"+id.cluster
	}
	kind := func(of string) string {
		if id.kind == globalSet {
			return "global " + of
		}
		return of
	}
	local := remote == nil
	s := &source{id: id}
	services := kube.WatchConfig[*Service]{
		Cluster: id.cluster, Server: c.servers[id.cluster], Kind: kind("services"), Object: &corev1.Service{},
		ListWatch: selected(client, servicesOf(metav1.NamespaceAll), selector, c.metrics.events(id.cluster+"-serviceWatcher", "service", runner)),
		Keep: func(obj runtime.Object) (*Service, bool) {
			svc, ok := obj.(*corev1.Service)
			if !ok || local && c.isOwn(svc) {
				return nil, false
			}
			return TrimService(svc, c.cfg.LocalFirstSelector), true
		},
		Equal: (*Service).Equal, Notify: c.trigger.Fire, Logger: c.log, Metrics: c.cfg.WatchMetrics,
	}
	endpoints := kube.WatchConfig[*Slice]{
		Cluster: id.cluster, Server: c.servers[id.cluster], Kind: kind("endpointslices"), Object: &discoveryv1.EndpointSlice{},
		ListWatch: selected(client, slicesOf(metav1.NamespaceAll), selector, c.metrics.events(id.cluster+"-endpointSliceWatcher", "endpointslice", runner)),
		Keep: func(obj runtime.Object) (*Slice, bool) {
			sl, ok := obj.(*discoveryv1.EndpointSlice)
			if !ok || local && sl.Namespace == c.cfg.Namespace && sl.Labels[discoveryv1.LabelManagedBy] == managedBy {
				return nil, false
			}
			return TrimSlice(sl)
		},
		Equal: (*Slice).Equal, Notify: c.trigger.Fire, Logger: c.log, Metrics: c.cfg.WatchMetrics,
	}
	if remote != nil {
		services.ResyncPeriod, endpoints.ResyncPeriod = remote.ResyncPeriod, remote.ResyncPeriod
		services.Bounds, endpoints.Bounds = remote.Bounds, remote.Bounds
	}
	s.services, s.slices = kube.NewWatch(services), kube.NewWatch(endpoints)
	c.metrics.watch(id.cluster+"-serviceWatcher", "service", runner, func() int { return count(s.services) })
	c.metrics.watch(id.cluster+"-endpointSliceWatcher", "endpointslice", runner, func() int { return count(s.slices) })
	return s
}

func count[T any](w *kube.Watch[T]) int {
	all, _ := w.Snapshot()
	return len(all)
}

// isOwn reports whether a local service is one that we made, and so nobody's
// origin, whatever its labels.
func (c *Controller) isOwn(s *corev1.Service) bool {
	return s.Namespace == c.cfg.Namespace && c.sums.ownService(s).ours
}

// local watches what is in the mirror namespace, whoever made it, and the
// zones of the nodes.
type local struct {
	services  *kube.Watch[*ownService]
	slices    *kube.Watch[*ownSlice]
	endpoints *kube.Watch[*ownEndpoints] // nil: not asked for
	nodes     *kube.Watch[string]        // zones; nil: nobody asks for them
}

func (c *Controller) newLocal() *local {
	client := func() (kubernetes.Interface, error) { return c.cfg.Client, nil }
	l := &local{
		services: kube.NewWatch(kube.WatchConfig[*ownService]{
			Cluster: c.cfg.Cluster, Kind: "own services", Object: &corev1.Service{},
			ListWatch: kube.ListWatch(kube.Of(client, servicesOf(c.cfg.Namespace)), nil),
			Keep: func(obj runtime.Object) (*ownService, bool) {
				s, ok := obj.(*corev1.Service)
				if !ok {
					return nil, false
				}
				return c.sums.ownService(s), true
			},
			Notify: c.trigger.Fire, Logger: c.log, Metrics: c.cfg.WatchMetrics,
		}),
		slices: kube.NewWatch(kube.WatchConfig[*ownSlice]{
			Cluster: c.cfg.Cluster, Kind: "own endpointslices", Object: &discoveryv1.EndpointSlice{},
			ListWatch: kube.ListWatch(kube.Of(client, slicesOf(c.cfg.Namespace)), nil),
			Keep: func(obj runtime.Object) (*ownSlice, bool) {
				s, ok := obj.(*discoveryv1.EndpointSlice)
				if !ok {
					return nil, false
				}
				return c.sums.ownSlice(s), true
			},
			Notify: c.trigger.Fire, Logger: c.log, Metrics: c.cfg.WatchMetrics,
		}),
	}
	if c.cfg.LegacyEndpoints {
		l.endpoints = kube.NewWatch(kube.WatchConfig[*ownEndpoints]{
			Cluster: c.cfg.Cluster, Kind: "own endpoints", Object: &corev1.Endpoints{}, //nolint:staticcheck // See ownEndpoints.
			ListWatch: kube.ListWatch(kube.Of(client, endpointsOf(c.cfg.Namespace)), nil),
			Keep: func(obj runtime.Object) (*ownEndpoints, bool) {
				e, ok := obj.(*corev1.Endpoints) //nolint:staticcheck // See ownEndpoints.
				if !ok {
					return nil, false
				}
				return c.sums.ownEndpoints(e), true
			},
			Notify: c.trigger.Fire, Logger: c.log, Metrics: c.cfg.WatchMetrics,
		})
	}
	if c.cfg.GlobalSelector != nil && c.cfg.LocalFirstSelector != nil {
		l.nodes = kube.NewWatch(kube.WatchConfig[string]{
			Cluster: c.cfg.Cluster, Kind: "nodes", Object: &corev1.Node{},
			ListWatch: kube.ListWatch(kube.Of(client, kube.Nodes), nil),
			Keep: func(obj runtime.Object) (string, bool) {
				n, ok := obj.(*corev1.Node)
				if !ok {
					return "", false
				}
				return n.Labels[corev1.LabelTopologyZone], true
			},
			Equal:  func(a, b string) bool { return a == b },
			Notify: c.trigger.Fire, Logger: c.log, Metrics: c.cfg.WatchMetrics,
		})
	}
	return l
}

func (l *local) tasks() []run.Task {
	tasks := []run.Task{l.services, l.slices}
	if l.endpoints != nil {
		tasks = append(tasks, l.endpoints)
	}
	if l.nodes != nil {
		tasks = append(tasks, l.nodes)
	}
	return tasks
}

// localView is what is in the mirror namespace at one moment.
type localView struct {
	known     bool // everything has been read since start
	services  []*ownService
	slices    []*ownSlice
	endpoints []*ownEndpoints
}

func (l *local) view() (v localView) {
	var servicesKnown, slicesKnown bool
	v.services, servicesKnown = l.services.Snapshot()
	v.slices, slicesKnown = l.slices.Snapshot()
	v.known = servicesKnown && slicesKnown
	if l.endpoints != nil {
		var endpointsKnown bool
		v.endpoints, endpointsKnown = l.endpoints.Snapshot()
		v.known = v.known && endpointsKnown
	}
	return v
}

// zones returns the zones of the local nodes, and whether they are known. A
// node without one is in the zone with the empty name, which is what kube-proxy
// compares hints with there. So it is where there are no nodes at all.
func (l *local) zones() (zones []string, known bool) {
	if l.nodes == nil {
		return nil, true
	}
	zones, known = l.nodes.Snapshot()
	slices.Sort(zones)
	zones = slices.Compact(zones)
	if len(zones) == 0 {
		zones = []string{""}
	}
	return zones, known
}
