package agent

import (
	"slices"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

// TestBackendChangesUnderTraffic restarts an agent with the other backend, and back
// again: the device is another one, with the same key, and connections go on.
func TestBackendChangesUnderTraffic(t *testing.T) {
	nstest.Long(t)
	needKernel(t)
	s := newSite(t, "aws", "gcp")
	here := s.addNode(t, s.clusters["aws"], config.BackendKernel)
	there := s.addNode(t, s.clusters["gcp"], config.BackendKernel)
	for _, n := range []*testNode{here, there} {
		n.serveEcho(t)
		n.start(t)
	}
	here.waitReady(t)
	there.waitReady(t)
	connection, key := connected(t, here, there), here.key(t, "gcp")
	for _, backend := range []string{config.BackendUserspace, config.BackendKernel} {
		f := here.flowTo(t, there)
		here.stop(t)
		here.env["SEMAPHORE_WG_BACKEND"] = backend
		here.start(t)
		here.waitReady(t)
		f.waitPassing(t, "to "+backend)
		f.end(t, "to "+backend)
		connection.echo(t, "to "+backend)
		if rep := here.report(t); !slices.Equal(backends(rep), []string{backend}) {
			t.Errorf("the backend isn't %s: %+v", backend, rep)
		}
		if now := here.key(t, "gcp"); now != key {
			t.Errorf("to %s: the key is another one", backend)
		}
	}
}
