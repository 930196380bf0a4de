package kube

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/synctest"
)

// feedOf makes a feed of what a watch of nodes reads.
func feedOf(cfg WatchConfig[node]) *Feed[node] {
	keep, equal := cfg.Keep, cfg.Equal
	return NewFeed(WatchConfig[*node]{
		Cluster: cfg.Cluster, Kind: cfg.Kind, Server: cfg.Server, ListWatch: cfg.ListWatch, Reader: cfg.Reader,
		Keep: func(obj runtime.Object) (*node, bool) {
			n, kept := keep(obj)
			return &n, kept
		},
		Equal:  func(a, b *node) bool { return equal(*a, *b) },
		Notify: cfg.Notify, Bounds: cfg.Bounds, Logger: cfg.Logger, Metrics: cfg.Metrics,
	})
}

// itemsOf trims nodes as the feed does.
func (f *Feed[T]) itemsOf(t testing.TB, nodes ...*corev1.Node) (items []any) {
	t.Helper()
	for _, n := range nodes {
		i, err := f.trim(n)
		if err != nil || i == nil {
			t.Fatal(i, err)
		}
		items = append(items, i)
	}
	return items
}

// prepareFeed makes a feed of an API server's nodes.
func prepareFeed(t *testing.T) (*bench, *Feed[node]) {
	t.Helper()
	b := prepare(t)
	return b, feedOf(b.watch.cfg)
}

// consumer follows a feed by its changes alone.
type consumer struct {
	feed *Feed[node]
	has  map[string]*node
	took int // changes
}

// take applies the next changes, and checks that they continue from the previous ones.
func (c *consumer) take(t *testing.T) (synced bool) {
	t.Helper()
	changes, synced := c.feed.Changes()
	for _, ch := range changes {
		if ch.Before != c.has[ch.Key] {
			t.Errorf("%s was %v, want what was handed out: %v", ch.Key, ch.Before, c.has[ch.Key])
		}
		if ch.After == ch.Before {
			t.Errorf("%s is handed out although it is the same", ch.Key)
		}
		c.took++
		if delete(c.has, ch.Key); ch.After != nil {
			c.has[ch.Key] = ch.After
		}
	}
	return synced
}

func (c *consumer) names() string {
	var all []string
	for _, n := range c.has {
		all = append(all, n.Name+"="+n.Kubelet)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// follow waits until the consumer has all of these.
func (c *consumer) follow(t *testing.T, what, want string) {
	t.Helper()
	eventually(t, what, func() bool { return c.take(t) && c.names() == want })
}

func runFeed(t *testing.T, task interface{ Run(context.Context) error }) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- task.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestChangesAddUp applies the changes of random events: the result is that of the feed,
// each difference is returned once, and equal objects never.
func TestChangesAddUp(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	f := feedOf((&bench{}).config(nil))
	c := &consumer{feed: f, has: map[string]*node{}}
	if changes, synced := f.Changes(); changes != nil || synced {
		t.Errorf("before the first list: %v, synced %v", changes, synced)
	}
	object := func() *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: strconv.Itoa(random.IntN(8))}}
		n.Annotations = map[string]string{"kubelet": []string{"v1", "v2", "v3", "unwanted"}[random.IntN(4)]}
		return n
	}
	must(t, f.store.Replace(nil, "1"))
	before := ""
	for step := range 5000 {
		for range random.IntN(4) {
			switch random.IntN(6) {
			case 0:
				var list []*corev1.Node
				for range random.IntN(8) {
					list = append(list, object())
				}
				must(t, f.store.Replace(f.itemsOf(t, list...), "1"))
			case 1, 2:
				must(t, f.store.Delete(f.itemsOf(t, object())[0]))
			default:
				must(t, f.store.Update(f.itemsOf(t, object())[0]))
			}
		}
		took := c.took
		if !c.take(t) {
			t.Fatal("not synced")
		}
		all, _ := f.Snapshot()
		want := &consumer{has: map[string]*node{}}
		for _, n := range all {
			want.has[n.Name] = n
		}
		if diff := gocmp.Diff(want.has, c.has); diff != "" {
			t.Fatalf("step %d (-feed +consumer):\n%s", step, diff)
		}
		if after := c.names(); c.took == took && after != before {
			t.Fatalf("step %d: %q became %q without a change", step, before, after)
		}
		before = c.names()
		if changes, _ := f.Changes(); len(changes) > 0 {
			t.Fatalf("step %d: %v is handed out twice", step, changes)
		}
	}
}

