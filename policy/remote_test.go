package policy

import (
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/synctest"
)

// still returns a controller of the remotes gcp and merit that doesn't run, with all pods read.
func still(t testing.TB, adjust func(*Config)) *Controller {
	cfg := Config{Cluster: "aws", Labels: domain(), Calico: access(t, kubetest.NewAPI()), Metrics: NewMetrics(), Logger: slog.New(slog.DiscardHandler)}
	for _, name := range []string{"gcp", "merit"} {
		cfg.Remotes = append(cfg.Remotes, RemoteConfig{Rules: Rules{Cluster: name}, Client: func() (kube.Client, error) { return nil, nil }})
	}
	if adjust != nil {
		adjust(&cfg)
	}
	c := New(cfg)
	for _, r := range c.remotes {
		r.synced = true
	}
	return c
}

// TestSetsBeyondTheBoundsAreNotCompared adds many more sets to a remote than its bounds allow.
func TestSetsBeyondTheBoundsAreNotCompared(t *testing.T) {
	const most = 3
	b := newBench(t, func(cfg *Config) { cfg.Remotes[0].Rules.MaxSets = 2*most - 1 })
	for i := range 1000 {
		p := podWith(fmt.Sprint("p-", i), fmt.Sprint("a-", i), "10.4.0.1")
		b.update(nil, &p)
	}
	b.settle()
	if n := len(b.ledger.All()); n != most {
		t.Errorf("%d sets are written", n)
	}
	existing, others := b.remote.everything()
	if len(existing) != most || len(others) != most {
		t.Errorf("%d existing sets and %d others are compared, want those within bounds", len(existing), len(others))
	}
}

// TestExistingSetsKeepTheirPlaces begins with sets of an earlier run, of which one has fewer addresses
// than it needs, and none has a place yet.
func TestExistingSetsKeepTheirPlaces(t *testing.T) {
	for range 20 {
		b := newBench(t, func(cfg *Config) { cfg.Remotes[0].Rules.MaxAddresses = 8 })
		for n := range 10 {
			p := podWith(fmt.Sprint("p-", n), "a", fmt.Sprintf("10.4.0.%d", n))
			b.update(nil, &p)
		}
		for n, name := range []string{"b", "c"} {
			p := podWith(name, name, fmt.Sprintf("10.4.1.%d", n))
			b.update(nil, &p)
			b.store("gcp-ns-"+name, ours("gcp-ns-"+name, gcp(name), p.V4.String()))
		}
		b.store("gcp-ns-a", ours("gcp-ns-a", gcp("a"), "10.4.0.5"))
		for _, id := range []Identity{gcp("a"), gcp("b"), gcp("c")} {
			b.write(id)
		}
		b.settle()
		for name, want := range map[string]int{"a": 2, "b": 1, "c": 1} {
			if o := b.ledger.Get("gcp-ns-" + name); o == nil || len(o.Addrs) != want {
				t.Errorf("%s: %v, want %d addresses", name, o, want)
			}
		}
	}
}

// TestSkippedPodsDontFloodTheLog has a pod whose address is invalid and valid in turn.
func TestSkippedPodsDontFloodTheLog(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := startRig(t, kubetest.NewAPI(), nil)
		for n := range 150 {
			r.put(t, "p", "a", []string{"10.4.0.1", "127.0.0.1"}[n%2])
			elapse(time.Second)
		}
		log := r.log.String()
		if warned, ended := strings.Count(log, "in no set"), strings.Count(log, "no pods are skipped"); warned != 3 || ended != 3 {
			t.Errorf("%d warnings in 150 s, and %d ends, want 3 of each:\n%s", warned, ended, log)
		}
	})
}

// TestCreatedObjectsAreObservedBeforeTheWatch compares a set several times after its objects were
// created, before the watch shows them.
func TestCreatedObjectsAreObservedBeforeTheWatch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		sets := kubetest.NewAPI()
		sets.Hook(func(h *kubetest.Hooks) { h.Mute = true })
		r := startRig(t, sets, func(cfg *Config) { cfg.ShardSize = 2 })
		for n := range 4 {
			r.put(t, fmt.Sprint(n), "a", fmt.Sprintf("10.4.0.%d", n+10))
		}
		elapse(100 * time.Millisecond)
		r.put(t, "first", "a", "10.4.0.1")
		elapse(100 * time.Millisecond)
		r.wantSets(t, map[string]string{"gcp-ns-a": "10.4.0.10/32 10.4.0.11/32", "gcp-ns-a-2": "10.4.0.12/32 10.4.0.13/32", "gcp-ns-a-3": "10.4.0.1/32"})
		for n := range 4 {
			r.drop(fmt.Sprint(n))
		}
		elapse(100 * time.Millisecond)
		r.wantSets(t, map[string]string{"gcp-ns-a": "10.4.0.1/32"})
	})
}

// TestNoEventWaitsLongerThanAPass changes addresses of pods 200 times a second, in a hundred sets.
// The API server answers at once, so that the delays are those of the design.
func TestNoEventWaitsLongerThanAPass(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const sets, events = 100, 1000
		api := kubetest.NewAPI()
		var mu sync.Mutex
		since := map[string]time.Time{} // when a set's pod changed, until it is written
		var longest time.Duration
		writes := 0
		r := startRig(t, api, nil)
		api.Hook(func(h *kubetest.Hooks) {
			h.Before = func(r kubetest.Request) {
				mu.Lock()
				defer mu.Unlock()
				longest = max(longest, time.Since(since[r.Name]))
				delete(since, r.Name)
				writes++
			}
		})
		for n := range events {
			set := fmt.Sprint("app-", n%sets)
			mu.Lock()
			since["gcp-ns-"+set] = time.Now()
			mu.Unlock()
			r.put(t, set, set, netip.AddrFrom4([4]byte{10, 4, byte(n >> 8), byte(n)}).String())
			elapse(time.Second / 200)
		}
		elapse(time.Second)
		synctest.Wait()
		if longest > passSpacing || len(since) > 0 || writes != events {
			t.Errorf("an event waited %v, want %v at most; %d writes for %d events; %d not written", longest, passSpacing, writes, events, len(since))
		}
	})
}
