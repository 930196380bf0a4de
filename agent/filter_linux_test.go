package agent

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/logtest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/routes"
)

// filterMetrics are the metrics of source filter and exit filter, by name, summed up.
func filterMetrics(t *testing.T, a *agent) map[string]float64 {
	t.Helper()
	families, err := a.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		if name := f.GetName(); strings.Contains(name, "filter") || strings.Contains(name, "forged") || strings.Contains(name, "stopped") {
			for _, m := range f.GetMetric() {
				values[name] += m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return values
}

func TestStateOfThePacketFilter(t *testing.T) {
	nstest.Root(t)
	const (
		enforced, forged = "semaphore_wg_source_filter_enforced", "semaphore_wg_forged_packets_total"
		exit, stopped    = "semaphore_wg_exit_filter_enforced", "semaphore_wg_stopped_packets_total"
	)
	a, err := newAgent(testConfig(t), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer a.close()
	expect := func(what string, source, leaving string, values map[string]float64) {
		t.Helper()
		if rep := a.status().(statuspage.Agent); rep.Filter.State != source || rep.Exit.State != leaving {
			t.Errorf("%s: source filter %s, exit filter %s, want %s and %s", what, rep.Filter.State, rep.Exit.State, source, leaving)
		}
		if diff := cmp.Diff(values, filterMetrics(t, a)); diff != "" {
			t.Errorf("%s: metrics (-want +got):\n%s", what, diff)
		}
	}
	if _, err := a.host.filter.Sync(t.Context(), routes.Ruleset{}); err != nil { // of an earlier test
		t.Fatal(err)
	}
	sync := func() {
		t.Helper()
		if _, err := a.host.syncFilter(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	expect("before the first pass", statuspage.FilterNotEnforced, statuspage.FilterNotEnforced, map[string]float64{enforced: 0, exit: 0})
	sync()
	all := map[string]float64{enforced: 1, forged: 0, exit: 1, stopped: 0}
	expect("after it", statuspage.FilterEnforced, statuspage.FilterEnforced, all)

	// The rules of a remote that is no longer configured are removed.
	before, remotes := a.ruleset(), a.remotes
	a.remotes = remotes[:1]
	defer func() { a.remotes = remotes }()
	sync()
	if still, err := a.host.filter.Status(t.Context(), before); err != nil || still.Arrival || still.Exit {
		t.Errorf("the rules of a remote that is gone: %v, %v", still, err)
	}
	expect("with one remote less", statuspage.FilterEnforced, statuspage.FilterEnforced, all)

	// The exit filter can't be switched off.
	a.cfg.SourceFilter = false
	sync()
	expect("switched off", statuspage.FilterOff, statuspage.FilterEnforced, map[string]float64{exit: 1, stopped: 0})
	if still, err := a.host.filter.Status(t.Context(), routes.Ruleset{Origins: before.Origins[:1]}); err != nil || still.Arrival {
		t.Errorf("switched off, and the rules are there: %v, %v", still, err)
	}
}

// The exit filter is there before the first route.
func TestRoutesWaitForTheExitFilter(t *testing.T) {
	nstest.Root(t)
	var logs logtest.Buffer
	a, err := newAgent(testConfig(t), slog.New(slog.NewTextHandler(&logs, nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer a.close()
	// Those of an earlier test.
	_, routesErr := a.host.table.Sync(t.Context(), nil)
	_, filterErr := a.host.filter.Sync(t.Context(), routes.Ruleset{})
	earlier := len(logs.String())
	if err := errors.Join(routesErr, filterErr, hostPass(t, a)); err != nil {
		t.Fatal(err)
	}
	text := logs.String()[earlier:]
	filter, route := strings.Index(text, "packet filter installed"), strings.Index(text, "route installed")
	if filter < 0 || route < filter {
		t.Errorf("not in this order:\n%s", text)
	}
}

// Packets to pods of a remote that is no longer configured are refused for the time that
// controllers retain its mirrors and network sets.
func TestRemovedRemotesAreRefusedForATime(t *testing.T) {
	nstest.QuickRoot(t)
	gone := netip.MustParsePrefix("fd06::/48")
	start := func(change func(*config.Wireguard)) *agent {
		t.Helper()
		cfg := testConfig(t)
		cfg.RemovalGrace = time.Hour
		change(&cfg)
		a, err := newAgent(cfg, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if err := hostPass(t, a); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_, fenceErr := a.host.table.Fence(context.Background(), nil)
			_, routesErr := a.host.table.Sync(context.Background(), nil)
			_, filterErr := a.host.filter.Sync(context.Background(), routes.Ruleset{})
			check(t, errors.Join(fenceErr, routesErr, filterErr, a.close()))
		})
		return a
	}
	refused := func(what string, a *agent, want bool) {
		t.Helper()
		fenced, err := a.host.table.Fenced()
		if err != nil || slices.Contains(fenced, gone) != want {
			t.Errorf("%s: rules for %v, %v, refused: want %v", what, fenced, err, want)
		}
		rules := a.ruleset()
		exits := slices.ContainsFunc(rules.Exits, func(e routes.Exit) bool { return e.Device == "" && slices.Contains(e.Subnets, gone) })
		arrive := !slices.ContainsFunc(rules.Origins, func(o routes.Origin) bool { return o.Device == "" && slices.Contains(o.Subnets, gone) })
		if state, err := a.host.filter.Status(t.Context(), rules); err != nil || !state.Exit || !state.Arrival || exits != want || arrive == want {
			t.Errorf("%s: filter %+v, %v, refused: %v, allowed as sources: %v, want %v", what, state, err, exits, arrive, want)
		}
		if rep := a.status().(statuspage.Agent).Removed; (rep != nil) != want {
			t.Errorf("%s: reported %+v", what, rep)
		}
	}
	one := func(cfg *config.Wireguard) { cfg.Remotes = cfg.Remotes[:1] }
	start(func(*config.Wireguard) {})
	refused("one process later", start(one), true)
	second := start(one)
	refused("two processes later", second, true)
	second.host.removed.until = time.Now()
	if err := hostPass(t, second); err != nil {
		t.Fatal(err)
	}
	refused("when the time is over", second, false)
	refused("and later", start(one), false)

	start(func(*config.Wireguard) {})
	refused("without a time", start(func(cfg *config.Wireguard) { one(cfg); cfg.RemovalGrace = 0 }), false)
	start(func(*config.Wireguard) {})
	a := start(func(cfg *config.Wireguard) {
		cfg.Remotes[1].Name, cfg.Remotes[1].PodSubnets = "other", []netip.Prefix{netip.MustParsePrefix("fd06:0:0:1::/64")}
	})
	rep := a.status().(statuspage.Agent).Removed
	if rep == nil || len(rep.PodSubnets) != 16 || slices.ContainsFunc(rep.PodSubnets, func(s string) bool { return netip.MustParsePrefix(s).Overlaps(a.remotes[1].cfg.PodSubnets[0]) }) {
		t.Errorf("beside another remote's: %+v", rep)
	}
	start(func(*config.Wireguard) {})
	b := start(one)
	b.host.removed.exclude([]routes.Occupied{{Prefix: netip.MustParsePrefix("fd06::7/128"), What: "this node"}})
	if rep := b.status().(statuspage.Agent).Removed; rep != nil {
		t.Errorf("of this node's: %+v", rep)
	}
}

// hostPass makes a pass of the agent's host.
func hostPass(t *testing.T, a *agent) error {
	t.Helper()
	i := slices.IndexFunc(a.table, func(t *task) bool { return t.name == "host" })
	return a.table[i].pass(t.Context())
}

func TestStopsHaveATime(t *testing.T) {
	var s stops
	start := time.Unix(1e9, 0)
	for i, step := range []struct {
		count uint64
		last  int // seconds; -1: not since start
	}{{5, -1}, {5, -1}, {6, 2}, {6, 2}, {0, 2}, {1, 5}} {
		now := start.Add(time.Duration(i) * time.Second)
		s.note(now, routes.Dropped{"wireguard.gcp": step.count})
		want := start.Add(time.Duration(step.last) * time.Second)
		if step.last < 0 {
			want = time.Time{}
		}
		if got, recent := s.last(now, "wireguard.gcp"); !got.Equal(want) || recent != (step.last >= 0) {
			t.Errorf("step %d: %s, recently %v, want %s", i, got, recent, want)
		}
	}
	// A minute after the last one they are history.
	over := start.Add(5*time.Second + time.Minute)
	s.note(over, routes.Dropped{"wireguard.gcp": 1})
	if _, recent := s.last(over.Add(-time.Second), "wireguard.gcp"); !recent {
		t.Error("after 59 s")
	}
	if _, recent := s.last(over, "wireguard.gcp"); recent {
		t.Error("after a minute")
	}
}

// Without nf_tables in the kernel the agent doesn't start, and removes what there is.
func TestNodeWithoutNetfilter(t *testing.T) {
	nstest.Root(t)
	err := nstest.WithoutNetfilter(nil, func() error {
		cfg := testConfig(t)
		if err := serve(cfg, slog.New(slog.DiscardHandler)); !errors.Is(err, routes.ErrNoFilter) || !strings.Contains(err.Error(), "nft_fib_inet") {
			t.Errorf("it ends with %v", err)
		}
		cfg.Cleanup = true
		return serve(cfg, slog.New(slog.DiscardHandler))
	})
	// Only the unreachable API server may fail.
	if err == nil || strings.Contains(err.Error(), "nf_tables") {
		t.Errorf("cleanup: %v", err)
	}
}
