package kube

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestWatchFollowsTheCluster(t *testing.T) {
	t.Parallel()
	for name, stream := range map[string]bool{"streamed list": true, "plain list": false} {
		t.Run(name, func(t *testing.T) {
			b := prepare(t)
			b.api.set(func() { b.api.stream = stream })
			b.api.apply("a", "v1", "")
			b.api.apply("b", "v1", "")
			b.api.apply("c", "unwanted", "")
			if all, synced := b.watch.Snapshot(); len(all) > 0 || synced || !b.watch.LastContact().IsZero() {
				t.Errorf("before Run: %v, synced %v, last contact %v", all, synced, b.watch.LastContact())
			}
			if n := testutil.CollectAndCount(b.metrics, "test_remote_synced"); n > 0 {
				t.Errorf("%d series before Run: a watch that doesn't run isn't unsynced", n)
			}
			began := time.Now()
			b.run(t)
			eventually(t, "first sync", func() bool { return b.has(node{"a", "v1"}, node{"b", "v1"}) })
			b.wantSeries(t, "remote_synced", `cluster="gcp",kind="nodes"`, "1")
			if last := b.watch.LastContact(); last.Before(began) || last.After(time.Now()) {
				t.Errorf("last contact at %v, want it since %v", last, began)
			}
			b.api.apply("a", "v2", "")
			b.api.remove("b")
			b.api.apply("c", "wanted", "")
			eventually(t, "changes", func() bool { return b.has(node{"a", "v2"}, node{"c", "wanted"}) })
			b.api.apply("c", "unwanted", "")
			eventually(t, "an object that is no longer of interest", func() bool { return b.has(node{"a", "v2"}) })
			if err := b.watch.Err(); err != nil {
				t.Errorf("Err() = %v", err)
			}
			b.wantNoFailure(t)
		})
	}
}

// TestServerThatNeitherStreamsNorLists checks that the refusal of a streamed list counts
// neither as contact nor as recovery.
func TestServerThatNeitherStreamsNorLists(t *testing.T) {
	t.Parallel()
	b := prepare(t)
	b.api.set(func() { b.api.stream, b.api.lists = false, false })
	b.run(t)
	failed := func() float64 {
		return testutil.ToFloat64(b.metrics.failures.WithLabelValues("gcp", "nodes", verbList))
	}
	eventually(t, "two lists that fail", func() bool { return failed() >= 2 })
	if err := b.watch.Err(); err == nil || !strings.Contains(err.Error(), http.StatusText(http.StatusForbidden)) {
		t.Errorf("Err() = %v, want that of the list", err)
	}
	if n := testutil.ToFloat64(b.metrics.failures.WithLabelValues("gcp", "nodes", verbWatch)); n != 0 {
		t.Errorf("%v watches count as failed", n)
	}
	if last := b.watch.LastContact(); !last.IsZero() || b.watch.Synced() {
		t.Errorf("last contact %v, synced %v", last, b.watch.Synced())
	}
	if n := strings.Count(b.log.String(), "level=WARN"); n != 1 || strings.Contains(b.log.String(), "level=INFO") || strings.Contains(b.log.String(), "level=ERROR") {
		t.Errorf("%d warnings, want one, no recovery, and nothing else above level DEBUG:\n%s", n, b.log.String())
	}
	b.api.set(func() { b.api.lists = true })
	eventually(t, "sync", func() bool { return b.watch.Synced() && b.watch.Err() == nil })
}

func TestOnlyChangesOfKeptObjectsNotify(t *testing.T) {
	t.Parallel()
	b := prepare(t)
	b.api.apply("a", "v1", "1")
	b.run(t)
	eventually(t, "first sync", func() bool { return b.notified.Load() == 1 })
	for i := range 50 {
		b.api.apply("a", "v1", "beat "+string(rune('a'+i)))
	}
	b.api.apply("b", "v1", "")
	eventually(t, "a new node", func() bool { return b.has(node{"a", "v1"}, node{"b", "v1"}) })
	if n := b.notified.Load(); n != 2 {
		t.Errorf("notified %d times, also by heartbeats", n)
	}
	b.api.remove("b")
	eventually(t, "a removed node", func() bool { return b.notified.Load() == 3 })
}

func TestServerThatIsDownAtStart(t *testing.T) {
	t.Parallel()
	b := prepare(t)
	b.api.apply("a", "v1", "")
	address := b.api.address()
	b.api.stop()
	b.run(t)
	eventually(t, "error", func() bool { return b.watch.Err() != nil })
	if got, want := b.watch.Err().Error(), address+": dial tcp "+address+": connect: connection refused"; got != want {
		t.Errorf("Err() = %q, want %q", got, want)
	}
	if b.watch.Synced() || !b.watch.LastContact().IsZero() {
		t.Error("synced without ever having had contact")
	}
	b.api.start(t, address)
	eventually(t, "sync", func() bool { return b.has(node{"a", "v1"}) && b.watch.Err() == nil })
	if n := strings.Count(b.log.String(), "level=WARN"); n != 1 {
		t.Errorf("%d warnings for one failure:\n%s", n, b.log.String())
	}
	if !strings.Contains(b.log.String(), `msg="list and watch recovered" cluster=gcp kind=nodes`) {
		t.Errorf("recovery not logged:\n%s", b.log.String())
	}
}

