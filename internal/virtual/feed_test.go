package virtual

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/run"
	"github.com/kube-semaphore/kube-semaphore/internal/status"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/logtest"
)

// bed is a feed of an API server in memory.
type bed struct {
	*Feed
	api      *kubetest.API
	log      *logtest.Buffer
	notified atomic.Int64
}

// bubble runs a test of a feed in a bubble of testing/synctest. prepare is called before the feed
// begins.
func bubble(t *testing.T, prepare func(*bed), test func(t *testing.T, b *bed)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bed{api: kubetest.NewAPI(), log: &logtest.Buffer{}}
		prepare(b)
		client, err := kube.NewClient(b.api.Config())
		if err != nil {
			t.Fatal(err)
		}
		b.Feed = NewFeed(Config{
			Cluster: "gcp", Client: func() (kube.Client, error) { return client, nil }, Logger: slog.New(slog.NewTextHandler(b.log, nil)),
			Notify: func() { b.notified.Add(1) },
		})
		kubetest.Run(t, []run.Task{b.Feed}, func(ctx context.Context) error {
			<-ctx.Done()
			return nil
		})
		time.Sleep(time.Second)
		test(t, b)
	})
}

func (b *bed) put(t *testing.T, name, text string) {
	t.Helper()
	annotations := map[string]string{podCIDRs: "10.0.0.0/24"}
	if text != "" {
		annotations[config.SubnetMapAnnotation] = text
	}
	b.api.Put(t, "nodes", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}})
	synctest.Wait()
}

func (b *bed) forbid(resources ...string) {
	b.api.Hook(func(h *kubetest.Hooks) {
		h.Read = func(resource string) *metav1.Status {
			if !slices.Contains(resources, resource) {
				return nil
			}
			return kubetest.Failure(http.StatusForbidden, metav1.StatusReasonForbidden)
		}
	})
}

// read returns the nodes that have changed.
func (b *bed) read(t *testing.T) (changed []string) {
	t.Helper()
	b.Read(t.Context(), func(node string) { changed = append(changed, node) })
	return changed
}

func (b *bed) want(t *testing.T, address string) {
	t.Helper()
	b.read(t)
	if got, _ := b.Of("n", netip.MustParseAddr("10.0.0.1")); got.String() != address {
		t.Errorf("10.0.0.1 is %v, want %s", got, address)
	}
}

const mapA, mapB = "10.0.0.0/16=10.4.0.0/16", "10.0.0.0/16=10.5.0.0/16"

func TestFeedFollows(t *testing.T) {
	bubble(t, func(b *bed) { b.put(t, "n", mapA) }, func(t *testing.T, b *bed) {
		if !b.Known(false) || b.Status().State != status.MapNone {
			t.Errorf("known %v, status %+v", b.Known(false), b.Status())
		}
		if changed := b.read(t); strings.Join(changed, " ") != "n " {
			t.Errorf("changed %q", changed)
		}
		b.want(t, "10.4.0.1")
		b.put(t, "n", mapB)
		b.want(t, "10.5.0.1")
		b.put(t, "n", mapB)
		b.put(t, "m", mapB)
		if changed := b.read(t); strings.Join(changed, " ") != "m" {
			t.Errorf("changed %q by a node with the same map", changed)
		}
		time.Sleep(time.Minute)
		b.put(t, "n", "")
		b.want(t, "10.0.0.1")
		time.Sleep(time.Minute)
		b.api.Remove("nodes", "", "n")
		synctest.Wait()
		b.want(t, "10.5.0.1")
		if s := b.Status(); s.State != status.MapKnown || s.Error != "" {
			t.Errorf("status %+v", s)
		}
	})
}

// TestForbiddenNodesAreNoMap forbids nodes, and then allows reading them.
func TestForbiddenNodesAreNoMap(t *testing.T) {
	bubble(t, func(b *bed) {
		b.put(t, "n", mapA)
		b.forbid("nodes")
	}, func(t *testing.T, b *bed) {
		if b.Known(false) {
			t.Error("known before other lists have succeeded")
		}
		if b.Known(true) {
			t.Error("known by an answer from before other lists have succeeded")
		}
		before := b.notified.Load()
		synctest.Wait()
		if b.notified.Load() == before {
			t.Error("the answer doesn't trigger anything")
		}
		if !b.Known(true) || b.Status().State != status.MapForbidden {
			t.Errorf("known %v, status %+v", b.Known(true), b.Status())
		}
		b.want(t, "10.0.0.1")
		if text := b.log.Take(); strings.Contains(text, "WARN") {
			t.Errorf("an account of an older release fails:\n%s", text)
		}
		b.forbid()
		time.Sleep(time.Minute)
		b.want(t, "10.4.0.1")
		if !b.Known(true) || b.Status().State != status.MapKnown {
			t.Errorf("known %v, status %+v", b.Known(true), b.Status())
		}
		// Rights that are lost later make nothing unknown.
		b.forbid("nodes")
		b.Renew()
		time.Sleep(time.Minute)
		b.want(t, "10.4.0.1")
		if s := b.Status(); !b.Known(true) || s.State != status.MapKnown || !strings.Contains(s.Error, "Forbidden") {
			t.Errorf("known %v, status %+v", b.Known(true), s)
		}
	})
}

