package agent

import (
	"fmt"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/peers"
)

// TestListenPortsChangePlaces restarts an agent whose remotes are listed in another
// order, so that their devices have each other's listen port.
func TestListenPortsChangePlaces(t *testing.T) {
	nstest.Long(t)
	eachBackend(t, func(t *testing.T, backend string) {
		s := newSite(t, "aws", "gcp", "merit")
		var nodes []*testNode
		for _, c := range s.order {
			n := s.addNode(t, c, backend)
			n.serveEcho(t)
			n.start(t)
			nodes = append(nodes, n)
		}
		for _, n := range nodes {
			n.waitReady(t)
		}
		here, others := nodes[0], nodes[1:]
		var streams []*stream
		for _, other := range others {
			streams = append(streams, connected(t, here, other))
		}

		var flows []*flow
		for _, other := range others {
			flows = append(flows, here.flowTo(t, other))
		}
		here.stop(t)
		here.env["SEMAPHORE_REMOTES"] = "merit,gcp"
		here.start(t)
		want := map[string]int{"merit": 51820, "gcp": 51821}
		await(t, "the devices to listen on each other's port, and the node to say so", func() bool {
			rep := here.status()
			if rep == nil || !rep.Published {
				return false
			}
			for i := range rep.Remotes {
				r := &rep.Remotes[i]
				if r.Device.Error != "" || r.Device.ListenPort != want[r.Name] {
					return false
				}
				published := here.cluster.Node(here.name).Annotations[peers.EndpointAnnotation(r.Name)]
				if published != fmt.Sprintf("%s:%d", here.address, want[r.Name]) {
					return false
				}
			}
			return len(rep.Remotes) == len(want)
		})
		for i, other := range others {
			what := here.name + " to " + other.name
			flows[i].waitPassing(t, what)
			flows[i].end(t, what)
			streams[i].echo(t, what)
			// And from the other side, which has to learn the new endpoint.
			back := other.flowTo(t, here)
			back.waitPassing(t, other.name+" to "+here.name)
			back.pause()
		}
	})
}
