package policy

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
)

// still returns a controller of the remotes gcp and merit that doesn't run, with all pods read.
func still(t *testing.T, adjust func(*Config)) *Controller {
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

// TestChangesOfSetsDontWaitForAPass holds the lock of a remote, as a long pass does, while
// changes of its sets are added.
func TestChangesOfSetsDontWaitForAPass(t *testing.T) {
	c := still(t, nil)
	r := c.remotes["merit"]
	r.mu.Lock()
	defer r.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		o := &Observed{Object: Object{Name: "merit-ns-a", Identity: Identity{"merit", "ns", "a"}}, Owned: true}
		r.enqueue([]kube.Change[Observed]{{Key: o.Name, After: o}}, false)
		c.everything()
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("waits for a remote's pass")
	}
}

// TestChangesOfSetsAreProcessedOnce checks that a pass processes all changes since the previous
// pass, and that the next pass doesn't process them again.
func TestChangesOfSetsAreProcessedOnce(t *testing.T) {
	r := still(t, nil).remotes["gcp"]
	o := &Observed{Object: Object{Name: "gcp-ns-a", Identity: gcp("a")}, Owned: true}
	r.enqueue([]kube.Change[Observed]{{Key: o.Name, After: o}}, false)
	r.enqueue(nil, true)
	r.enqueue([]kube.Change[Observed]{{Key: o.Name, Before: o}}, false)
	if changes, all := r.drain(); len(changes) != 2 || !all {
		t.Errorf("%d changes, everything: %v", len(changes), all)
	}
	if changes, all := r.drain(); len(changes) > 0 || all {
		t.Errorf("%d changes, everything: %v, once more", len(changes), all)
	}
}

// TestSetsBeyondTheBoundsAreNotCompared adds many more sets to a remote than its bounds allow.
func TestSetsBeyondTheBoundsAreNotCompared(t *testing.T) {
	const most = 3
	r := still(t, func(cfg *Config) { cfg.Remotes[0].Rules.MaxSets = most }).remotes["gcp"]
	for i := range 1000 {
		p := podWith(fmt.Sprint("p-", i), fmt.Sprint("a-", i), "10.4.0.1")
		r.members.Update(nil, &p, time.Now())
	}
	if n := len(r.members.Touched()); n != most {
		t.Errorf("%d sets are touched", n)
	}
	r.objects[gcp("a-999")] = map[string]struct{}{"gcp-ns-a-999": {}}
	if all := r.all(); len(all) != most+1 || !slices.Contains(all, gcp("a-999")) {
		t.Errorf("%d sets are compared, want those within bounds and the existing one", len(all))
	}
}

// TestCreatedObjectsAreObservedBeforeTheWatch compares a set several times after its objects were
// created, before a pass processes the events of the watch.
func TestCreatedObjectsAreObservedBeforeTheWatch(t *testing.T) {
	c := still(t, func(cfg *Config) { cfg.ShardSize = 2 })
	r := c.remotes["gcp"]
	version := 0
	write := func() (changes []string) {
		have, want, err := r.state(gcp("a"))
		if err != nil {
			t.Fatal(err)
		}
		for _, change := range Diff(have, want) {
			version++
			c.ledger.Wrote(&Observed{Object: *change.Want, Owned: true, Exact: true, UID: "u", ResourceVersion: fmt.Sprint(version)})
			changes = append(changes, change.Name)
		}
		return changes
	}
	add := func(n int) {
		p := podWith(fmt.Sprint("p-", n), "a", fmt.Sprintf("10.4.0.%d", n))
		r.members.Update(nil, &p, time.Now())
	}
	for n := range 4 {
		add(n + 10)
	}
	if diff := cmp.Diff([]string{"gcp-ns-a", "gcp-ns-a-2"}, write()); diff != "" {
		t.Fatalf("written first (-want +got):\n%s", diff)
	}
	add(1)
	for _, want := range [][]string{{"gcp-ns-a-3"}, nil, nil} {
		if diff := cmp.Diff(want, write()); diff != "" {
			t.Errorf("written then (-want +got):\n%s", diff)
		}
	}
	if len(r.names[gcp("a")]) != 3 || len(r.claims) != 3 {
		t.Errorf("names %v, claims %v", r.names, r.claims)
	}
	r.setsChanged(c.ledger.Changes())
	if write() != nil || len(r.names) > 0 || len(r.claims) > 0 {
		t.Errorf("names %v, claims %v of existing objects", r.names, r.claims)
	}
}

