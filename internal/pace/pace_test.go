package pace

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/synctest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	kib, mib = 1 << 10, 1 << 20
	// large is a slice with 1,000 ports, small one with three endpoints.
	large, small = 55 * kib, kib
)

// program writes for clusters, one write of a key, each as soon as it may.
type program struct {
	*Pacer[string]
	want   map[string]Write // by key
	order  []string         // keys, as written
	wrote  map[string]int   // bytes, by cluster
	always map[string]bool  // keys that are changed by each of their writes
	ready  chan string      // keys whose turn it is
}

func run(t *testing.T, cfg Config[string]) *program {
	t.Helper()
	r := &program{
		want: map[string]Write{}, wrote: map[string]int{}, always: map[string]bool{},
		ready: make(chan string, 100_000),
	}
	cfg.Ready = func(key string, _ bool) { r.ready <- key }
	r.Pacer = New(cfg)
	t.Cleanup(func() {
		for key := range r.want {
			r.Take(key)
		}
	})
	return r
}

// try does what a controller does for a key.
func (r *program) try(key string) {
	w, differs := r.want[key]
	if !differs {
		r.Take(key)
		return
	}
	for r.Take(key, w)[0] {
		r.order = append(r.order, key)
		r.wrote[w.Cluster] += w.Bytes
		if !r.always[key] {
			delete(r.want, key)
			return
		}
	}
}

// change makes an object of cluster/namespace/name differ from what is desired.
func (r *program) change(cluster, namespace, name string, bytes int, urgent ...bool) string {
	key := cluster + "/" + namespace + "/" + name
	r.want[key] = Write{Cluster: cluster, Namespace: namespace, Object: key, Bytes: bytes, Urgent: len(urgent) > 0}
	r.try(key)
	r.work(0)
	return key
}

// work writes for a time what has its turn.
func (r *program) work(d time.Duration) {
	for over := time.After(d); ; {
		synctest.Wait()
		select {
		case key := <-r.ready:
			r.try(key)
			continue
		default:
		}
		select {
		case key := <-r.ready:
			r.try(key)
		case <-over:
			return
		}
	}
}

// flood changes objects of a namespace all the time.
func (r *program) flood(cluster, namespace string, objects, bytes int) {
	for i := range objects {
		r.always[fmt.Sprintf("%s/%s/flood-%d", cluster, namespace, i)] = true
	}
	for i := range objects {
		r.change(cluster, namespace, fmt.Sprintf("flood-%d", i), bytes)
	}
}

// after returns what was written in a time, by cluster.
func (r *program) after(d time.Duration) map[string]int {
	before := map[string]int{}
	for cluster, bytes := range r.wrote {
		before[cluster] = bytes
	}
	r.work(d)
	grown := map[string]int{}
	for cluster, bytes := range r.wrote {
		grown[cluster] = bytes - before[cluster]
	}
	return grown
}

// near fails unless bytes are what is wanted, but for two large objects.
func near(t *testing.T, what string, got, want int) {
	t.Helper()
	if got < want-2*large || got > want+2*large {
		t.Errorf("%s: %d bytes, want %d", what, got, want)
	}
}

func TestClusterIsLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t, Config[string]{})
		r.flood("gcp", "shop", 300, large)
		near(t, "at once", r.wrote["gcp"], DefaultBurst)
		near(t, "in a minute", r.after(time.Minute)["gcp"], 60*DefaultRate)
		if n := r.Waiting()["gcp"]; n != 300 {
			t.Errorf("%d writes wait", n)
		}
	})
}

// TestTotalIsLimited: two clusters that flood share the total, and a third one, which writes less
// than its part of it, is written at once.
func TestTotalIsLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t, Config[string]{})
		for _, cluster := range []string{"aws", "gcp", "merit"} {
			r.flood(cluster, "shop", 400, large)
		}
		r.after(time.Second)
		in := r.after(time.Minute)
		for _, cluster := range []string{"aws", "gcp", "merit"} {
			near(t, cluster, in[cluster], 60*DefaultTotalRate/3)
		}
		before := len(r.order)
		key := r.change("azure", "shop", "web", small)
		r.after(time.Second)
		at := slices.Index(r.order[before:], key)
		if at < 0 || at > 1 {
			t.Errorf("written after %d others of other clusters: %v", at, r.order[before:])
		}
	})
}

