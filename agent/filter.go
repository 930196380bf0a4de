package agent

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/routes"
)

// ruleset returns where packets of remotes arrive and leave. Those of refused and of removed remotes
// don't arrive.
func (a *agent) ruleset() routes.Ruleset {
	rules := routes.Ruleset{Mark: a.cfg.Mark, Ports: map[string]int{}, Map: a.mapping()}
	if _, port, err := net.SplitHostPort(a.cfg.ListenAddress); err == nil {
		rules.Status, _ = strconv.Atoi(port)
	}
	if a.cfg.SourceFilter {
		for _, r := range a.admitted() {
			rules.Origins = append(rules.Origins, routes.Origin{Device: r.device.Name(), Subnets: r.cfg.PodSubnets})
		}
	}
	for _, r := range a.remotes {
		if r.refused() == nil {
			port, known := r.device.ListenPort()
			if !known {
				port = r.cfg.ListenPort
			}
			rules.Ports[r.device.Name()] = port
			rules.Shared = append(rules.Shared, routes.Origin{Device: r.device.Name(), Subnets: *r.shared.Load()})
		} else {
			rules.Gone = append(rules.Gone, r.device.Name())
		}
		rules.Exits = append(rules.Exits, routes.Exit{Device: r.device.Name(), Subnets: r.guarded()})
	}
	rules.Gone = append(rules.Gone, a.host.removed.links()...)
	if removed := a.host.removed.subnets(time.Now()); len(removed) > 0 {
		rules.Exits = append(rules.Exits, routes.Exit{Subnets: removed})
		if a.cfg.SourceFilter {
			rules.Origins = append(rules.Origins, routes.Origin{Subnets: removed})
		}
	}
	return rules
}

// syncFilter installs the packet filter. It notes the counts, so that their changes have a time
// without a reader of status or metrics.
func (h *host) syncFilter(ctx context.Context) (effect, error) {
	if err := h.findRemoved(ctx); err != nil {
		return effect{}, err
	}
	a := h.agent
	shared := make([]*[]netip.Prefix, len(a.remotes))
	for i, r := range a.remotes {
		shared[i] = r.shared.Load()
	}
	rules := a.ruleset()
	changed, err := h.filter.Sync(ctx, rules)
	for i, r := range a.remotes {
		if r.exempt.Swap(shared[i]) != shared[i] {
			a.happened(hostPrepared, r)
		}
	}
	state, statusErr := h.filter.Status(ctx, rules)
	if state.Exit {
		h.stops.note(time.Now(), state.Stopped)
	}
	// What can't be read doesn't change whether addresses are translated.
	if statusErr == nil || errors.Is(statusErr, routes.ErrNoFilter) {
		h.noteTranslation(ctx, len(rules.Map) > 0 && state.Translation)
	}
	return effect{rules, changed}, err
}

// stops remembers when the exit filter last dropped packets, by device. The zero value is
// ready to use.
type stops struct {
	mu    sync.Mutex
	count routes.Dropped
	at    map[string]time.Time
}

// note compares the counts with the last ones. Those that were there at the first time are
// of an unknown time.
func (s *stops) note(now time.Time, counts routes.Dropped) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := s.count == nil
	if first {
		s.count, s.at = routes.Dropped{}, map[string]time.Time{}
	}
	for device, n := range counts {
		if n != s.count[device] && n > 0 && !first {
			s.at[device] = now
		}
		s.count[device] = n
	}
}

// recently is for how long packets that were dropped are a fault: the count alone says nothing
// about now.
const recently = time.Minute

// last returns when packets for a device were last dropped, and whether that was recently; the
// zero time: not since start.
func (s *stops) last(now time.Time, device string) (at time.Time, recent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at = s.at[device]
	return at, now.Sub(at) < recently
}

