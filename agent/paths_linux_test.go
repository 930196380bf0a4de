package agent

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/peers/paths"
)

// said returns the path to another node in an agent's report, if it has one.
func (n *testNode) said(to *testNode) (path statuspage.Path, ok bool) {
	if rep := n.status(); rep != nil {
		for _, r := range rep.Remotes {
			for _, p := range r.Peers {
				if p.Node == to.name && p.Path != nil {
					return *p.Path, true
				}
			}
		}
	}
	return statuspage.Path{}, false
}

// path waits until an agent reports the path to another node: on a busy machine a single
// request may time out.
func (n *testNode) path(t *testing.T, to *testNode) (path statuspage.Path) {
	t.Helper()
	await(t, n.name+" to say something of its path to "+to.name, func() (ok bool) {
		path, ok = n.said(to)
		return ok
	})
	return path
}

// awaitPath waits until holds accepts the reported path from one node to another, and
// returns the report.
func (n *testNode) awaitPath(t *testing.T, to *testNode, what string, holds func(statuspage.Path) bool) (path statuspage.Path) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("path from %s to %s: %+v", n.name, to.name, path)
		}
	}()
	await(t, n.name+": path to "+to.name+" "+what, func() bool {
		path, _ = n.said(to)
		return holds(path)
	})
	return path
}

func is(state paths.State, signs ...paths.Sign) func(statuspage.Path) bool {
	return func(p statuspage.Path) bool {
		for _, s := range signs {
			if p.State == string(state) && p.Sign == string(s) {
				return true
			}
		}
		return false
	}
}

var (
	answers = is(paths.Up, paths.SignAnswer)
	gone    = is(paths.Down, paths.SignNoAnswer, paths.SignOneWay)
)

// plug connects or disconnects a node's cable.
func (s *site) plug(t *testing.T, n *testNode, in bool) {
	t.Helper()
	check(t, s.lan.Do(func() error {
		port, err := netlink.LinkByName(n.name)
		if err != nil {
			return err
		}
		if in {
			// Not by setting the link down, which the node would notice.
			bridge, err := netlink.LinkByName("lan")
			return errors.Join(err, netlink.LinkSetMaster(port, bridge))
		}
		return netlink.LinkSetNoMaster(port)
	}))
}

// mislead sends a node's packets to another one astray, or repairs that. The reverse
// direction works.
func (n *testNode) mislead(t *testing.T, to *testNode, wrong bool) {
	t.Helper()
	check(t, n.ns.Do(func() error {
		uplink, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		neigh := &netlink.Neigh{
			LinkIndex: uplink.Attrs().Index, IP: to.address.AsSlice(), State: netlink.NUD_PERMANENT,
			HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 0x99},
		}
		if wrong {
			return netlink.NeighSet(neigh)
		}
		return netlink.NeighDel(neigh)
	}))
}

