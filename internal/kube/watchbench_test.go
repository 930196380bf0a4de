package kube

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/logtest"
)

// node is what the tests keep of a Node.
type node struct{ Name, Kubelet string }

// testBounds are those of the remotes of tests.
var testBounds = Bounds{Answer: 64 << 20}

// bench is one watch of an API server's nodes.
type bench struct {
	api      *apiServer
	watch    *Watch[node]
	metrics  *Metrics
	notified atomic.Int32
	seen     atomic.Pointer[[]node] // objects at the last notification
	token    string                 // file
	stop     func()
	log      logtest.Buffer
}

// prepare makes a watch. With detour, it is by way of the address that this
// makes of the server's.
func prepare(t *testing.T, detour ...func(address string) string) *bench {
	t.Helper()
	ca := newAuthority()
	b := &bench{api: newAPIServer(t, ca), metrics: NewMetrics("test", "test_failures_total"), token: writeTemp(t, "token", []byte(secret))}
	b.api.set(func() { b.api.token = secret })
	url := b.api.url()
	for _, around := range detour {
		url = "https://" + around(b.api.address())
	}
	client := clientWith(t, ClientConfig{
		Access: config.Access{APIURL: url, CAFile: writeTemp(t, "ca", ca.pem), TokenFile: b.token}, Bounds: testBounds,
	})
	b.watchBy(client)
	return b
}

// watchBy makes a watch with a client.
func (b *bench) watchBy(client Client) {
	cfg := b.config(client)
	cfg.Notify = func() {
		b.notified.Add(1)
		all := b.nodes()
		b.seen.Store(&all)
	}
	b.watch = NewWatch(cfg)
}

// wholeNodes reads nodes whole, metadataOfNodes as metadata only.
func wholeNodes(client Client) *Reader {
	r := metadataOfNodes(client)
	r.SetWhole(true)
	return r
}

func metadataOfNodes(client Client) *Reader {
	return NewNodeReader(func() (Client, error) { return client, nil }, func(*metav1.PartialObjectMetadata) bool { return true })
}

func (b *bench) config(client Client) WatchConfig[node] {
	return WatchConfig[node]{
		Cluster: "gcp",
		Kind:    "nodes",
		Reader:  wholeNodes(client),
		Keep: func(obj runtime.Object) (node, bool) {
			n, err := meta.Accessor(obj)
			if err != nil {
				return node{}, false
			}
			return node{n.GetName(), n.GetAnnotations()["kubelet"]}, n.GetAnnotations()["kubelet"] != "unwanted"
		},
		Equal:   func(a, b node) bool { return a == b },
		Bounds:  testBounds,
		Logger:  slog.New(slog.NewTextHandler(&b.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Metrics: b.metrics,
	}
}

func (b *bench) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.watch.Run(ctx) }()
	b.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run() = %v, want nil when its context ends", err)
			}
		case <-time.After(time.Minute):
			t.Error("Run() goes on a minute after its context ended, then returns", <-done)
		}
	})
	t.Cleanup(b.stop)
}

// nodes returns the watch's objects, sorted.
func (b *bench) nodes() []node {
	all, _ := b.watch.Snapshot()
	slices.SortFunc(all, func(x, y node) int { return cmp.Compare(x.Name, y.Name) })
	return all
}

// synced reports whether the watch has synced and notified: metrics and notifications
// follow the objects.
func (b *bench) synced() bool { return b.seen.Load() != nil && b.watch.Synced() }

// has reports whether the watch has exactly these objects and has notified.
func (b *bench) has(want ...node) bool {
	return b.synced() && slices.Equal(*b.seen.Load(), want) && slices.Equal(b.nodes(), want)
}

func (b *bench) wantSeries(t *testing.T, name, labels, want string) {
	t.Helper()
	text := "test_" + name + "{" + labels + "} " + want
	expected := "# HELP test_" + name + " " + help(name) + "\n# TYPE test_" + name + " " + kind(name) + "\n" + text + "\n"
	if err := testutil.CollectAndCompare(b.metrics, strings.NewReader(expected), "test_"+name); err != nil {
		t.Error(err)
	}
}

// wantNoFailure checks that no request has failed, by metrics and by the log.
func (b *bench) wantNoFailure(t *testing.T) {
	t.Helper()
	for _, verb := range []string{verbList, verbWatch} {
		if n := testutil.ToFloat64(b.metrics.failures.WithLabelValues("gcp", "nodes", verb)); n != 0 {
			t.Errorf("%v requests to %s count as failed", n, verb)
		}
	}
	if strings.Contains(b.log.String(), "level=WARN") {
		t.Errorf("warns:\n%s", b.log.String())
	}
}

func help(name string) string {
	if strings.HasPrefix(name, "failures") {
		return "Requests to list or watch objects of a kind of a cluster that failed."
	}
	return "Whether all objects of a kind of a cluster have been read since start."
}

func kind(name string) string {
	if strings.HasSuffix(name, "total") {
		return "counter"
	}
	return "gauge"
}
