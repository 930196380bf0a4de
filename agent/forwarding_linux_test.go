package agent

import (
	"fmt"
	"os"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

// set writes a setting of the node.
func (n *testNode) set(t *testing.T, setting, value string) {
	t.Helper()
	check(t, n.ns.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/"+setting, []byte(value), 0) }))
}

// A node that doesn't forward packets of its pods says so while its paths are up, and
// repairs what is of its own device.
func TestForwardingSwitchedOff(t *testing.T) {
	nstest.Long(t)
	eachBackend(t, func(t *testing.T, backend string) {
		s := newSite(t, "aws", "gcp")
		a, b := s.addNode(t, s.clusters["aws"], backend), s.addNode(t, s.clusters["gcp"], backend)
		// Its device is created with forwarding off, and its pod's link has it on.
		b.set(t, "conf/default/forwarding", "0")
		for _, n := range []*testNode{a, b} {
			n.serveEcho(t)
			n.start(t)
		}
		for _, n := range []*testNode{a, b} {
			n.waitReady(t)
		}
		flow := a.flowTo(t, b)
		flow.waitPassing(t, "a device that was created with forwarding off")
		a.awaitPath(t, b, "to be up", answers)

		// reports waits until b reports forwarding like this, and checks the path.
		reports := func(want statuspage.Forwarding) {
			t.Helper()
			want.Known = true
			var got statuspage.Forwarding
			defer func() {
				if t.Failed() {
					t.Logf("want %+v, got %+v", want, got)
				}
			}()
			await(t, fmt.Sprintf("a report of %+v", want), func() bool {
				if rep := b.status(); rep != nil {
					got = rep.Forwarding
				}
				return fmt.Sprint(got) == fmt.Sprint(want)
			})
			if p := a.path(t, b); !answers(p) {
				t.Errorf("the path is %+v", p)
			}
		}
		// stopped checks that no packets of pods pass.
		stopped := func(what string) {
			t.Helper()
			ends, sent := flow.ends.Load(), flow.sent.Load()
			for flow.sent.Load() < sent+20 {
				flow.send(flowEnd)
			}
			if flow.ends.Load() > ends {
				t.Errorf("%s: packets pass", what)
			}
		}

		reports(statuspage.Forwarding{})
		b.set(t, "conf/wireguard.aws/forwarding", "0")
		flow.waitPassing(t, "forwarding of the device was switched off")

		b.set(t, "ip_forward", "0")
		reports(statuspage.Forwarding{Off: []string{"net.ipv4.ip_forward=0"}})
		stopped("ip_forward=0")
		b.set(t, "ip_forward", "1")
		flow.waitPassing(t, "forwarding is on again")
		reports(statuspage.Forwarding{})

		b.set(t, "conf/cni0/forwarding", "0")
		reports(statuspage.Forwarding{Off: []string{"net.ipv4.conf.cni0.forwarding=0"}})
		stopped("forwarding of the pods' link is off")
		b.set(t, "conf/cni0/forwarding", "1")
		reports(statuspage.Forwarding{})

	})
}