// TestUnreadChangesAreBounded checks that unread changes don't include objects that were
// created and deleted meanwhile.
func TestUnreadChangesAreBounded(t *testing.T) {
	t.Parallel()
	_, f := prepareFeed(t)
	if err := f.store.Replace(f.itemsOf(t, nodeAt(1, "stays", "v1", ""), nodeAt(1, "goes", "v1", "")), "1"); err != nil {
		t.Fatal(err)
	}
	c := &consumer{feed: f, has: map[string]*node{}}
	c.take(t)
	for i := range 1000 {
		n := f.itemsOf(t, nodeAt(i, fmt.Sprint(i), "v1", ""))[0]
		if err := f.store.Update(n); err != nil {
			t.Fatal(err)
		}
		if err := f.store.Delete(n); err != nil {
			t.Fatal(err)
		}
	}
	// Lists may have an object twice.
	for i := range 10 {
		if err := f.store.Replace(f.itemsOf(t, nodeAt(1, "stays", "v1", ""), nodeAt(i, fmt.Sprint("listed", i), "v1", ""),
			nodeAt(i, fmt.Sprint("twice", i), "v1", ""), nodeAt(i, fmt.Sprint("twice", i), "unwanted", "")), "1"); err != nil {
			t.Fatal(err)
		}
	}
	const most = 2 // what went of what was handed out, and what came
	if n := len(f.store.changes); n > most {
		t.Errorf("%d changes", n)
	}
	c.take(t)
	if got, want := c.names(), "listed9=v1 stays=v1"; got != want {
		t.Errorf("has %q, want %q", got, want)
	}
}

// TestRenewedFeedHandsOutDifferences renews a feed while some objects change: only these
// are returned.
func TestRenewedFeedHandsOutDifferences(t *testing.T) {
	t.Parallel()
	for name, stream := range map[string]bool{"streamed list": true, "plain list": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, f := prepareFeed(t)
			b.api.set(func() { b.api.stream = stream })
			for _, n := range []string{"a", "b", "c"} {
				b.api.apply(n, "v1", "")
			}
			runFeed(t, f)
			c := &consumer{feed: f, has: map[string]*node{}}
			c.follow(t, "everything", "a=v1 b=v1 c=v1")
			for round := range 10 {
				kubelet := fmt.Sprintf("v%d", 2+round)
				f.Renew()
				b.api.apply("b", kubelet, "")
				c.follow(t, "the difference", "a=v1 b="+kubelet+" c=v1")
			}
			if most := 3 + 10; c.took != most {
				t.Errorf("%d changes were handed out, want %d", c.took, most)
			}
			if !f.Synced() || f.Err() != nil || f.Len() != 3 {
				t.Errorf("synced %v, error %v, %d objects", f.Synced(), f.Err(), f.Len())
			}
			b.wantNoFailure(t)
		})
	}
}

// TestFeedsListWhatIsInEtcd reads the requests.
func TestFeedsListWhatIsInEtcd(t *testing.T) {
	t.Parallel()
	for _, current := range []bool{true, false} {
		b, f := prepareFeed(t)
		f.quorum = current
		b.api.set(func() { b.api.stream = false })
		runFeed(t, f)
		eventually(t, "sync", f.Synced)
		cached := false
		for _, r := range b.api.seen() {
			query := r.URL.Query()
			cached = cached || query.Get("watch") == "" && query.Get("resourceVersion") != ""
		}
		if cached == current {
			t.Errorf("current %v: lists may come from a cache: %v", current, cached)
		}
	}
}