// TestOneClusterLeavesTheOthersTheirBurst: while one floods, the endpoints of another one that
// dies can be removed everywhere at once.
func TestOneClusterLeavesTheOthersTheirBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t, Config[string]{})
		r.flood("gcp", "shop", 400, large)
		r.after(10 * time.Minute)
		for i := range DefaultBurst / large {
			r.change("aws", "shop", fmt.Sprint(i), large)
		}
		if n := r.Waiting()["aws"]; n > 0 {
			t.Errorf("%d writes of aws wait", n)
		}
	})
}

// TestSmallWritesComeNext changes a small object while others of its cluster flood.
func TestSmallWritesComeNext(t *testing.T) {
	for _, c := range []struct {
		name, namespace string
		objects         int // of the flood
		most            int // writes of the flood before it
	}{
		{"a few in its namespace", "shop", 10, 1},
		{"thousands in its namespace", "shop", 5000, 1},
		{"thousands in another namespace", "other", 5000, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := run(t, Config[string]{})
				r.flood("gcp", c.namespace, c.objects, large)
				for i := range 20 {
					r.after(100 * time.Millisecond)
					before := len(r.order)
					key := r.change("gcp", "shop", "web", small)
					r.after(5 * time.Second)
					if at := slices.Index(r.order[before:], key); at < 0 || at > c.most {
						t.Fatalf("change %d is written after %d others", i, at)
					}
				}
			})
		})
	}
}

// TestNamespacesShare: an object that changes constantly isn't held up by thousands in another
// namespace, and has no more than its part.
func TestNamespacesShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t, Config[string]{})
		r.flood("gcp", "hostile", 5000, large)
		r.after(time.Second)
		r.always["gcp/shop/web"] = true
		before := len(r.order)
		r.change("gcp", "shop", "web", 8*kib)
		r.after(time.Minute)
		bytes := 0
		for _, key := range r.order[before:] {
			if key == "gcp/shop/web" {
				bytes += 8 * kib
			}
		}
		near(t, "in a minute", bytes, 60*DefaultRate/2)
	})
}

// TestLargeWritesAreNotStarved: of objects with new names and small writes there is always one
// that waits.
func TestLargeWritesAreNotStarved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t, Config[string]{})
		r.flood("gcp", "shop", 300, large)
		for i := range 20 {
			r.change("gcp", "new", fmt.Sprint("first-", i), small)
		}
		key, before := r.change("gcp", "new", "large", large), len(r.order)
		for i := range 10_000 {
			r.change("gcp", "new", fmt.Sprint(i), small)
			r.after(10 * time.Millisecond)
			if slices.Contains(r.order[before:], key) {
				return
			}
		}
		t.Error("it was never written")
	})
}

func TestRemovalsComeFirstInTheirNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t, Config[string]{})
		r.flood("gcp", "shop", 300, large)
		for i := range 50 {
			r.change("gcp", "new", fmt.Sprint(i), small)
		}
		before := len(r.order)
		key := r.change("gcp", "new", "web", large, true)
		r.after(time.Minute)
		for _, k := range r.order[before:] {
			if k == key {
				return
			}
			if r.want[k].Namespace == "new" {
				t.Errorf("%s comes before the removal", k)
			}
		}
		t.Errorf("%s was not written", key)
	})
}

// TestTurnsOfAKey: of several objects some may be written, those that are no longer desired have
// no turn, and one whose size has changed meanwhile is paid for.
func TestTurnsOfAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var called atomic.Int32
		p := New(Config[string]{Cluster: Limit{1000, 1000}, Total: Limit{2000, 2000}, Ready: func(string, bool) { called.Add(1) }})
		write := func(object string, bytes int) Write {
			return Write{Cluster: "gcp", Namespace: "shop", Object: object, Bytes: bytes}
		}
		elapse := func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
		}
		wants := func(what string, got []bool, want ...bool) {
			t.Helper()
			if !slices.Equal(got, want) {
				t.Errorf("%s: %v, want %v", what, got, want)
			}
		}
		wants("the burst", p.Take("web", write("a", 600), write("b", 700), write("c", 800), write("gone", 0)), true, true, false, true)
		wants("the others that it needs", p.Take("web", write("c", 800)), false)
		elapse(time.Second)
		if called.Load() != 1 {
			t.Errorf("called %d times", called.Load())
		}
		wants("its turn, larger than before", p.Take("web", write("c", 1800)), true)
		wants("what it has to pay for", p.Take("web", write("a", 1)), false)
		elapse(time.Second)
		if called.Load() != 1 {
			t.Error("called before it is paid")
		}
		elapse(time.Second)
		if called.Load() != 2 {
			t.Errorf("called %d times", called.Load())
		}
		p.Take("web")
		wants("the next one", p.Take("web", write("d", 5000)), true)
		wants("one after it", p.Take("web", write("e", 1)), false)
		if n := p.Waiting()["gcp"]; n != 1 {
			t.Errorf("%d writes wait", n)
		}
		p.Take("web", Write{Cluster: "aws", Namespace: "shop", Object: "e", Bytes: 1})
		if n := p.Waiting()["gcp"]; n != 0 {
			t.Errorf("%d writes wait after the last one is another cluster's", n)
		}
		p.Take("web")
		elapse(time.Minute)
		if called.Load() != 2 || len(p.turns) > 0 {
			t.Errorf("called %d times, left %v", called.Load(), p.turns)
		}
	})
}

