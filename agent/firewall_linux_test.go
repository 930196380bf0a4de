package agent

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/peers/paths"
)

// command runs a program on the node, and returns its output.
func (n *testNode) command(t *testing.T, line string) string {
	t.Helper()
	var out []byte
	check(t, n.ns.Do(func() (err error) {
		words := strings.Fields(line)
		if out, err = exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			err = fmt.Errorf("%s: %w: %s", line, err, out)
		}
		return err
	}))
	return string(out)
}

// needPrograms skips a test in an emulated machine without programs of the host.
func needPrograms(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("NOT TESTED HERE: %s is missing: %v", t.Name(), err)
		}
	}
}

// denyInput makes a firewall on the node accept only the tunnels' ports and
// answers, or removes it. Forwarded packets pass.
func (n *testNode) denyInput(t *testing.T, deny bool) {
	t.Helper()
	for _, iptables := range []string{"iptables", "ip6tables"} {
		if !deny {
			n.command(t, iptables+" -P INPUT ACCEPT")
			n.command(t, iptables+" -F INPUT")
			continue
		}
		for _, rule := range []string{"-i lo", "-m conntrack --ctstate ESTABLISHED,RELATED", "-p udp --dport 51820:51899"} {
			n.command(t, iptables+" -A INPUT "+rule+" -j ACCEPT")
		}
		n.command(t, iptables+" -P INPUT DROP")
	}
}

// A host's firewall that drops probes doesn't take its path down: the packets that are
// received count until a handshake can show that the path works, which takes seconds in a
// new session.
func TestInputFirewalls(t *testing.T) {
	nstest.Long(t)
	eachBackend(t, func(t *testing.T, backend string) {
		needPrograms(t, "iptables", "ip6tables")
		s := newSite(t, "aws", "gcp")
		a, b := s.addNode(t, s.clusters["aws"], backend), s.addNode(t, s.clusters["gcp"], backend)
		nodes := []*testNode{a, b}
		for _, n := range nodes {
			n.serveEcho(t)
			n.start(t)
		}
		for _, n := range nodes {
			n.waitReady(t)
		}
		flow := a.flowTo(t, b)
		flow.waitPassing(t, "before")
		for _, c := range []struct {
			name string
			on   []*testNode
		}{
			{"one side, in a new session", nodes[1:]},
			{"both sides", nodes},
		} {
			t.Run(c.name, func(t *testing.T) {
				a.awaitPath(t, b, "to be up", answers)
				b.awaitPath(t, a, "to be up", answers)
				since := map[*testNode]time.Time{a: a.path(t, b).Since, b: b.path(t, a).Since}
				for _, n := range c.on {
					n.denyInput(t, true)
				}
				at := time.Now()
				// Until the paths don't depend on answers any more, and packets have passed for
				// longer than a handshake may take.
				passed := flow.got.Load() + 1000
				await(t, "the firewall to be tolerated", func() bool {
					settled := true
					for i, from := range nodes {
						to := nodes[1-i]
						p, known := from.said(to)
						if known && (p.State != string(paths.Up) || !p.Since.Equal(since[from])) {
							t.Fatalf("%s: %.1f s after the firewall came, the path from %s to %s is %+v", backend, time.Since(at).Seconds(), from.name, to.name, p)
						}
						settled = settled && (!known || !p.Answers || to != b && len(c.on) == 1)
					}
					return settled && time.Since(at) > 15*time.Second && flow.got.Load() >= passed
				})
				for _, n := range c.on {
					n.denyInput(t, false)
				}
			})
		}
		flow.end(t, backend+": firewalls")
	})
}
