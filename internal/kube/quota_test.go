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
	must(t, s.Replace(itemsOf(pod("n", "m", "1"), pod("n", "z", "1")), "1"))
	for _, name := range []string{"a", "b", "c", "b"} {
		must(t, s.Update(itemOf(pod("n", name, "1"))))
	}
	if diff := gocmp.Diff([]string{"n/a", "n/m", "n/z"}, keysOf(s)); diff != "" {
		t.Errorf("after events (-want +got):\n%s", diff)
	}
	// The order of a list doesn't matter.
	must(t, s.Replace(itemsOf(pod("n", "0", "1"), pod("n", "1", "1"), pod("n", "a", "2"), pod("n", "m", "1"), pod("n", "z", "1")), "2"))
	if diff := gocmp.Diff(map[string]string{"n/a": "2", "n/m": "1", "n/z": "1"}, objectsOf(s)); diff != "" {
		t.Errorf("after a list (-want +got):\n%s", diff)
	}
	must(t, s.Delete(itemOf(pod("n", "0", ""))))
	must(t, s.Delete(itemOf(pod("n", "m", ""))))
	must(t, s.Update(itemOf(pod("n", "1", "1"))))
	if diff := gocmp.Diff([]string{"n/1", "n/a", "n/z"}, keysOf(s)); diff != "" {
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
		must(t, s.Update(itemOf(pod("n", fmt.Sprint(i), large))))
	}
	if len(s.objects) != 3 || s.rejected() != 17 {
		t.Errorf("%d are kept and %d rejected, want 3 of 4 kB in 16 KiB", len(s.objects), s.rejected())
	}
	must(t, s.Update(itemOf(pod("n", "0", "small"))))
	must(t, s.Update(itemOf(pod("n", "7", large))))
	if len(s.objects) != 4 || s.rejected() != 16 {
		t.Errorf("%d are kept and %d rejected when one is smaller", len(s.objects), s.rejected())
	}
	for key := range maps.Clone(s.objects) {
		must(t, s.Delete(itemOf(pod("n", strings.TrimPrefix(key, "n/"), ""))))
	}
	if s.quota.used != 0 {
		t.Errorf("%d bytes are in use by nothing", s.quota.used)
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
			b.stop()
			if log := b.log.String(); strings.Count(log, "too many objects") != 1 || strings.Count(log, "no more objects are rejected") != 1 {
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
