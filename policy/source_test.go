package policy

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/run"
)

// podServer lists pods, or doesn't answer: errors make client-go sleep in a way
// that looks at the real clock, which doesn't go with a bubble of time.
type podServer struct {
	mu    sync.Mutex
	pods  []corev1.Pod
	up    chan struct{} // closed when it answers again; nil: it does
	lists int
}

func (s *podServer) set(down bool, names ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pods = nil; down {
		s.up = make(chan struct{})
	} else if s.up != nil {
		close(s.up)
		s.up = nil
	}
	for _, name := range names {
		s.pods = append(s.pods, *podObject("ns", name, "app", corev1.PodRunning, "10.4.0.1"))
	}
}

func (s *podServer) listed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lists
}

// noWatchList tells client-go's reflector to list in the plain way.
type noWatchList struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported is what the reflector asks.
func (noWatchList) IsWatchListSemanticsUnSupported() bool { return true }

// ask is a sign of life.
func (s *podServer) ask(ctx context.Context) error {
	s.mu.Lock()
	up := s.up
	s.mu.Unlock()
	if up == nil {
		return nil
	}
	select {
	case <-up:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// source returns pods of the server.
func (s *podServer) source(changed func()) *source[Pod] { return s.sourceOf(nil, changed) }

func (s *podServer) sourceOf(server *kube.Server, changed func()) *source[Pod] {
	keep := PodFor(podLabel)
	return newSource("pods", changed, func(notify func()) *kube.Watch[Pod] {
		return kube.NewWatch(kube.WatchConfig[Pod]{
			Cluster: "gcp", Server: server, Kind: "pods", Object: &corev1.Pod{}, Notify: notify, Equal: Pod.Equal,
			Keep: func(obj k8sruntime.Object) (Pod, bool) {
				pod, ok := obj.(*corev1.Pod)
				if !ok {
					return Pod{}, false
				}
				return keep(pod)
			},
			ListWatch: noWatchList{&cache.ListWatch{
				ListWithContextFunc: func(ctx context.Context, _ metav1.ListOptions) (k8sruntime.Object, error) {
					s.mu.Lock()
					s.lists++
					up := s.up
					s.mu.Unlock()
					if up != nil {
						select {
						case <-up:
						case <-ctx.Done():
							return nil, ctx.Err()
						}
					}
					s.mu.Lock()
					defer s.mu.Unlock()
					list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}
					list.Items = append(list.Items, s.pods...)
					return list, nil
				},
				WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
					return watch.NewFake(), nil
				},
			}},
			Logger: slog.New(slog.DiscardHandler),
		})
	})
}

// runFor runs a source until the test ends.
func (s *source[T]) runFor(t *testing.T) { runFor(t, s) }

func runFor(t *testing.T, task run.Task) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := task.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}

func podNames(s *source[Pod]) string {
	pods, synced := s.Snapshot()
	if !synced {
		return "unknown"
	}
	names := []string{}
	for i := range pods {
		names = append(names, pods[i].Name)
	}
	return fmt.Sprint(names)
}

func TestRenewKeepsWhatIsKnownUntilTheNewListIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &podServer{}
		server.set(false, "a")
		s := server.source(func() {})
		s.runFor(t)
		synctest.Wait()
		server.set(true)
		s.Renew()
		elapse(time.Minute)
		if got := podNames(s); got != "[a]" {
			t.Errorf("while the new list goes on: %s, want what was known", got)
		}
		if n := server.listed(); n != 2 {
			t.Errorf("%d lists, want the second one to have begun", n)
		}
		server.set(false, "b")
		elapse(time.Minute)
		if got := podNames(s); got != "[b]" {
			t.Errorf("after the new list: %s", got)
		}
		lists := server.listed()
		elapse(time.Minute)
		if n := server.listed(); n != lists {
			t.Errorf("%d more lists by nobody's wish", n-lists)
		}
	})
}

func TestResetForgetsWhatIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &podServer{}
		server.set(false, "a")
		changes := make(chan struct{}, 100)
		s := server.source(func() { changes <- struct{}{} })
		s.runFor(t)
		synctest.Wait()
		contact := s.LastContact()
		elapse(time.Second)
		server.set(true)
		s.Reset()
		elapse(time.Minute)
		if got := podNames(s); got != "unknown" {
			t.Errorf("after the reset: %s", got)
		}
		if !s.LastContact().Equal(contact) {
			t.Errorf("last contact %v, want %v still", s.LastContact(), contact)
		}
		for len(changes) > 0 {
			<-changes
		}
		server.set(false, "b")
		elapse(time.Minute)
		if got := podNames(s); got != "[b]" || len(changes) == 0 {
			t.Errorf("after the new list: %s, %d notifications", got, len(changes))
		}
	})
}

