package mirror

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-semaphore/kube-semaphore/internal/keep"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
)

const metricsPrefix = "semaphore_service_mirror_"

// Metrics is the collector of a controller. Metrics of watches and of the queue have the
// names of the original tool.
type Metrics struct {
	controller *Controller

	watcherEvents, writes, withdrawals, adds, retries *prometheus.CounterVec
	latency, duration                                 *prometheus.HistogramVec

	watcherObjects, depth, unfinished, longest, unconfigured *prometheus.Desc
	totals                                                   []gauge[totals]
	clusters                                                 []gauge[clusterTotals]

	vectors *prometheus.Registry // of those that are counted

	mu      sync.Mutex
	watches []watched
}

// gauge is a metric that is read from sums.
type gauge[T any] struct {
	*prometheus.Desc
	of func(*T) int
}

// watched counts the objects of one watch.
type watched struct {
	watcher, kind, runner string
	objects               func() int
}

func newMetrics() *Metrics {
	vectors := prometheus.NewRegistry()
	with := promauto.With(vectors)
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(metricsPrefix+name, help, labels, nil)
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return with.NewCounterVec(prometheus.CounterOpts{Name: metricsPrefix + name, Help: help}, labels)
	}
	histogram := func(name, help string) *prometheus.HistogramVec {
		return with.NewHistogramVec(prometheus.HistogramOpts{
			Name: metricsPrefix + name, Help: help,
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"name"})
	}
	m := &Metrics{
		vectors:        vectors,
		watcherEvents:  counter("kube_watcher_events_total", "Events received, by watcher, kind and type.", "watcher", "kind", "event_type", "runner"),
		watcherObjects: desc("kube_watcher_objects", "Objects watched, by watcher and kind.", "watcher", "kind", "runner"),
		writes:         counter("writes_total", "Requests that change objects, those of imports in all namespaces included, by kind and verb.", "kind", "verb"),

		withdrawals: counter("node_withdrawals_total", "How often the endpoints on a node of a remote were withdrawn because the path to it was down.", "cluster"),

		depth:      desc("queue_depth", "Services that wait to be looked at.", "name"),
		unfinished: desc("queue_unfinished_work_seconds", "How long the services that are being written have been, in all.", "name"),
		longest:    desc("queue_longest_running_processor_seconds", "How long the one that takes longest has been written.", "name"),
		adds:       counter("queue_adds_total", "How often a service was queued.", "name"),
		retries:    counter("queue_retries_total", "How often a service was queued again after an error.", "name"),
		latency:    histogram("queue_latency_duration_seconds", "How long services waited in the queue."),
		duration:   histogram("queue_work_duration_seconds", "How long comparing and writing a service took."),

		unconfigured: desc("unconfigured_objects", "Services and EndpointSlices of a cluster that is no longer configured.", "cluster"),
	}
	of := func(name, help string, of func(*clusterTotals) int) {
		m.clusters = append(m.clusters, gauge[clusterTotals]{desc(name, help, "cluster"), of})
	}
	of("services", "Local services by the cluster that they are from; global ones have none.", func(c *clusterTotals) int { return c.services })
	of("endpoints", "Endpoints of local services by the cluster that they are from.", func(c *clusterTotals) int { return c.endpoints })
	of("endpoints_refused", "Endpoints that are left out, by cluster: their addresses are outside of its pod subnets, or none of a pod.", func(c *clusterTotals) int { return c.refused })
	of("over_bounds", "Services of a remote that are left out, or lack slices or addresses, for the sake of its bounds.", func(c *clusterTotals) int { return c.over })
	of("waiting_writes", "Writes for a cluster that wait because more than a limit of bytes was written for it.", func(c *clusterTotals) int { return c.waiting })
	of("endpoints_withdrawn", "Endpoints that are sent nothing because the path to their node is down, by cluster.", func(c *clusterTotals) int { return c.withdrawn })
	of("nodes_withdrawn", "Nodes of a remote whose endpoints are withdrawn.", func(c *clusterTotals) int { return c.withdrawnNodes })
	of("cluster_drained", "Whether a cluster says that it is drained.", func(c *clusterTotals) int { return truth(c.drained) })
	all := func(name, help string, of func(*totals) int) {
		m.totals = append(m.totals, gauge[totals]{desc(name, help), of})
	}
	all("imports", "Imports of the Multi-Cluster Services API.", func(t *totals) int { return t.imports })
	all("global_conflicts", "Disagreements between the services of a global service.", func(t *totals) int { return t.conflicts })
	all("names_taken", "Services that are not copied, because another one has their name.", func(t *totals) int { return t.taken })
	all("global_services_outdated", "Global services without endpoints of clusters out of contact.", func(t *totals) int { return t.outdated })
	all("services_failing", "Services that are not what they must be, because writing failed.", func(t *totals) int { return t.failing })
	all("services_blocked", "Services whose name a foreign object has; they count as failing as well.", func(t *totals) int { return t.blocked })
	all("services_held", "Services that stay as they are until their cluster has been heard of.", func(t *totals) int { return t.held })
	all("services_lingering", "Services from remotes that are no longer configured, which go when their grace is over; they are held as well.", func(t *totals) int { return t.lingering })
	all("objects_overridden", "Objects of services that an admission policy or another client changes again after each write.", func(t *totals) int { return t.overridden })
	all("path_reports", "Reports of ready local nodes that some path is down.", func(t *totals) int { return t.reports })
	all("path_report_faults", "Reports of paths that don't count, or only in part, because they can't be read.", func(t *totals) int { return t.reportFaults })
	all("leader", "Whether this replica writes.", func(t *totals) int { return truth(t.leading) })
	return m
}