// TestOnlyANewListEndsStaleness tries all other responses of a server.
func TestOnlyANewListEndsStaleness(t *testing.T) {
	ctx := t.Context()
	cfg := (&bench{}).config(nil)
	cfg.Logger = slog.New(slog.DiscardHandler)
	cfg.Server = NewServer(ServerConfig{Cluster: "gcp", StaleAfter: 10 * time.Second})
	f := feedOf(cfg)
	requests := newRequests(f.Watch)
	if f.staleAt(f.started.Add(10 * time.Second)) {
		t.Error("stale at once without contact")
	}
	if !f.staleAt(f.started.Add(11 * time.Second)) {
		t.Error("not stale although there was no contact since start")
	}
	must(t, f.store.Replace(nil, "1"))
	f.health.record(ctx, true)
	at := f.LastContact()
	if requests.failed(ctx, verbWatch, apierrors.NewResourceExpired("gone")); !f.LastContact().Equal(at) {
		t.Error("an answer that says nothing of the objects counts as contact")
	}
	if f.staleAt(at.Add(9 * time.Second)) {
		t.Error("stale although everything was read")
	}
	if !f.staleAt(at.Add(11 * time.Second)) {
		t.Error("not stale after its time")
	}
	for what, answer := range map[string]func(){
		"a version that is gone": func() { requests.failed(ctx, verbWatch, apierrors.NewResourceExpired("gone")) },
		"a part of a list":       func() { f.health.record(ctx, false) },
		"a watch that opens":     func() { f.health.record(ctx, true); f.health.streamOpened() },
		"an event":               func() { must(t, f.store.Update(f.itemsOf(t, nodeAt(1, "a", "v1", ""))[0])) },
	} {
		if answer(); !f.staleAt(time.Now()) {
			t.Errorf("%s ended it", what)
		}
	}
	must(t, f.store.Replace(nil, "1"))
	if f.staleAt(time.Now()) {
		t.Error("stale after a new list")
	}
}

// silentServer responds to lists, or never: after errors client-go sleeps by the real
// clock, which doesn't work in a synctest bubble.
type silentServer struct{ up chan chan struct{} }

func newSilentServer() *silentServer {
	s := &silentServer{up: make(chan chan struct{}, 1)}
	open := make(chan struct{})
	close(open)
	s.up <- open
	return s
}

func (s *silentServer) set(down bool) {
	gate := <-s.up
	if down {
		gate = make(chan struct{})
	} else {
		close(gate)
	}
	s.up <- gate
}

func (s *silentServer) ping(ctx context.Context) error {
	gate := <-s.up
	s.up <- gate
	select {
	case <-gate:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// plainLists disables streamed lists.
type plainLists struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported is called by client-go's reflector.
func (plainLists) IsWatchListSemanticsUnSupported() bool { return true }

func (s *silentServer) listWatch() cache.ListerWatcher {
	return plainLists{&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
			if err := s.ping(ctx); err != nil {
				return nil, err
			}
			return &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: []corev1.Node{*nodeAt(1, "a", "v1", "")}}, nil
		},
		WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return watch.NewFake(), nil },
	}}
}