// TestPaths breaks the path between nodes, and measures when that is detected.
func TestPaths(t *testing.T) {
	nstest.Long(t)
	eachBackend(t, func(t *testing.T, backend string) {
		s := newSite(t, "aws", "gcp")
		a := s.addNode(t, s.clusters["aws"], backend)
		b, c := s.addNode(t, s.clusters["gcp"], backend), s.addNode(t, s.clusters["gcp"], backend)
		all := []*testNode{a, b, c}
		for _, n := range all {
			n.serveEcho(t)
			n.start(t)
		}
		for _, n := range all {
			n.waitReady(t)
		}
		whole := func() {
			t.Helper()
			for _, to := range []*testNode{b, c} {
				a.awaitPath(t, to, "to be up", answers)
				to.awaitPath(t, a, "to be up", answers)
			}
		}
		whole()
		// broken logs how soon a path is reported down, healed how soon it is up again.
		broken := func(what string, since time.Time, from, to *testNode, by func(statuspage.Path) bool) {
			t.Helper()
			p := from.awaitPath(t, to, "to be down: "+what, by)
			t.Logf("%s: %s: %s is %s (%s) after %.2f s", backend, what, to.name, p.State, p.Sign, p.Since.Sub(since).Seconds())
		}
		healed := func(what string, since time.Time, from, to *testNode) {
			t.Helper()
			p := from.awaitPath(t, to, "to be up again: "+what, answers)
			t.Logf("%s: %s: %s is up again after %.2f s", backend, what, to.name, p.Since.Sub(since).Seconds())
		}

		flow := a.flowTo(t, b)
		flow.waitPassing(t, "before")

		t.Run("a node is unplugged", func(t *testing.T) {
			other := a.path(t, c).Since
			s.plug(t, b, false)
			at := time.Now()
			broken("unplugged", at, a, b, gone)
			broken("unplugged", at, b, a, gone)
			if p := a.path(t, c); p.State != string(paths.Up) || !p.Since.Equal(other) {
				t.Errorf("the path to the other node: %+v", p)
			}
			s.plug(t, b, true)
			at = time.Now()
			healed("plugged in", at, a, b)
			healed("plugged in", at, b, a)
		})

		t.Run("all nodes of a remote are unplugged", func(t *testing.T) {
			s.plug(t, a, false)
			at := time.Now()
			broken("all unplugged", at, a, b, gone)
			broken("all unplugged", at, a, c, gone)
			s.plug(t, a, true)
			at = time.Now()
			healed("all plugged in", at, a, b)
			healed("all plugged in", at, a, c)
		})

		t.Run("one direction", func(t *testing.T) {
			whole()
			a.mislead(t, b, true)
			at := time.Now()
			broken("our packets get lost", at, a, b, gone)
			broken("their packets get lost", at, b, a, gone)
			a.awaitPath(t, b, "to be named one-way", is(paths.Down, paths.SignOneWay))
			t.Logf("named after %.1f s", time.Since(at).Seconds())
			if p := b.path(t, a); p.Sign != string(paths.SignNoAnswer) {
				t.Errorf("the side that hears nothing says %+v", p)
			}
			a.mislead(t, b, false)
			at = time.Now()
			healed("both ways", at, a, b)
			healed("both ways", at, b, a)
		})

		t.Run("large packets", func(t *testing.T) {
			whole()
			narrow := func(mtu int) {
				check(t, s.lan.Do(func() error {
					port, err := netlink.LinkByName(b.name)
					return errors.Join(err, netlink.LinkSetMTU(port, mtu))
				}))
			}
			narrow(1300)
			at := time.Now()
			// Full-size probes are seldom.
			deadline := at.Add(2 * patience)
			for p := a.path(t, b); !p.SmallOnly; p = a.path(t, b) {
				if time.Now().After(deadline) {
					t.Fatalf("not found: %+v", p)
				}
				time.Sleep(patience / 300)
			}
			t.Logf("%s: small packets only: named after %.0f s", backend, time.Since(at).Seconds())
			if p := a.path(t, b); p.State != string(paths.Up) {
				t.Errorf("the path is %+v", p)
			}
			narrow(1500)
			at = time.Now()
			a.awaitPath(t, b, "to carry large packets", func(p statuspage.Path) bool { return !p.SmallOnly })
			t.Logf("%s: large packets again: known after %.0f s", backend, time.Since(at).Seconds())
		})

		t.Run("an agent is stopped", func(t *testing.T) {
			whole()
			since := a.path(t, b).Since
			b.stop(t)
			// Packets for longer than it takes to detect that a path is down.
			passed := flow.got.Load() + uint64(8*time.Second/flowSpacing)
			await(t, "packets to pass", func() bool { return flow.got.Load() >= passed })
			if p := a.path(t, b); p.State != string(paths.Up) || p.Sign != string(paths.SignAnswer) || !p.Since.Equal(since) {
				t.Errorf("with its agent away, the path is %+v, was up since %v", p, since)
			}
			b.start(t)
			b.waitReady(t)
		})
	})
}