func TestServerThatIsRestarted(t *testing.T) {
	t.Parallel()
	b := prepare(t)
	b.api.apply("a", "v1", "")
	b.api.apply("b", "v1", "")
	b.run(t)
	eventually(t, "sync", func() bool { return b.has(node{"a", "v1"}, node{"b", "v1"}) })
	notified, address := b.notified.Load(), b.api.address()
	b.api.stop()
	eventually(t, "error", func() bool { return b.watch.Err() != nil })
	if !b.has(node{"a", "v1"}, node{"b", "v1"}) || b.notified.Load() != notified {
		t.Error("the last known state changed when contact was lost")
	}
	if n := testutil.ToFloat64(b.metrics.failures.WithLabelValues("gcp", "nodes", verbWatch)); n == 0 {
		t.Error("no failure counted")
	}
	// What happened meanwhile can no longer be watched from where it was.
	b.api.apply("a", "v2", "")
	b.api.remove("b")
	b.api.apply("c", "v1", "")
	b.api.compact()
	b.api.start(t, address)
	eventually(t, "catching up", func() bool { return b.has(node{"a", "v2"}, node{"c", "v1"}) })
	b.api.apply("d", "v1", "")
	eventually(t, "going on", func() bool { return b.has(node{"a", "v2"}, node{"c", "v1"}, node{"d", "v1"}) })
	if err := b.watch.Err(); err != nil {
		t.Errorf("Err() = %v after coming back", err)
	}
}

func TestRelistThatFindsNothingNewIsSilent(t *testing.T) {
	t.Parallel()
	b := prepare(t)
	b.api.apply("a", "v1", "1")
	b.run(t)
	eventually(t, "sync", func() bool { return b.has(node{"a", "v1"}) })
	b.api.apply("a", "v1", "2")
	lists := func() (n int) {
		for _, r := range b.api.seen() {
			if r.URL.Query().Get("sendInitialEvents") == "true" {
				n++
			}
		}
		return n
	}
	b.api.compact()
	b.api.http.CloseClientConnections()
	eventually(t, "relist", func() bool { return lists() > 1 })
	b.api.apply("b", "v1", "")
	eventually(t, "going on", func() bool { return b.has(node{"a", "v1"}, node{"b", "v1"}) })
	if n := b.notified.Load(); n != 2 {
		t.Errorf("notified %d times, want once for the sync and once for the new node", n)
	}
}

func TestTokenThatExpires(t *testing.T) {
	t.Parallel()
	const next = "the-next-token"
	b := prepare(t)
	b.api.apply("a", "v1", "")
	b.run(t)
	eventually(t, "sync", func() bool { return b.has(node{"a", "v1"}) })
	b.api.set(func() { b.api.token = next })
	b.api.http.CloseClientConnections()
	eventually(t, "error", func() bool { return b.watch.Err() != nil && strings.Contains(b.watch.Err().Error(), "Unauthorized") })
	if n := testutil.ToFloat64(b.metrics.failures.WithLabelValues("gcp", "nodes", verbWatch)); n == 0 {
		t.Error("no failure counted")
	}
	b.api.apply("a", "v2", "")
	replaceFile(t, b.token, []byte(next))
	eventually(t, "recovery", func() bool { return b.has(node{"a", "v2"}) && b.watch.Err() == nil })
	b.stop()
	for _, unwanted := range []string{secret, next, "Request Body", "Response Body"} {
		if strings.Contains(b.log.String(), unwanted) {
			t.Errorf("%q in the log:\n%s", unwanted, b.log.String())
		}
	}
}

func TestBookmarkIsContact(t *testing.T) {
	t.Parallel()
	b := prepare(t)
	b.run(t)
	eventually(t, "sync", b.synced)
	before := b.watch.LastContact()
	b.api.bookmark()
	eventually(t, "newer contact", func() bool { return b.watch.LastContact().After(before) })
	if got := testutil.ToFloat64(b.metrics.lastContact.WithLabelValues("gcp", "nodes")); got < float64(before.Unix()) {
		t.Errorf("metric of the last contact is %v, want at least %v", got, before.Unix())
	}
	if n := b.notified.Load(); n != 1 {
		t.Errorf("notified %d times: a bookmark is no change", n)
	}
}

func TestServerThatHangsUpIsNotAskedInALoop(t *testing.T) {
	t.Parallel()
	b := prepare(t)
	b.api.set(func() { b.api.hangUp, b.api.stream = true, false })
	b.run(t)
	eventually(t, "second watch", func() bool { return len(b.api.seen()) >= 6 })
	begin, requests := time.Now(), len(b.api.seen())
	eventually(t, "some more", func() bool { return len(b.api.seen()) >= requests+3 })
	if took := time.Since(begin); took < 500*time.Millisecond {
		t.Errorf("a round of requests took %v, want a wait in between", took)
	}
}

func TestEndWhileBackingOff(t *testing.T) {
	t.Parallel()
	b := prepare(t)
	b.api.stop()
	b.run(t)
	// The third wait, of 3.2 s at least, is beyond what Run may take to end.
	eventually(t, "some failures", func() bool { return strings.Count(b.log.String(), "list or watch failed") >= 3 })
	begin := time.Now()
	b.stop()
	if took := time.Since(begin); took > 3*time.Second {
		t.Errorf("took %v to end", took)
	}
}