// TestServerThatStartsForbidsNothing has an API server that forbids everything until it has read
// its rules.
func TestServerThatStartsForbidsNothing(t *testing.T) {
	bubble(t, func(b *bed) {
		b.put(t, "n", mapA)
		b.forbid("nodes", "pods")
	}, func(t *testing.T, b *bed) {
		b.forbid()
		if b.Known(true) {
			t.Error("known by an answer from before other lists have succeeded")
		}
		synctest.Wait()
		if !b.Known(true) {
			t.Error("not known")
		}
		b.want(t, "10.4.0.1")
	})
}

// TestNodesThatAreNotAnsweredAreNotKnown has an API server that is down.
func TestNodesThatAreNotAnsweredAreNotKnown(t *testing.T) {
	bubble(t, func(b *bed) { b.api.Stop() }, func(t *testing.T, b *bed) {
		if s := b.Status(); b.Known(true) || s.State != status.MapUnread || s.Error == "" {
			t.Errorf("known %v, status %+v", b.Known(true), s)
		}
	})
}

// TestChangesOfOneNodeAreDamped changes the map of one node twice, and then again and again.
func TestChangesOfOneNodeAreDamped(t *testing.T) {
	bubble(t, func(b *bed) {
		b.put(t, "n", "")
		b.put(t, "m", mapA)
	}, func(t *testing.T, b *bed) {
		b.read(t)
		b.put(t, "n", mapA)
		b.want(t, "10.4.0.1")
		b.put(t, "n", mapB)
		b.want(t, "10.4.0.1")
		b.put(t, "n", "")
		before := b.notified.Load()
		time.Sleep(firstWait)
		synctest.Wait()
		if b.notified.Load() == before {
			t.Error("the end of the delay triggers nothing")
		}
		b.want(t, "10.0.0.1")

		time.Sleep(time.Hour)
		const every = 500 * time.Millisecond
		changes, wanted := 0, 10 // 0, 10, 30, 70, 150, 310, 630, 1230, ...
		for i := range int(time.Hour / 2 / every) {
			b.put(t, "n", []string{mapA, mapB}[i%2])
			for _, node := range b.read(t) {
				if node == "n" {
					changes++
				}
			}
			time.Sleep(every)
		}
		if changes > wanted {
			t.Errorf("%d changes in half an hour, want %d at most", changes, wanted)
		}
		b.put(t, "n", mapA)
		time.Sleep(longestWait)
		b.want(t, "10.4.0.1")
		time.Sleep(2 * longestWait)
		b.put(t, "m", "")
		b.read(t)
		if len(b.damper.nodes) != 1 || len(b.damper.later) > 0 {
			t.Errorf("it remembers %d nodes, and %d changes", len(b.damper.nodes), len(b.damper.later))
		}
	})
}

// TestChangesForUnknownNodesAreDamped has ever new nodes with a map of their own.
func TestChangesForUnknownNodesAreDamped(t *testing.T) {
	bubble(t, func(b *bed) { b.put(t, "m", mapA) }, func(t *testing.T, b *bed) {
		b.read(t)
		changes := 0
		for i := range 10_000 {
			if name := fmt.Sprint("n-", i/2); i%2 == 0 {
				b.put(t, name, mapB)
			} else {
				b.api.Remove("nodes", "", name)
				synctest.Wait()
			}
			for _, node := range b.read(t) {
				if node == "" {
					changes++
				}
			}
			time.Sleep(50 * time.Millisecond)
		}
		if changes > 10 {
			t.Errorf("%d changes in 500 seconds", changes)
		}
		if n := len(b.damper.nodes); n > 5000 {
			t.Errorf("it remembers %d nodes", n)
		}
	})
}

// TestFlappingMapIsLoggedOnceAMinute changes a map a hundred times a second.
func TestFlappingMapIsLoggedOnceAMinute(t *testing.T) {
	bubble(t, func(b *bed) { b.put(t, "n", mapA) }, func(t *testing.T, b *bed) {
		b.read(t)
		if !strings.Contains(b.log.Take(), `map="10.0.0.0/16=10.4.0.0/16"`) {
			t.Error("a map isn't logged")
		}
		for i := range 3000 {
			b.put(t, "n", []string{mapA, mapB, "bad", fmt.Sprintf("10.0.0.0/16=10.%d.0.0/16", i%200+6)}[i%4])
			b.read(t)
			time.Sleep(10 * time.Millisecond)
		}
		if text := b.log.Take(); strings.Count(text, "\n") > 2 {
			t.Errorf("%d lines in half a minute:\n%s", strings.Count(text, "\n"), text)
		}
	})
}