// filterStatus reads the states of source filter, exit filter and translation, and their counts
// of dropped packets, which are nil for a part that is not enforced.
func (a *agent) filterStatus(ctx context.Context) (source, exit statuspage.Filter, translation *statuspage.Translation, state routes.State) {
	state, err := a.host.filter.Status(ctx, a.ruleset())
	part := func(enforced bool) statuspage.Filter {
		switch {
		case enforced:
			return statuspage.Filter{State: statuspage.FilterEnforced}
		case err != nil && !errors.Is(err, routes.ErrNoFilter):
			return statuspage.Filter{State: statuspage.FilterUnknown, Error: err.Error()}
		}
		rep, why := statuspage.Filter{State: statuspage.FilterNotEnforced}, err
		if failed := a.find("packet filter").Err(); failed != nil {
			why = failed // why the installation failed
		}
		if why != nil {
			rep.Error = why.Error()
		}
		return rep
	}
	source, exit = part(state.Arrival), part(state.Exit)
	translation = a.translationStatus(state, part(state.Translation))
	if exit.State == statuspage.FilterEnforced {
		a.host.stops.note(time.Now(), state.Stopped)
	}
	if !a.cfg.SourceFilter {
		source, state.Forged = statuspage.Filter{State: statuspage.FilterOff}, nil
	}
	return source, exit, translation, state
}

// filterCollector reads the metrics of source filter and exit filter at each scrape.
type filterCollector struct {
	agent                                    *agent
	enforced, dropped, exitEnforced, stopped *prometheus.Desc
	translated, untranslated                 *prometheus.Desc
}

func newFilterCollector(a *agent) *filterCollector {
	perRemote := []string{"cluster", "device"}
	return &filterCollector{
		agent: a,
		enforced: prometheus.NewDesc("semaphore_wg_source_filter_enforced",
			"1 if packets with a remote pod's source address that did not arrive through the tunnel are dropped, else 0; absent when that is switched off.", nil, nil),
		dropped: prometheus.NewDesc("semaphore_wg_forged_packets_total",
			"Packets dropped because they had the source address of a pod of this remote and did not arrive through its device.", perRemote, nil),
		exitEnforced: prometheus.NewDesc("semaphore_wg_exit_filter_enforced",
			"1 if packets to remote pods that would not leave through the tunnel are dropped, else 0.", nil, nil),
		stopped: prometheus.NewDesc("semaphore_wg_stopped_packets_total",
			"Packets to pods of this remote that were dropped because they would have left through another device than its own, in plaintext.", perRemote, nil),
		translated: prometheus.NewDesc("semaphore_wg_translation_enforced",
			"1 if addresses of pods are translated by the map of pod subnets, else 0; absent without a map.", nil, nil),
		untranslated: prometheus.NewDesc("semaphore_wg_untranslated_packets_total",
			"Packets dropped because they would have left with the real address of a pod of this cluster, or to a virtual one.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *filterCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.enforced
	ch <- c.dropped
	ch <- c.exitEnforced
	ch <- c.stopped
	ch <- c.translated
	ch <- c.untranslated
}

// Collect implements prometheus.Collector.
func (c *filterCollector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), statusTimeout)
	defer cancel()
	source, exit, translation, state := c.agent.filterStatus(ctx)
	if translation != nil {
		enforced := 0.
		if translation.Untranslated != nil {
			enforced = 1
			ch <- prometheus.MustNewConstMetric(c.untranslated, prometheus.CounterValue, float64(*translation.Untranslated))
		}
		ch <- prometheus.MustNewConstMetric(c.translated, prometheus.GaugeValue, enforced)
	}
	c.collect(ch, source, state.Forged, c.enforced, c.dropped)
	c.collect(ch, exit, state.Stopped, c.exitEnforced, c.stopped)
}

func (c *filterCollector) collect(ch chan<- prometheus.Metric, rep statuspage.Filter, counts routes.Dropped, enforced, dropped *prometheus.Desc) {
	switch rep.State {
	case statuspage.FilterEnforced:
		ch <- prometheus.MustNewConstMetric(enforced, prometheus.GaugeValue, 1)
	case statuspage.FilterOff:
		return
	default:
		ch <- prometheus.MustNewConstMetric(enforced, prometheus.GaugeValue, 0)
		return // The counters were not read.
	}
	for _, r := range c.agent.remotes {
		device := r.device.Name()
		ch <- prometheus.MustNewConstMetric(dropped, prometheus.CounterValue, float64(counts[device]), r.cfg.Name, device)
	}
}