// TestFeedOfAServerThatFallsSilent loses and regains contact. The objects stay, and are the
// same afterwards.
func TestFeedOfAServerThatFallsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSilentServer()
		cfg := (&bench{}).config(nil)
		cfg.Logger, cfg.ListWatch, cfg.Reader = slog.New(slog.DiscardHandler), s.listWatch(), nil
		cfg.Server = NewServer(ServerConfig{Cluster: "gcp", StaleAfter: 30 * time.Second, Ping: s.ping, Logger: cfg.Logger})
		notified := make(chan bool, 100)
		var f *Feed[node]
		cfg.Notify = func() { notified <- f.Stale() }
		f = feedOf(cfg)
		runFeed(t, cfg.Server)
		runFeed(t, f)
		c := &consumer{feed: f, has: map[string]*node{}}
		elapse(time.Minute)
		if !c.take(t) || c.names() != "a=v1" || f.Stale() {
			t.Fatalf("synced %v with %q, stale %v", f.Synced(), c.names(), f.Stale())
		}
		took := c.took
		for len(notified) > 0 {
			<-notified
		}
		s.set(true)
		elapse(10 * time.Minute)
		if len(notified) != 1 || !<-notified || !f.Stale() {
			t.Error("want one notification that it is stale")
		}
		if !f.Synced() || f.Len() != 1 {
			t.Error("what was known is gone")
		}
		s.set(false)
		elapse(10 * time.Second)
		if len(notified) != 1 || <-notified || f.Stale() {
			t.Error("want one notification that it is stale no more")
		}
		if c.take(t); c.took != took {
			t.Errorf("%d changes of what is the same", c.took-took)
		}
	})
}

// restorable is a server with a synced feed and consumer.
type restorable struct {
	*bench
	*consumer
}

// startRestorable starts a server of a feed that adjust has changed.
func startRestorable(t *testing.T, stream bool, adjust func(*Feed[node])) *restorable {
	t.Helper()
	b, f := prepareFeed(t)
	adjust(f)
	r := &restorable{b, &consumer{feed: f, has: map[string]*node{}}}
	b.api.set(func() { b.api.stream, b.api.version = stream, 100 })
	for _, n := range []string{"a", "b", "c"} {
		b.api.apply(n, "v1", "")
	}
	runFeed(t, f)
	r.follow(t, "everything", "a=v1 b=v1 c=v1")
	// Without an event, the end of a watch would cause a list.
	b.api.apply("c", "v2", "")
	r.follow(t, "an event", "a=v1 b=v1 c=v2")
	return r
}

// TestServerThatWasRestored restores a backup while the server is stopped, or without a failed
// request.
func TestServerThatWasRestored(t *testing.T) {
	t.Parallel()
	for _, stream := range []bool{true, false} {
		for _, current := range []bool{true, false} {
			t.Run(fmt.Sprintf("streamed %v, current %v", stream, current), func(t *testing.T) {
				t.Parallel()
				r := startRestorable(t, stream, func(f *Feed[node]) { f.quorum = current })
				address := r.api.address()
				r.api.stop()
				eventually(t, "error", func() bool { return r.feed.Err() != nil })
				r.api.restore("b", "d")
				r.api.start(t, address)
				r.follow(t, "what was restored", "b=restored d=restored")
				r.api.restore("b")
				r.api.http.CloseClientConnections()
				r.follow(t, "what was restored again", "b=restored")
				r.api.apply("e", "v1", "")
				r.follow(t, "going on", "b=restored e=v1")
			})
		}
	}
}

// TestWorkPerEventIsFlat counts what one event allocates among few and many objects.
func TestWorkPerEventIsFlat(t *testing.T) {
	per := func(objects int) float64 {
		f := feedOf((&bench{}).config(nil))
		var all []*corev1.Node
		for i := range objects {
			all = append(all, nodeAt(1, strconv.Itoa(i), "v1", ""))
		}
		must(t, f.store.Replace(f.itemsOf(t, all...), "1"))
		if changes, _ := f.Changes(); len(changes) != objects {
			t.Fatalf("%d changes, want %d", len(changes), objects)
		}
		version := 0
		return testing.AllocsPerRun(100, func() {
			version++
			if f.store.Update(f.itemsOf(t, nodeAt(1, "7", strconv.Itoa(version), ""))[0]) != nil {
				t.Fatal("not updated")
			}
			if changes, _ := f.Changes(); len(changes) != 1 {
				t.Fatalf("%d changes, want 1", len(changes))
			}
		})
	}
	few, many := per(100), per(10_000)
	t.Logf("%v allocations per event among 100 objects, %v among 10,000", few, many)
	if many > few+2 {
		t.Error("they grow with the number of objects")
	}
}
