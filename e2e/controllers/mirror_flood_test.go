package controllers_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	limits "github.com/kube-semaphore/kube-semaphore/internal/pace"
	"github.com/kube-semaphore/kube-semaphore/mirror"
)

// testFlood has a tenant of aws rewrite large slices of many services without pause for a minute:
// for each changed byte a slice of 1,000 ports is stored. What the mirror writes stays below its
// bound, a sixteenth of the default one, so that a busy machine's flood exceeds it, and small changes
// of another namespace and of another cluster arrive meanwhile.
func (b *mirrorBed) testFlood(t *testing.T) {
	const services, hostile, lasts = 20, "hostile", time.Minute
	limit := limits.Limit{Rate: limits.DefaultRate / 16, Burst: limits.DefaultBurst / 16}
	var size int
	for n := range services {
		s := svc(fmt.Sprint("flood-", n))
		sl := slice(s, s.Name+"-1", fmt.Sprintf("10.4.9.%d", n))
		for p := int32(1); p < 1000; p++ {
			name := fmt.Sprintf("p%d-%s", p, strings.Repeat("x", 55))
			sl.Ports = append(sl.Ports, discoveryv1.EndpointPort{Name: &name, Port: &p, Protocol: sl.Ports[0].Protocol})
		}
		must(t, putService(t.Context(), b.aws, hostile, s, sl))
		size = sl.Size()
	}
	quiet := func(n int) {
		must(t, putService(t.Context(), b.aws, "shop", svc("web"), slice(svc("web"), "web-1", fmt.Sprintf("10.4.0.%d", n))))
		must(t, putService(t.Context(), b.merit, "shop", svc("web"), slice(svc("web"), "web-1", fmt.Sprintf("10.6.0.%d", n))))
		for service, ip := range map[string]string{webName: "10.4.0.%d", "merit-shop-73736d-web": "10.6.0.%d"} {
			b.leadsTo(t, service, fmt.Sprintf(ip, n))
		}
	}
	stored, count := storedBytes(t, b.gcp, home)
	database := databaseBytes(t, b.gcp)
	began := time.Now()
	b.start(t, func(cfg *mirror.Config) { cfg.Pace = limit })
	quiet(1)

	ctx, cancel := context.WithCancel(t.Context())
	var offered atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		api := b.aws.Client().DiscoveryV1().EndpointSlices(hostile)
		for n := 0; ctx.Err() == nil; n++ {
			patch := fmt.Appendf(nil, `[{"op":"replace","path":"/ports/1/port","value":%d}]`, 2000+n%60_000)
			if _, err := api.Patch(ctx, fmt.Sprintf("flood-%d-1", n%services), types.JSONPatchType, patch, metav1.PatchOptions{}); err == nil {
				offered.Add(int64(size))
			} else if ctx.Err() == nil {
				t.Errorf("flood: %v", err)
				return
			}
		}
	})
	var slowest time.Duration
	for n := 2; time.Since(began) < lasts; n++ {
		changed := time.Now()
		quiet(n)
		slowest = max(slowest, time.Since(changed))
	}
	cancel()
	wg.Wait()
	took := time.Since(began)
	got, grown := count(), databaseBytes(t, b.gcp)-database
	most := int64(float64(limit.Burst) + took.Seconds()*1.05*float64(limit.Rate)) // a twentieth for what the API server adds
	t.Logf("of %d KiB offered in %v, %d KiB were stored in %d objects, at most %d are allowed; etcd has grown by %d KiB; the slowest small changes took %v",
		offered.Load()>>10, took.Round(time.Second), got>>10, stored.Load(), most>>10, grown>>10, slowest.Round(time.Millisecond))
	if got > most || grown > 2*most { // pages of the database are partly filled
		t.Errorf("%d bytes were stored, and etcd has grown by %d: at most %d are allowed", got, grown, most)
	}
	if offered.Load() < 2*most {
		t.Fatalf("only %d bytes were offered: this machine is too slow for a flood that shows the bound", offered.Load())
	}
}

// storedBytes watches the EndpointSlices of a namespace: the number of versions since now, and their
// bytes.
func storedBytes(t *testing.T, c *testbed.Cluster, namespace string) (versions *atomic.Int64, bytes func() int64) {
	t.Helper()
	api := c.Client().DiscoveryV1().EndpointSlices(namespace)
	list, err := api.List(t.Context(), metav1.ListOptions{})
	must(t, err)
	w, err := api.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	must(t, err)
	versions = new(atomic.Int64)
	var sum atomic.Int64
	var wg sync.WaitGroup
	stopped := make(chan struct{})
	wg.Go(func() {
		for event := range w.ResultChan() {
			select {
			case <-stopped:
				return
			default:
			}
			switch o := event.Object.(type) {
			case *discoveryv1.EndpointSlice:
				if event.Type != watch.Deleted {
					versions.Add(1)
					sum.Add(int64(o.Size()))
				}
			default:
				t.Errorf("watch of stored slices: %s %v", event.Type, o)
			}
		}
		select {
		case <-stopped:
		default:
			t.Error("the watch of stored slices ended")
		}
	})
	stop := sync.OnceFunc(func() {
		close(stopped)
		w.Stop()
		wg.Wait()
	})
	t.Cleanup(stop)
	return versions, func() int64 {
		stop()
		return sum.Load()
	}
}

// databaseBytes returns the size of the database of a cluster's etcd.
func databaseBytes(t *testing.T, c *testbed.Cluster) int64 {
	t.Helper()
	text, err := c.Client().CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	must(t, err)
	for line := range strings.Lines(string(text)) {
		if value, is := strings.CutPrefix(line, "apiserver_storage_size_bytes{"); is {
			_, number, _ := strings.Cut(strings.TrimSpace(value), " ")
			bytes, err := strconv.ParseFloat(number, 64)
			must(t, err)
			return int64(bytes)
		}
	}
	t.Fatal("the API server reports no size of its storage")
	return 0
}
