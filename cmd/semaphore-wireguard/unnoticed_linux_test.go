package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
)

// TestRestartsGoUnnoticed restarts the agent of a node in the ways in which it is
// restarted, under traffic: nothing changes in the kernel, and with the kernel's
// WireGuard not one packet is lost. The userspace device is away for as long as
// the process is, and what that costs is printed.
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

		// A rollout's new process starts when the old one has ended.
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
			if _, lost := f.end(t, how.name); lost > 0 && backend == config.BackendKernel {
				t.Errorf("%s: %d packets are lost", how.name, lost)
			}
			lines := watched.take(t)
			if backend == config.BackendUserspace {
				lines = withoutCarrier(lines)
			}
			if diff := cmp.Diff([]string(nil), lines); diff != "" {
				t.Errorf("%s: ip monitor route rule link prints\n%s", how.name, strings.Join(lines, "\n"))
			}
			connection.echo(t, how.name)
		}
	})
}

// withoutCarrier leaves out what a TUN device tells by itself when the process
// behind it goes and comes: its carrier.
func withoutCarrier(lines []string) (left []string) {
	for _, line := range lines {
		if !strings.HasPrefix(line, "link wireguard.") {
			left = append(left, line)
		}
	}
	return left
}
