package agent

import (
	"flag"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

// TestRestartsGoUnnoticed restarts the agent of a node under traffic, by rollout and by
// kill: nothing changes in the kernel, and no packet is lost.
func TestRestartsGoUnnoticed(t *testing.T) {
	eachBackend(t, func(t *testing.T, backend string) {
		s := newSite(t, "aws", "gcp")
		here, there := s.addNode(t, s.clusters["aws"], backend), s.addNode(t, s.clusters["gcp"], backend)
		for _, n := range []*testNode{here, there} {
			n.serveEcho(t)
			n.start(t)
		}
		here.waitReady(t)
		there.waitReady(t)
		connection := connected(t, here, there)
		watched := here.watch(t)

		// A rollout without surge: the new process starts when the old one has ended.
		terminate := func() { here.stop(t) }
		for _, how := range []struct {
			name string
			away bool // the API servers are
			end  func()
		}{
			{"SIGTERM", false, terminate},
			{"kill -9", false, here.kill},
			{"SIGTERM with no API server there", true, terminate},
			{"kill -9 with no API server there", true, here.kill},
		} {
			if how.away {
				s.clusters["aws"].Leave()
				s.clusters["gcp"].Leave()
			}
			f := here.flowTo(t, there)
			how.end()
			here.start(t)
			here.waitReady(t)
			f.waitPassing(t, how.name)
			if _, lost := f.end(t, how.name); lost > 0 {
				t.Errorf("%s: %d packets are lost", how.name, lost)
			}
			lines := watched.take(t)
			if diff := cmp.Diff([]string(nil), lines); diff != "" {
				t.Errorf("%s: ip monitor route rule link prints\n%s", how.name, strings.Join(lines, "\n"))
			}
			connection.echo(t, how.name)
		}
	})
}

// With the race detector, two cores that start a hundred agents can't always read 10,000
// packets a second; without it, -args -storm-burst 50 is that rate.
var stormBurst = flag.Int("storm-burst", 10, "how many packets TestAStormOfKills sends each 5 ms")

// TestAStormOfKills kills the agent of a node a hundred times at random moments of its
// start, under packets in both directions: none may be lost, unless this machine loses
// packets without kills, too. The emulated machine gets fewer of both.
func TestAStormOfKills(t *testing.T) {
	nstest.Long(t)
	eachBackend(t, func(t *testing.T, backend string) {
		s := newSite(t, "aws", "gcp")
		here, there := s.addNode(t, s.clusters["aws"], backend), s.addNode(t, s.clusters["gcp"], backend)
		for _, n := range []*testNode{here, there} {
			n.serveEcho(t)
			n.start(t)
		}
		here.waitReady(t)
		there.waitReady(t)
		connection := connected(t, here, there)
		kills, burst := 100, *stormBurst // each 5 ms
		if backend == config.BackendKernel {
			kills, burst = 5, 1
		}
		under := func(what string, f func()) (lost uint64, heldBack time.Duration) {
			flow := here.flowOf(t, there, burst)
			f()
			_, lost = flow.end(t, what)
			return lost, flow.heldBack
		}
		undisturbed := func() {
			select {
			case <-time.After(5 * time.Second):
			case <-t.Context().Done():
			}
		}
		before, heldBefore := under("undisturbed", undisturbed)
		lost, held := under("kills", func() {
			for i := range kills {
				here.kill()
				here.start(t)
				select {
				case <-time.After(time.Duration(i) * 5 * time.Millisecond):
				case <-t.Context().Done():
				}
			}
			here.waitReady(t)
		})
		after, heldAfter := under("undisturbed", undisturbed)
		if lost > 0 && before+after == 0 {
			t.Errorf("%d packets are lost", lost)
		}
		// Kills must not delay packets either.
		if held > 5*time.Second && max(heldBefore, heldAfter) < time.Second {
			t.Errorf("no packet came back for %v", held)
		}
		connection.echo(t, "after the storm")
	})
}