// TestContactDecidesWhenSetsGoStale takes a remote through the loss of contact.
func TestContactDecidesWhenSetsGoStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &podServer{}
		server.set(false, "a")
		r := &remote{started: time.Now()}
		r.server = kube.NewServer(kube.ServerConfig{
			Cluster: "gcp", StaleAfter: 30 * time.Second, Ask: server.ask, Logger: slog.New(slog.DiscardHandler),
		})
		r.pods = server.sourceOf(r.server, func() {})
		r.pods.runFor(t)
		runFor(t, r.server)
		synctest.Wait()
		stale := func() bool {
			stale := r.checkContact(time.Now())
			r.state.stale = stale
			return stale
		}
		// A watch without events is contact, for as long as it can be silent
		// and the server shows that it is there.
		for range 4 * 60 {
			elapse(500 * time.Millisecond)
			if stale() {
				t.Fatal("stale although the watch is open")
			}
		}
		elapse(31 * time.Second)
		if !stale() {
			t.Error("not stale although not even a bookmark came")
		}
		// The reset has listed anew.
		elapse(time.Second)
		if stale() {
			t.Error("stale although everything has been read again")
		}
		// The watch stays open, and nobody is at the other end.
		server.set(true)
		elapse(18 * time.Second)
		if stale() {
			t.Error("stale before its time")
		}
		elapse(14 * time.Second)
		for range 2 {
			if !stale() {
				t.Error("not stale after its time")
			}
		}
		server.set(false, "b")
		elapse(time.Minute)
		if stale() {
			t.Error("stale although contact is back")
		}
	})
}

func TestHoldingEnds(t *testing.T) {
	r := &remote{held: map[Held]time.Time{}}
	h := Held{Object: "gcp-ns-a", Addr: addr("10.4.0.1")}
	now := time.Unix(1000, 0)
	for age := time.Duration(0); age <= holdLimit; age += holdLimit / 5 {
		if r.expired(now.Add(age))(h) {
			t.Fatalf("expired after %v", age)
		}
		r.hold([]Held{h}, now.Add(age))
	}
	after := now.Add(holdLimit + time.Millisecond)
	if !r.expired(after)(h) {
		t.Fatal("held for ever")
	}
	r.hold(nil, after)
	if !r.expired(after.Add(time.Second))(h) {
		t.Error("held anew while its removal may not have been written yet")
	}
	r.hold(nil, after.Add(2*holdLimit))
	if diff := cmp.Diff(0, len(r.held)); diff != "" {
		t.Errorf("%d addresses are remembered for ever", len(r.held))
	}
}

// TestMemoryOfManyPods watches 50,000 pods as large as pods are.
func TestMemoryOfManyPods(t *testing.T) {
	const count = 50_000
	server := &podServer{}
	for i := range count {
		p := podObject(fmt.Sprintf("namespace-%d", i%50), fmt.Sprintf("deployment-%d-5d4f8c7b9d-%05d", i%500, i), fmt.Sprintf("app-%d", i%500),
			corev1.PodRunning, netip.AddrFrom4([4]byte{10, 4, byte(i >> 8), byte(i)}).String(), fmt.Sprintf("fd00:10:4::%x", i))
		p.Spec.Containers = []corev1.Container{{Name: "main", Image: "registry.example/app"}}
		server.pods = append(server.pods, *p)
	}
	heap := func() float64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc) / (1 << 20)
	}
	before := heap()
	synced := make(chan struct{}, 1000)
	s := server.source(func() { synced <- struct{}{} })
	s.runFor(t)
	select {
	case <-synced:
	case <-time.After(time.Minute):
		t.Fatal("not synced")
	}
	grown := heap() - before
	t.Logf("%.1f MiB for %d pods of two addresses each", grown, count)
	// Names and keys make up a half of it.
	if grown > 30 {
		t.Errorf("%.1f MiB for %d pods, want 30 at most", grown, count)
	}
	runtime.KeepAlive(server)
}