// TestNameIsClaimedUntilItsSetIsGone compares two sets that would have the same name, neither of
// which has been created.
func TestNameIsClaimedUntilItsSetIsGone(t *testing.T) {
	c := still(t, nil)
	r := c.remotes["gcp"]
	one, two := Identity{"gcp", "n", "s-a"}, Identity{"gcp", "n-s", "a"}
	pods := map[Identity]*Pod{}
	for i, id := range []Identity{one, two} {
		p := podWith("p", id.Name, fmt.Sprintf("10.4.0.%d", i+1))
		p.Namespace = id.Namespace
		pods[id] = &p
		r.members.Update(nil, &p, time.Now())
	}
	name := func(id Identity) string {
		t.Helper()
		_, want, err := r.state(id)
		if err != nil || len(want) != 1 {
			t.Fatalf("%v must be %v: %v", id, want, err)
		}
		return want[0].Name
	}
	const natural = "gcp-n-s-a"
	hashed := two.candidate(1, 1)
	for range 2 {
		if got := name(one); got != natural {
			t.Errorf("the first one is %s, want %s", got, natural)
		}
		if got := name(two); got != hashed {
			t.Errorf("the other one is %s, want %s: its name is claimed", got, hashed)
		}
	}
	// The object exists, but the watch hasn't shown it yet: its name is claimed for the first
	// set, so it doesn't belong to the second one, whose labels it has.
	c.ledger.Wrote(&Observed{Object: Object{Name: natural, Identity: two}, Owned: true, UID: "u", ResourceVersion: "1"})
	if have, _, _ := r.state(two); len(have) > 0 {
		t.Errorf("the other one has %v, which is claimed", have)
	}
	c.ledger.Deleted(&Observed{Object: Object{Name: natural}, UID: "u", ResourceVersion: "1"})
	r.members.Update(pods[one], nil, time.Now())
	if _, want, err := r.state(one); len(want) > 0 || err != nil {
		t.Fatalf("a set without pods must be %v: %v", want, err)
	}
	r.members.Update(pods[two], nil, time.Now())
	if _, _, err := r.state(two); err != nil || len(r.claims) > 0 || len(r.names) > 0 {
		t.Errorf("claims %v, names %v of sets without pods: %v", r.claims, r.names, err)
	}
	r.members.Update(nil, pods[two], time.Now())
	if got := name(two); got != natural {
		t.Errorf("the other one is %s, want %s, which is free", got, natural)
	}
}

// TestAddressIsHeldOnlyUntilTheOtherSetHasIt relabels a pod whose address the other set already
// holds for another pod.
func TestAddressIsHeldOnlyUntilTheOtherSetHasIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := startRig(t, kubetest.NewAPI(), nil)
		r.put(t, "p", "a", "10.4.0.1")
		r.put(t, "other", "a", "10.4.0.9")
		r.put(t, "q", "b", "10.4.0.1")
		elapse(time.Second)
		r.put(t, "p", "b", "10.4.0.1")
		elapse(100 * time.Millisecond)
		r.wantSets(t, map[string]string{"gcp-ns-a": "10.4.0.9/32", "gcp-ns-b": "10.4.0.1/32"})
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

// TestOwnPatchesAreNotComparedAgain checks that a set is compared if and only if one of its
// objects differs from the result of our patch.
func TestOwnPatchesAreNotComparedAgain(t *testing.T) {
	id := Identity{Cluster: "gcp", Namespace: "ns", Name: "a"}
	state := func(version string, change func(*Observed), addrs ...string) *Observed {
		o := &Observed{Object: Object{Name: "gcp-ns-a", Identity: id}, Owned: true, Exact: true, UID: "u", ResourceVersion: version}
		for _, addr := range addrs {
			o.Addrs = append(o.Addrs, netip.MustParseAddr(addr))
		}
		if change != nil {
			change(o)
		}
		return o
	}
	before, patched := state("1", nil, "10.4.0.1"), state("2", nil, "10.4.0.2")
	for name, tt := range map[string]struct {
		before, after *Observed
		touched       bool
	}{
		"as patched":                  {before, state("2", nil, "10.4.0.2"), false},
		"changed by another":          {before, state("3", nil, "10.4.0.2"), true},
		"another one of that version": {before, state("2", func(o *Observed) { o.UID = "v" }, "10.4.0.2"), true},
		"other addresses under it":    {before, state("2", nil, "10.4.0.3"), true},
		"it was another set's":        {state("1", func(o *Observed) { o.Identity.Name = "b" }, "10.4.0.1"), state("2", nil, "10.4.0.2"), true},
		"gone":                        {before, nil, true},
		"new":                         {nil, state("2", nil, "10.4.0.2"), true},
	} {
		t.Run(name, func(t *testing.T) {
			r := still(t, nil).remotes["gcp"]
			r.patched(patched)
			changes := []kube.Change[Observed]{{Key: "gcp-ns-a", Before: tt.before, After: tt.after}}
			r.setsChanged(changes)
			if touched := r.members.Touched(); len(touched) > 0 != tt.touched {
				t.Errorf("compared: %v", touched)
			}
			// A patch is expected once.
			if r.setsChanged(changes); len(r.members.Touched()) == 0 {
				t.Error("not compared when it comes again")
			}
		})
	}
}
