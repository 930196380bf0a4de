package kube

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/logtest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/synctest"
)

// following is a watch of an API's nodes, as "name" if it was read whole, else as "(name)".
type following struct {
	reader *Reader
	watch  *Watch[string]
	read   int // objects that were received
	log    logtest.Buffer
}

// publishes reports whether a node has the annotation that makes its metadata sufficient.
func publishes(n *metav1.PartialObjectMetadata) bool { return n.Annotations["published"] != "" }

func follow(ctx context.Context, t *testing.T, api *kubetest.API, plain bool, spread time.Duration) *following {
	t.Helper()
	client, err := NewClient(api.Config())
	must(t, err)
	f := &following{reader: NewNodeReader(func() (Client, error) { return client, nil }, publishes)}
	f.watch = NewWatch(WatchConfig[string]{
		Cluster: "gcp", Kind: "nodes", Reader: f.reader,
		Keep: func(o runtime.Object) (string, bool) {
			f.read++
			n, err := meta.Accessor(o)
			if err != nil {
				return "", false
			}
			if _, whole := o.(*corev1.Node); whole {
				return n.GetName(), true
			}
			return "(" + n.GetName() + ")", true
		},
		Spread: func() time.Duration { return spread },
		Logger: slog.New(slog.NewTextHandler(&f.log, nil)), Metrics: NewMetrics("test", "test_failures_total"),
	})
	f.watch.unstreamed = plain
	go func() { _ = f.watch.Run(ctx) }()
	return f
}

func (f *following) nodes() string {
	all, _ := f.watch.Snapshot()
	slices.Sort(all)
	return strings.Join(all, " ")
}

func put(t *testing.T, api *kubetest.API, name string, published bool) {
	t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if published {
		n.Annotations = map[string]string{"published": "true"}
	}
	api.Put(t, "nodes", n)
}

// TestMetadataWhereItSuffices follows nodes of both kinds.
func TestMetadataWhereItSuffices(t *testing.T) {
	for name, plain := range map[string]bool{"streamed": false, "plain": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				api := kubetest.NewAPI()
				put(t, api, "a", true)
				f := follow(ctx, t, api, plain, 0)
				want := func(nodes string, whole bool, received int) {
					t.Helper()
					time.Sleep(10 * time.Second)
					synctest.Wait()
					if got := f.nodes(); got != nodes || f.reader.Whole() != whole {
						t.Errorf("%s, whole: %v, want %s, %v", got, f.reader.Whole(), nodes, whole)
					}
					if f.read != received {
						t.Errorf("%s: %d objects were received, want %d", nodes, f.read, received)
					}
					f.read = 0
				}
				want("(a)", false, 1)
				put(t, api, "b", true)
				want("(a) (b)", false, 1)
				put(t, api, "c", false)
				want("(a) (b) c", true, 1) // without a list
				put(t, api, "b", false)
				want("(a) b c", true, 1)
				f.reader.SetWhole(false)
				f.watch.Renew()
				want("a b c", true, 4) // one as metadata
				put(t, api, "b", true)
				api.Remove("nodes", "", "c")
				want("a b", true, 1)
				f.reader.SetWhole(false)
				f.watch.Renew()
				want("(a) (b)", false, 2)
				api.Remove("nodes", "", "b")
				want("(a)", false, 0)
				if err := f.watch.Err(); err != nil || strings.Contains(f.log.String(), "level=WARN") {
					t.Errorf("Err() = %v, log:\n%s", err, f.log.String())
				}
				cancel()
				synctest.Wait()
			})
		})
	}
}

// TestListsAreSpread restarts an API server that many clients watch, at the same version and then
// at an earlier one, where they have to list.
func TestListsAreSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const clients, spread = 60, 100 * time.Second
		ctx, cancel := context.WithCancel(t.Context())
		api := kubetest.NewAPI()
		put(t, api, "a", true)
		backup := api.Save()
		put(t, api, "b", true)
		all := make([]*following, clients)
		for i := range all {
			all[i] = follow(ctx, t, api, false, spread)
		}
		has := func(nodes string) (n int) {
			synctest.Wait()
			for _, f := range all {
				if f.nodes() == nodes {
					n++
				}
			}
			return n
		}
		time.Sleep(time.Second)
		if n := has("(a) (b)"); n != clients {
			t.Errorf("%d clients have listed at once, want all", n)
		}
		api.Stop()
		put(t, api, "c", true)
		time.Sleep(time.Minute)
		api.Start()
		time.Sleep(10 * time.Second) // The last back-off is 8 s.
		if n := has("(a) (b) (c)"); n != clients {
			t.Errorf("%d clients have resumed, want all", n)
		}
		api.Stop()
		api.Restore(backup)
		api.Start()
		time.Sleep(spread / 4)
		early := has("(a)")
		all[0].watch.Renew()
		time.Sleep(time.Second)
		synctest.Wait()
		if got := all[0].nodes(); got != "(a)" {
			t.Errorf("%s after Renew, want (a)", got)
		}
		time.Sleep(spread + 10*time.Second)
		if n := has("(a)"); early == 0 || early > clients*3/5 || n != clients {
			t.Errorf("%d of %d lists in the first quarter, %d in the end", early, clients, n)
		}
		cancel()
		synctest.Wait()
	})
}
