package kube

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

func newQuotaStore(objects int) (*store[string], *[]string) {
	s, _ := newTestStore(sameText)
	s.quota = newQuota("pods", Bounds{Answer: 64 << 10, Objects: objects})
	var notified []string
	s.rejectedChanged = func(rejected int) { notified = append(notified, fmt.Sprint(rejected)) }
	return s, &notified
}

func keysOf(s *store[string]) []string { return slices.Sorted(maps.Keys(s.objects)) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestAcceptedObjectsKeepTheirQuota(t *testing.T) {
	s, notified := newQuotaStore(3)
	must(t, s.Replace(itemsOf(pod("", "m", "1"), pod("", "z", "1")), "1"))
	for _, name := range []string{"a", "b", "c", "b"} {
		must(t, s.Update(itemOf(pod("", name, "1"))))
	}
	if diff := gocmp.Diff([]string{"a", "m", "z"}, keysOf(s)); diff != "" {
		t.Errorf("after events (-want +got):\n%s", diff)
	}
	// The order of a list doesn't matter.
	must(t, s.Replace(itemsOf(pod("", "0", "1"), pod("", "1", "1"), pod("", "a", "2"), pod("", "m", "1"), pod("", "z", "1")), "2"))
	if diff := gocmp.Diff(map[string]string{"a": "2", "m": "1", "z": "1"}, objectsOf(s)); diff != "" {
		t.Errorf("after a list (-want +got):\n%s", diff)
	}
	must(t, s.Delete(itemOf(pod("", "0", ""))))
	must(t, s.Delete(itemOf(pod("", "m", ""))))
	must(t, s.Update(itemOf(pod("", "1", "1"))))
	if diff := gocmp.Diff([]string{"1", "a", "z"}, keysOf(s)); diff != "" {
		t.Errorf("after deletions (-want +got):\n%s", diff)
	}
	if diff := gocmp.Diff([]string{"1", "2", "1", "0"}, *notified); diff != "" {
		t.Errorf("notifications (-want +got):\n%s", diff)
	}
}

func TestBytesOfKeptObjectsAreBounded(t *testing.T) {
	s, _ := newQuotaStore(1000)
	large := strings.Repeat("x", 4000)
	for i := range 20 {
		must(t, s.Update(itemOf(pod("", fmt.Sprint(i), large))))
	}
	if len(s.objects) != 3 || s.rejected() != 17 {
		t.Errorf("%d are kept and %d rejected, want 3 of 4 kB in 16 KiB", len(s.objects), s.rejected())
	}
	must(t, s.Update(itemOf(pod("", "0", "small"))))
	must(t, s.Update(itemOf(pod("", "7", large))))
	if len(s.objects) != 4 || s.rejected() != 16 {
		t.Errorf("%d are kept and %d rejected when one is smaller", len(s.objects), s.rejected())
	}
	for key := range maps.Clone(s.objects) {
		must(t, s.Delete(itemOf(pod("", key, ""))))
	}
	if s.quota.used.all != (amounts{}) || len(s.quota.used.namespaces) > 0 {
		t.Errorf("%+v is in use by nothing", s.quota.used)
	}
}

// TestNamespaceHasHalfOfTheQuota adds objects of one namespace, then two of another, by events and by a
// list.
func TestNamespaceHasHalfOfTheQuota(t *testing.T) {
	for name, c := range map[string]struct {
		objects, value int
		namespace      string
		most           int // of it
	}{
		"number":                          {objects: 5, value: 1, namespace: "a", most: 3},
		"size":                            {objects: 1000, value: 1000, namespace: "a", most: 6}, // in 7 KiB
		"number of what isn't namespaced": {objects: 5, value: 1, most: 5},
		"size of what isn't namespaced":   {objects: 1000, value: 1000, most: 12},
	} {
		t.Run(name, func(t *testing.T) {
			events, _ := newQuotaStore(c.objects)
			list, _ := newQuotaStore(c.objects)
			watch := NewWatch(WatchConfig[string]{Keep: keepIP, Bounds: Bounds{Answer: 64 << 10, Objects: c.objects}, Reader: &Reader{}, Logger: slog.New(slog.DiscardHandler)})
			r := newRequests(watch)
			var pods []*corev1.Pod
			for i := range 2*c.objects - 2 {
				pods = append(pods, pod(c.namespace, fmt.Sprint(1000+i), strings.Repeat("x", c.value)))
			}
			var items []any
			for _, p := range append(pods, pod("b", "0", "1"), pod("b", "1", "1")) {
				must(t, events.Update(itemOf(p)))
				i, err := r.collect(p)
				must(t, err)
				items = append(items, i)
			}
			must(t, list.Replace(items, "1"))
			for how, s := range map[string]*store[string]{"events": events, "a list": list} {
				of := map[string]int{}
				for key := range s.objects {
					of[namespaceOf(key)]++
				}
				if of[c.namespace] != c.most || c.namespace != "" && (!s.has("b/0") || !s.has("b/1")) {
					t.Errorf("by %s: %v are kept, want %d of %q", how, of, c.most, c.namespace)
				}
			}
		})
	}
}

// TestHeldObjectsMayGrow has two namespaces with more than half of a quota in all, and lets a third
// one take what it can, by new objects and by those that it has. Then those of the two grow.
func TestHeldObjectsMayGrow(t *testing.T) {
	sized := func(namespace string, i, size int) *corev1.Pod {
		return pod(namespace, fmt.Sprint(i), strings.Repeat("x", size))
	}
	honest := func(size int) (pods []*corev1.Pod) {
		for i := range 12 { // 9 KiB
			pods = append(pods, sized([]string{"b", "c"}[i%2], i, size))
		}
		return pods
	}
	hostile := func(size int) (pods []*corev1.Pod) {
		for i := range 100 {
			pods = append(pods, sized("a", i, size))
		}
		return pods
	}
	sizes := func(s *store[string]) map[string]int64 {
		of := map[string]int64{}
		for key, o := range s.objects {
			of[namespaceOf(key)] += o.size
			of[""] += o.size
		}
		return of
	}
	for name, grow := range map[string]func(t *testing.T, s *store[string]){
		"by events": func(t *testing.T, s *store[string]) {
			for i := range 100 {
				for size := 1; s.has(fmt.Sprint("a/", i)) && sizes(s)[""]+8 <= 16<<10; size += 8 {
					must(t, s.Update(itemOf(sized("a", i, size))))
				}
			}
			for _, p := range honest(680) {
				must(t, s.Update(itemOf(p)))
			}
		},
		"in a list": func(t *testing.T, s *store[string]) {
			must(t, s.Replace(itemsOf(append(hostile(3000), honest(680)...)...), "2"))
		},
		"in a list without change, after events": func(t *testing.T, s *store[string]) {
			for _, p := range honest(680) {
				must(t, s.Update(itemOf(p)))
			}
			must(t, s.Replace(itemsOf(append(hostile(200), honest(680)...)...), "2"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := newQuotaStore(1000)
			for _, p := range append(append(hostile(1)[:5], honest(600)...), hostile(1)...) {
				must(t, s.Update(itemOf(p)))
			}
			grow(t, s)
			for _, p := range honest(680) {
				if s.objects[p.Namespace+"/"+p.Name].value != p.Status.PodIP {
					t.Errorf("%s/%s is dropped", p.Namespace, p.Name)
				}
			}
			if size := sizes(s); size[""] > 16<<10 || size["a"] > 8<<10 {
				t.Errorf("%v bytes", size)
			}
		})
	}
}

// TestOrderOfAListDoesNotMatter has a new object, and some that grow, before the one that makes room for
// the latter, in a store that is full.
func TestOrderOfAListDoesNotMatter(t *testing.T) {
	s, _ := newQuotaStore(1000)
	list := func(sizes ...int) (pods []*corev1.Pod) {
		for i, size := range sizes {
			pods = append(pods, pod(fmt.Sprint(i), "x", strings.Repeat("x", size)))
		}
		return pods
	}
	must(t, s.Replace(itemsOf(list(4000, 4000, 5500)...), "1"))
	must(t, s.Replace(itemsOf(append([]*corev1.Pod{pod("new", "x", strings.Repeat("x", 2000))}, list(6000, 6000, 10)...)...), "2"))
	if diff := gocmp.Diff([]string{"0/x", "1/x", "2/x"}, keysOf(s)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestListKeepsWhatIsHeld reads a list in which objects that are held have grown to more than may be
// read, and in which new ones come first.
func TestListKeepsWhatIsHeld(t *testing.T) {
	w := NewWatch(WatchConfig[*string]{
		Keep: func(obj runtime.Object) (*string, bool) {
			ip, kept := keepIP(obj)
			return &ip, kept
		},
		Equal:  func(a, b *string) bool { return *a == *b },
		Bounds: Bounds{Answer: 64 << 10, Objects: 100}, Reader: &Reader{}, Logger: slog.New(slog.DiscardHandler),
	})
	list := func(large int) {
		t.Helper()
		r := newRequests(w)
		var items []any
		add := func(namespace string, i, size int) {
			got, err := r.collect(pod(namespace, fmt.Sprint(i), strings.Repeat("x", size)))
			must(t, err)
			items = append(items, got)
		}
		for i := range 40 {
			if large > 1 {
				add("new", i, 300)
			}
			add("a", i, large)
		}
		for i := range 10 {
			add("b", i, 500)
		}
		must(t, w.store.Replace(items, "1"))
	}
	list(1)
	if n := w.store.len(); n != 50 {
		t.Fatalf("%d are kept", n)
	}
	list(2000)
	for i := range 10 {
		if !w.store.has(fmt.Sprint("b/", i)) {
			t.Errorf("b/%d is dropped", i)
		}
	}
}

func TestUnfinishedListIsBounded(t *testing.T) {
	r := newRequests(NewWatch(WatchConfig[string]{Keep: keepIP, Bounds: Bounds{Answer: 64 << 10, Objects: 3}, Reader: &Reader{}, Logger: slog.New(slog.DiscardHandler)}))
	collected := 0
	var err error
	for i := 0; err == nil && i < 100; i++ {
		var got *item[string]
		if got, err = r.collect(pod("n", fmt.Sprint(i), "1")); got != nil {
			collected++
		}
	}
	if err == nil || collected > 6 {
		t.Errorf("error %v after %d objects", err, collected)
	}
}

func TestSizeOfWhatIsKept(t *testing.T) {
	type kept struct {
		Name string
		list []string
		more *kept
		by   map[string]int
	}
	small := sizeOf("a", kept{})
	for name, large := range map[string]kept{
		"text":    {Name: strings.Repeat("x", 1000)},
		"list":    {list: []string{strings.Repeat("x", 1000)}},
		"space":   {list: make([]string, 0, 100)},
		"pointer": {more: &kept{Name: strings.Repeat("x", 1000)}},
		"map":     {by: map[string]int{strings.Repeat("x", 1000): 1}},
	} {
		if n := sizeOf("a", large); n < small+1000 || n > small+2000 {
			t.Errorf("%s: %d bytes, the empty one %d", name, n, small)
		}
	}
}

// TestImpossibleNamesAreLeftOut sends names that are invalid in metrics and logs, and versions that would fill
// the memory, in lists and in events.
func TestImpossibleNamesAreLeftOut(t *testing.T) {
	metrics := NewMetrics("test", "test_failures_total")
	w := NewWatch(WatchConfig[string]{Cluster: "gcp", Kind: "pods", Keep: keepIP, Bounds: testBounds, Reader: &Reader{}, Logger: slog.New(slog.DiscardHandler)})
	w.series = metrics.series("gcp", "pods")
	r := newRequests(w)
	f := &forwarder[string]{requests: r}
	version := pod("n", "n", "1")
	version.ResourceVersion = strings.Repeat("1", 1<<20)
	for _, p := range []*corev1.Pod{version, pod("n", "a\xffb", "1"), pod("n", strings.Repeat("x", 300), "1"), pod("n", "", "1"), pod("a\xffb", "n", "1")} {
		if got, err := r.collect(p); got != nil || err != nil {
			t.Errorf("%.10q of a list: %v, error %v", p.Name, got, err)
		}
		if got := f.convert(watch.Event{Type: watch.Added, Object: p}); got.Object != nil {
			t.Errorf("%.10q of an event: %v", p.Name, got.Object)
		}
	}
	if left := testutil.ToFloat64(metrics.dropped.WithLabelValues("gcp", "pods")); left != 10 {
		t.Errorf("%v are counted, want 10", left)
	}
}

func TestRemoteWithTooManyObjects(t *testing.T) {
	t.Parallel()
	for name, stream := range map[string]bool{"streamed list": true, "plain list": false} {
		t.Run(name, func(t *testing.T) {
			b := prepare(t)
			b.api.set(func() { b.api.stream = stream })
			b.watch.store.quota = newQuota(kindNodes, Bounds{Answer: 64 << 20, Objects: 2})
			for _, n := range []string{"a", "b", "c"} {
				b.api.apply(n, "v1", "")
			}
			b.run(t)
			eventually(t, "sync", b.synced)
			if n := len(b.nodes()); n != 2 {
				t.Errorf("%d are kept, want 2", n)
			}
			if err := b.watch.OverQuota(); err == nil || !strings.HasPrefix(err.Error(), "1 nodes or more are rejected: the maximum is 2") {
				t.Errorf("OverQuota() = %v", err)
			}
			if n := testutil.ToFloat64(b.metrics.rejected.WithLabelValues("gcp", "nodes")); n != 1 {
				t.Errorf("the metric says %v", n)
			}
			for _, n := range []string{"a", "b", "c"} {
				b.api.remove(n)
			}
			eventually(t, "room", func() bool { return b.watch.OverQuota() == nil && len(b.nodes()) == 0 })
			for n := range 4 { // Again and again: no more lines.
				b.watch.rejectedChanged(n % 2)
			}
			b.stop()
			if log := b.log.String(); strings.Count(log, `level=WARN msg="too many objects"`) != 1 || strings.Count(log, "no more objects are rejected") != 1 {
				t.Errorf("log:\n%s", log)
			}
			b.wantSeries(t, "remote_synced", `cluster="gcp",kind="nodes"`, "1")
		})
	}
}

// TestRejectedObjectsAreAcceptedWhenQuotaIsFreed releases quota without an event of the rejected
// object.
func TestRejectedObjectsAreAcceptedWhenQuotaIsFreed(t *testing.T) {
	t.Parallel()
	for name, stream := range map[string]bool{"streamed list": true, "plain list": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := prepare(t)
			b.api.set(func() { b.api.stream = stream })
			b.watch.store.quota = newQuota("nodes", Bounds{Answer: 16 << 20, Objects: 2})
			b.watch.relist = 50 * time.Millisecond
			for _, name := range []string{"a", "b"} {
				b.api.apply(name, "v1", "")
			}
			b.run(t)
			eventually(t, "sync", func() bool { return len(b.nodes()) == 2 })
			b.api.apply("c", "v1", "")
			eventually(t, "one to be rejected", func() bool { return b.watch.OverQuota() != nil })
			requests := len(b.api.seen())
			b.api.remove("a")
			eventually(t, "the one that was rejected", func() bool { return b.has(node{"b", "v1"}, node{"c", "v1"}) && b.watch.OverQuota() == nil })
			eventually(t, "the next watch", func() bool { return len(b.api.seen()) > requests })
			b.api.apply("c", "v2", "")
			eventually(t, "what comes afterwards", func() bool { return b.has(node{"b", "v1"}, node{"c", "v2"}) })
			if lists := len(b.api.seen()) - requests; lists > 4 {
				t.Errorf("%d requests for one list", lists)
			}
		})
	}
}
