package agent

import (
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/logtest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

// another returns a second agent of the node, as a rollout with surge starts one, with a
// socket of its own.
func (n *testNode) another(t *testing.T) *testNode {
	t.Helper()
	next := *n
	next.agent, next.stdin, next.log, next.env = nil, nil, new(logtest.Buffer), maps.Clone(n.env)
	next.socket = filepath.Join(t.TempDir(), "probe")
	next.env["SEMAPHORE_PROBE_SOCKET"] = next.socket
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of another agent of %s:\n%s", n.name, next.log.String())
		}
	})
	return &next
}

// standsBy waits until the agent stands by, and is ready or not, with the reason.
func (n *testNode) standsBy(t *testing.T, ready bool, why string) {
	t.Helper()
	last := ""
	defer func() {
		if t.Failed() {
			t.Log("it says", last)
		}
	}()
	await(t, fmt.Sprintf("%s to stand by, ready: %v", n.name, ready), func() bool {
		rep := n.status()
		body, code, err := n.ask("/readyz")
		last = fmt.Sprint(string(body), code, err)
		return rep != nil && rep.Standby != nil && rep.Standby.Holder != "" && err == nil &&
			(code == http.StatusOK) == ready && strings.Contains(string(body), why)
	})
}

// acts waits until the agent is active and ready.
func (n *testNode) acts(t *testing.T) {
	t.Helper()
	n.waitReady(t)
	if rep := n.report(t); rep.Standby != nil {
		t.Errorf("%s is ready and doesn't act: %+v", n.name, rep)
	}
}

// TestAgentsTakeTurns rolls out agents as a DaemonSet with surge does: the new one is
// ready before the old one ends. Only one is active at any time, and no packet is lost.
func TestAgentsTakeTurns(t *testing.T) {
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
		watched := here.watch(t)
		annotations := func() map[string]string { return maps.Clone(here.cluster.Node(here.name).Annotations) }
		published := annotations()

		old := here
		for _, how := range []struct {
			name string
			end  func(*testNode)
		}{
			{"rollout", func(n *testNode) { n.stop(t) }},
			{"the old one is killed", (*testNode).kill},
			{"rollout of another setting", func(n *testNode) { n.stop(t) }},
		} {
			f := here.flowTo(t, there)
			next := old.another(t)
			next.env["SEMAPHORE_WG_PEER_METRICS"] = "7"
			next.start(t)
			next.standsBy(t, true, "ok")
			if rep := old.report(t); rep.Standby != nil {
				t.Errorf("%s: the old one doesn't act: %+v", how.name, rep)
			}
			how.end(old)
			next.acts(t)
			byPort := *next
			byPort.socket = ""
			await(t, "the port to be the new one's", func() bool { rep := byPort.status(); return rep != nil && rep.Standby == nil })
			f.waitPassing(t, how.name)
			if _, lost := f.end(t, how.name); lost > 0 {
				t.Errorf("%s: %d packets are lost", how.name, lost)
			}
			lines := watched.take(t)
			if diff := cmp.Diff([]string(nil), lines); diff != "" {
				t.Errorf("%s: ip monitor route rule link prints\n%s", how.name, strings.Join(lines, "\n"))
			}
			if diff := cmp.Diff(published, annotations()); diff != "" {
				t.Errorf("%s: annotations (-before +after):\n%s", how.name, diff)
			}
			connection.echo(t, how.name)
			old = next
		}
	})
}

// TestBadRolloutsStopAtTheFirstNode starts misconfigured agents beside an active one:
// none becomes ready, and the active one isn't disturbed.
func TestBadRolloutsStopAtTheFirstNode(t *testing.T) {
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
		watched := here.watch(t)
		f := here.flowTo(t, there)

		for _, c := range []struct {
			name, variable, value string
			why                   string // in the answer of the probe; empty: it ends
		}{
			{"a configuration that is refused", "SEMAPHORE_REMOTE_GCP_POD_SUBNETS", "nonsense", ""},
			{"no access to the API server", "SEMAPHORE_KUBECONFIG", "/nowhere", ""},
			{"the subnets of this node", "SEMAPHORE_REMOTE_GCP_POD_SUBNETS", here.podCIDR.String(), "remote gcp is refused"},
			{"without NET_ADMIN", dropVariable, "1", "NET_ADMIN"},
		} {
			next := here.another(t)
			next.env[c.variable] = c.value
			next.start(t)
			if c.why == "" {
				cmd := next.agent
				next.agent = nil
				if err := cmd.Wait(); err == nil {
					t.Errorf("%s: it ended well", c.name)
				}
				continue
			}
			next.standsBy(t, false, c.why)
			next.stop(t)
		}
		connection.echo(t, "after bad rollouts")
		f.waitPassing(t, "after bad rollouts")
		// The tunnel was not touched, in either backend.
		if _, lost := f.end(t, "bad rollouts"); lost > 0 {
			t.Errorf("%d packets are lost", lost)
		}
		if lines := watched.take(t); len(lines) > 0 {
			t.Errorf("ip monitor route rule link prints\n%s", strings.Join(lines, "\n"))
		}
		if rep := here.report(t); rep.Standby != nil {
			t.Errorf("the agent that was there doesn't act: %+v", rep)
		}
	})
}