// TestOneObjectOfTwoKeys: two sets of policy may want an object of the same name, before one of them has it.
func TestOneObjectOfTwoKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t, Config[string]{Cluster: Limit{large, large}})
		write := Write{Cluster: "gcp", Namespace: "shop", Object: "web-2", Bytes: large}
		r.Take("first", write)
		for _, key := range []string{"web", "web-2"} {
			if r.Take(key, write)[0] {
				t.Errorf("%s needn't wait", key)
			}
		}
		got := map[string]bool{}
		for range 2 {
			got[<-r.ready] = true
		}
		if !got["web"] || !got["web-2"] {
			t.Errorf("called: %v", got)
		}
		r.Take("web")
		r.Take("web-2")
	})
}

// TestObjectThatIsReplaced is deleted, and created again with the same name.
func TestObjectThatIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Config[string]{Cluster: Limit{1000, 1000}, Total: Limit{2000, 2000}, Ready: func(string, bool) {}})
		object := Write{Cluster: "gcp", Namespace: "shop", Object: "a"}
		created := object
		created.Bytes = 100
		if got := p.Take("web", object, created); !slices.Equal(got, []bool{true, true}) {
			t.Errorf("deletion and creation: %v", got)
		}
		if len(p.turns) > 0 {
			t.Errorf("left %v", p.turns)
		}
	})
}

// TestNamesAreForgotten: what was written for objects that don't exist any more takes no memory.
func TestNamesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t, Config[string]{})
		r.flood("gcp", "shop", 10, large)
		for i := range 5000 {
			r.change("gcp", fmt.Sprint("namespace-", i), "web", small)
			r.change("gcp", "new", fmt.Sprint(i), small)
			r.after(10 * time.Millisecond)
		}
		r.after(time.Second)
		gcp := r.all.parts["gcp"]
		if n := len(gcp.parts); n > 100 {
			t.Errorf("%d namespaces are known", n)
		}
		if f := gcp.parts["new"]; f != nil && len(f.parts) > 100 {
			t.Errorf("%d objects are known", len(f.parts))
		}
	})
}

func TestRatesChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t, Config[string]{Cluster: Limit{kib, large}, Total: Limit{2 * kib, large}})
		r.flood("gcp", "shop", 10, large)
		r.SetRates(mib, 2*mib)
		near(t, "gcp", r.after(time.Minute)["gcp"], 60*mib)
		r.flood("aws", "shop", 10, large)
		r.SetRates(100*kib, mib)
		r.after(time.Second)
		in := r.after(time.Minute)
		near(t, "gcp", in["gcp"], 60*100*kib)
		near(t, "aws", in["aws"], 60*100*kib)
	})
}

// TestBudget: what the programs may write until etcd is compacted fits into it.
func TestBudget(t *testing.T) {
	const (
		etcdQuota     = 2 << 30
		compacted     = 10 * 60 // seconds: what was overwritten five minutes ago, each five minutes
		controllers   = 2       // mirror and policy
		relay         = 100 * mib
		each          = DefaultTotalBurst + compacted*DefaultTotalRate
		leftForOthers = 300 * mib
	)
	if all := controllers*each + relay; all > etcdQuota-leftForOthers {
		t.Errorf("%d MiB of %d", all/mib, etcdQuota/mib)
	}
}
