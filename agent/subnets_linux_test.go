package agent

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Nodes have addresses inside the pod subnets of their clusters: the mesh works, and restarts
// lose no packet.
func TestNodesInsidePodSubnets(t *testing.T) {
	eachBackend(t, func(t *testing.T, backend string) {
		s := newSite(t, "aws", "gcp")
		here, there := s.addNode(t, s.clusters["aws"], backend), s.addNode(t, s.clusters["gcp"], backend)
		here.env["SEMAPHORE_REMOTE_GCP_POD_SUBNETS"] += "," + there.address.String() + "/32"
		there.env["SEMAPHORE_REMOTE_AWS_POD_SUBNETS"] += "," + here.address.String() + "/32"
		for _, n := range []*testNode{here, there} {
			n.serveEcho(t)
			n.start(t)
		}
		here.waitReady(t)
		there.waitReady(t)
		connection := connected(t, here, there)
		watched := here.watch(t)
		for how, end := range map[string]func(){"SIGTERM": func() { here.stop(t) }, "kill -9": here.kill} {
			f := here.flowTo(t, there)
			end()
			here.start(t)
			here.waitReady(t)
			f.waitPassing(t, how)
			if _, lost := f.end(t, how); lost > 0 {
				t.Errorf("%s: %d packets are lost", how, lost)
			}
			if diff := cmp.Diff([]string(nil), watched.take(t)); diff != "" {
				t.Errorf("%s: ip monitor route rule link prints\n%s", how, diff)
			}
			connection.echo(t, how)
		}
		for _, n := range []*testNode{here, there} {
			if r := n.report(t).Remotes[0]; len(r.Rejected) > 0 || len(r.Peers) != 1 || !strings.HasPrefix(r.Peers[0].Endpoint, "192.0.2.") {
				t.Errorf("%s: %+v, want a peer at its published endpoint", n.name, r)
			}
		}

		// Without a mark such an endpoint can't be accepted.
		here.stop(t)
		here.env["SEMAPHORE_WG_FWMARK"] = "0"
		here.start(t)
		await(t, "the endpoint to be rejected", func() bool {
			rep := here.status()
			return rep != nil && len(rep.Remotes[0].Rejected) == 1 && strings.Contains(rep.Remotes[0].Rejected[0].Detail, "itself routed through a tunnel")
		})
	})
}

// A release without marks is replaced by one with marks under traffic, and back.
func TestMarksComeAndGoUnnoticed(t *testing.T) {
	eachBackend(t, func(t *testing.T, backend string) {
		s := newSite(t, "aws", "gcp")
		here, there := s.addNode(t, s.clusters["aws"], backend), s.addNode(t, s.clusters["gcp"], backend)
		for _, n := range []*testNode{here, there} {
			n.env["SEMAPHORE_WG_FWMARK"] = "0"
			n.serveEcho(t)
			n.start(t)
		}
		here.waitReady(t)
		there.waitReady(t)
		connection := connected(t, here, there)
		for _, mark := range []string{"0x1073", "0x1033", "0x0"} {
			f := here.flowTo(t, there)
			here.stop(t)
			here.env["SEMAPHORE_WG_FWMARK"] = mark
			here.start(t)
			here.waitReady(t)
			f.waitPassing(t, mark)
			if _, lost := f.end(t, mark); lost > 0 {
				t.Errorf("mark %s: %d packets are lost", mark, lost)
			}
			connection.echo(t, mark)
			if log := here.log.String(); !strings.Contains(log, "firewall_mark="+mark+"\n") {
				t.Errorf("the mark %s isn't set:\n%s", mark, log)
			}
		}
	})
}