// Metrics returns a collector, to be registered once.
func (c *Controller) Metrics() *Metrics { return c.metrics }

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	m.vectors.Describe(ch)
	for _, d := range []*prometheus.Desc{m.watcherObjects, m.depth, m.unfinished, m.longest, m.unconfigured} {
		ch <- d
	}
	for _, g := range m.totals {
		ch <- g.Desc
	}
	for _, g := range m.clusters {
		ch <- g.Desc
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.vectors.Collect(ch)
	send := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	m.mu.Lock()
	watches := slices.Clone(m.watches)
	m.mu.Unlock()
	for _, w := range watches {
		send(m.watcherObjects, float64(w.objects()), w.watcher, w.kind, w.runner)
	}
	depth, unfinished, longest := m.queue()
	send(m.depth, float64(depth), queueName)
	send(m.unfinished, unfinished, queueName)
	send(m.longest, longest, queueName)
	t := m.controller.totals()
	for cluster, of := range t.clusters {
		for _, g := range m.clusters {
			send(g.Desc, float64(g.of(&of)), cluster)
		}
	}
	send(m.clusters[0].Desc, float64(t.global), "")
	for _, former := range t.former {
		send(m.unconfigured, float64(former.Services+former.Slices), former.Name)
	}
	for _, g := range m.totals {
		send(g.Desc, float64(g.of(&t)))
	}
}

// truth converts a bool to a gauge value.
func truth(is bool) int {
	if is {
		return 1
	}
	return 0
}

// wrote counts a request.
func (m *Metrics) wrote(kind, verb string) { m.writes.WithLabelValues(kind, verb).Inc() }

// events returns what counts the events of a watch.
func (m *Metrics) events(watcher, kind, runner string) func(watch.EventType) {
	counters := map[watch.EventType]prometheus.Counter{}
	for _, t := range []watch.EventType{watch.Added, watch.Modified, watch.Deleted, watch.Bookmark, watch.Error} {
		counters[t] = m.watcherEvents.WithLabelValues(watcher, kind, string(t), runner)
	}
	return func(t watch.EventType) {
		if c := counters[t]; c != nil {
			c.Inc()
		}
	}
}

// watch adds a watch whose objects are counted.
func (m *Metrics) watch(watcher, kind, runner string, objects func() int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.watches = append(m.watches, watched{watcher, kind, runner, objects})
}

// totals are sums over all services.
type totals struct {
	clusters                                                      map[string]clusterTotals
	global, imports, conflicts, taken, outdated, failing, blocked int
	held, lingering, overridden, reports, reportFaults            int
	leading                                                       bool
	former                                                        []statuspage.FormerCluster
}

type clusterTotals struct {
	services, endpoints, refused, over int
	waiting                            int // writes
	withdrawn, withdrawnNodes          int
	drained                            bool
	bounds                             string // what is omitted because of the quota
}

// add adds a service.
func (t *totals) add(l *surveyed) {
	w := l.want
	switch {
	case w.Absent:
	case w.Origin.Global():
		t.global++
	case w.Origin.Import():
		t.imports++
	default:
		of := t.clusters[w.Origin.Cluster]
		of.services++
		t.clusters[w.Origin.Cluster] = of
	}
	t.conflicts += len(w.Conflicts)
	t.taken += len(w.Refused)
	t.outdated += truth(w.Outdated)
	t.held += truth(l.status.Held != "")
	t.lingering += truth(l.status.RemovedAt != nil)
	for cluster, tally := range w.Tallies {
		of := t.clusters[cluster]
		of.endpoints += tally.Taken
		of.refused += tally.Rejected
		of.withdrawn += tally.Withdrawn
		t.clusters[cluster] = of
	}
}

// queueName is the label of the metrics of what waits to be written.
const queueName = "services"

// applied records the outcome of writing a service.
func (m *Metrics) applied(o keep.Outcome[string]) {
	m.latency.WithLabelValues(queueName).Observe(o.Waited.Seconds())
	m.duration.WithLabelValues(queueName).Observe(o.Took.Seconds())
	if o.Err != nil && !errors.Is(o.Err, keep.ErrWaits) {
		m.retries.WithLabelValues(queueName).Inc()
	}
}

// queue returns the number of waiting services, and the total and the longest duration of
// running writes in seconds.
func (m *Metrics) queue() (depth int, unfinished, longest float64) {
	writer := m.controller.leading()
	if writer == nil {
		return 0, 0, 0
	}
	for _, n := range writer.Backlog() {
		depth += n
	}
	running := writer.Running(time.Now())
	for _, took := range running {
		unfinished += took.Seconds()
		longest = max(longest, took.Seconds())
	}
	return max(0, depth-len(running)), unfinished, longest
}
