package agent

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/peers"
	"github.com/kube-semaphore/kube-semaphore/routes"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// overlapping makes the pods of all clusters have the same addresses. Other clusters know those
// of cluster i by 10.201+i.0.0/16 and fd00:c9+i::/48.
func (s *site) overlapping() {
	for i, c := range s.order {
		c.number = 2
		c.subnets = [2]netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.%d.0.0/16", 201+i)), netip.MustParsePrefix(fmt.Sprintf("fd00:%x::/48", 201+i))}
	}
}

// virtual returns the virtual address of the node's pod, by which others know it.
func (n *testNode) virtual() string {
	octets := n.podIP.As4()
	return fmt.Sprintf("%s.%d.%d", strings.TrimSuffix(n.cluster.subnets[0].Addr().String(), ".0.0"), octets[2], octets[3])
}

func (n *testNode) virtual6() string {
	return fmt.Sprintf("%s:0:%d::2", strings.TrimSuffix(n.cluster.subnets[1].Addr().String(), "::"), n.podIP.As4()[2])
}

// setMap sets the map of the node's cluster.
func (n *testNode) setMap() {
	n.env["SEMAPHORE_POD_SUBNETS_MAP"] = fmt.Sprintf("10.2.0.0/16=%s,fd00:2::/48=%s", n.cluster.subnets[0], n.cluster.subnets[1])
}

// seenBy returns the source address of a connection of the node's pod to a virtual address, where
// sees listens.
func (n *testNode) seenBy(t *testing.T, from *nstest.Namespace, to string, sees *nstest.Namespace) (seen string) {
	t.Helper()
	var listener net.Listener
	check(t, sees.Do(func() (err error) {
		listener, err = net.Listen("tcp", ":0")
		return err
	}))
	defer listener.Close()
	accepted := make(chan string, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		host, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
		_, _ = io.Copy(conn, conn)
		accepted <- host
	}()
	const size = 1 << 20
	await(t, "a connection to "+to, func() bool {
		err := from.Do(func() error {
			port := listener.Addr().(*net.TCPAddr).Port
			conn, err := net.DialTimeout("tcp", net.JoinHostPort(to, fmt.Sprint(port)), 2*time.Second)
			if err != nil {
				return err
			}
			defer conn.Close()
			check(t, conn.SetDeadline(time.Now().Add(patience)))
			go func() {
				_, _ = conn.Write(make([]byte, size))
				_ = conn.(*net.TCPConn).CloseWrite()
			}()
			back, err := io.ReadAll(conn)
			if err == nil && len(back) != size {
				err = fmt.Errorf("%d bytes came back of %d", len(back), size)
			}
			return err
		})
		return err == nil
	})
	return <-accepted
}

// Pods of two clusters have the same addresses. They reach each other by virtual ones, also from
// and to the host's network, and nothing else changes when a map is added and removed.
func TestVirtualSubnets(t *testing.T) {
	eachBackend(t, func(t *testing.T, backend string) {
		s := newSite(t, "aws", "gcp")
		s.overlapping()
		a, b := s.addNode(t, s.clusters["aws"], backend), s.addNode(t, s.clusters["gcp"], backend)
		if a.podIP != b.podIP {
			t.Fatalf("the pods have the addresses %s and %s", a.podIP, b.podIP)
		}
		for _, n := range []*testNode{a, b} {
			n.setMap()
			n.start(t)
		}
		a.waitReady(t)
		b.waitReady(t)
		a.awaitPath(t, b, "to be up", answers)

		annotations := a.annotations()
		if got, want := annotations[peers.PodCIDRsAnnotation], "10.201.1.0/24,fd00:c9:0:1::/64"; got != want {
			t.Errorf("published prefixes %q, want %q", got, want)
		}
		if got := annotations[config.SubnetMapAnnotation]; got != a.env["SEMAPHORE_POD_SUBNETS_MAP"] {
			t.Errorf("published map %q", got)
		}
		host := func(n *testNode) string { return strings.TrimSuffix(n.virtual(), "2") + "1" }
		for _, c := range []struct {
			name     string
			from     *nstest.Namespace
			to, want string
			at       *nstest.Namespace
		}{
			{"pod to pod", a.pod, b.virtual(), a.virtual(), b.pod},
			{"and back", b.pod, a.virtual(), b.virtual(), a.pod},
			{"pod to pod, IPv6", a.pod, b.virtual6(), a.virtual6(), b.pod},
			{"host to pod", a.ns, b.virtual(), host(a), b.pod},
			{"host to pod, IPv6", a.ns, b.virtual6(), strings.TrimSuffix(a.virtual6(), "2") + "1", b.pod},
			{"pod to host", a.pod, host(b), a.virtual(), b.ns},
		} {
			t.Run(c.name, func(t *testing.T) {
				if got := a.seenBy(t, c.from, c.to, c.at); got != c.want {
					t.Errorf("the other side saw %s, want %s", got, c.want)
				}
			})
		}
		rep := a.report(t)
		if tr := rep.Translation; tr == nil || tr.State != statuspage.FilterEnforced || !tr.OwnPods || tr.Untranslated == nil || *tr.Untranslated != 0 {
			t.Errorf("status %+v", tr)
		}
		t.Run("an ICMP error from the host", func(t *testing.T) {
			none := netip.MustParseAddr(strings.TrimSuffix(b.virtual(), "2") + "77")
			if got, want := a.icmpErrorFor(t, none, 100, 64), (icmpError{3, 1, 0, netip.MustParseAddr(host(b))}); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		})
		t.Run("flushed", func(t *testing.T) {
			if err := a.ns.Do(func() error { return exec.Command("nft", "flush", "ruleset").Run() }); errors.Is(err, exec.ErrNotFound) {
				t.Skip("no nft(8)")
			} else {
				check(t, err)
			}
			if got := a.seenBy(t, a.pod, b.virtual(), b.pod); got != a.virtual() {
				t.Errorf("the other side saw %s, want %s", got, a.virtual())
			}
		})
		a.stop(t)
		delete(a.env, "SEMAPHORE_POD_SUBNETS_MAP")
		a.start(t)
		a.waitReady(t)
		await(t, "the annotations to change", func() bool {
			now := a.annotations()
			_, mapped := now[config.SubnetMapAnnotation]
			return !mapped && now[peers.PodCIDRsAnnotation] == "10.2.1.0/24,fd00:2:0:1::/64"
		})
		// Its addresses are now none of those that the other side accepts.
		await(t, "the node to be rejected", func() bool { return len(b.report(t).Remote("aws").Rejected) > 0 })
		if rep := a.report(t); rep.Translation != nil {
			t.Errorf("status %+v", rep.Translation)
		}
		a.stop(t)
		a.setMap()
		a.start(t)
		a.waitReady(t)
		if got := a.seenBy(t, a.pod, b.virtual(), b.pod); got != a.virtual() {
			t.Errorf("with the map again, the other side saw %s, want %s", got, a.virtual())
		}
		// Without an address of the host, ICMP errors get the one that they are about, which is translated
		// after that.
		b.stop(t)
		b.env["SEMAPHORE_WG_ROUTE_SRC"] = config.RouteSrcNone
		b.start(t)
		b.waitReady(t)
		none := strings.TrimSuffix(b.virtual(), "2") + "78"
		if got, want := a.icmpErrorFor(t, netip.MustParseAddr(none), 100, 64), (icmpError{3, 1, 0, netip.MustParseAddr(none)}); got != want {
			t.Errorf("without a source of routes: got %s, want %s", got, want)
		}
		for _, n := range []*testNode{a, b} {
			if counts := n.report(t).Translation; counts == nil || counts.Untranslated == nil || *counts.Untranslated != 0 {
				t.Errorf("status of %s: %+v", n.name, counts)
			}
		}
	})
}

// Where the kernel has no nf_tables, routes into a tunnel that an earlier agent has left are removed,
// virtual subnets are guarded all the same, and nothing is published.
func TestMapWithoutNetfilter(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		cfg := testConfig(t)
		own := netip.MustParsePrefix("100.64.0.0/16")
		cfg.PodSubnetsMap = config.SubnetMap{{Real: netip.MustParsePrefix("10.0.0.0/16"), Virtual: own}}
		a, err := newAgent(cfg, slog.New(slog.DiscardHandler))
		check(t, err)
		defer a.close()
		device, subnet := a.remotes[0].device.Name(), cfg.Remotes[0].PodSubnets[0]
		attrs := netlink.NewLinkAttrs()
		attrs.Name = device
		check(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "peer"}), setUp(device), setUp("peer"))
		index, err := tunnel.Index(device)
		check(t, err)
		_, err = a.host.table.Sync(t.Context(), routes.Desired([]netip.Prefix{subnet}, index, nil))
		check(t, err)
		left := func() (into, guards int) {
			installed, err := a.host.table.Installed(routes.Desired([]netip.Prefix{subnet, own}, index, nil))
			check(t, err)
			for _, r := range installed {
				if r.Device == index {
					into++
				}
				if r.Guard && r.Prefix == own {
					guards++
				}
			}
			return into, guards
		}
		sync := func() (filterErr, routesErr error) {
			_, filterErr = a.host.syncFilter(t.Context())
			_, routesErr = a.host.syncRoutes(t.Context())
			return filterErr, routesErr
		}
		filterErr, routesErr := sync()
		check(t, filterErr, routesErr)
		if into, guards := left(); !a.translates() || into == 0 || guards == 0 {
			t.Errorf("with nf_tables: translates %v, %d routes into the tunnel, %d guards", a.translates(), into, guards)
		}
		check(t, nstest.WithoutNetfilter(nstest.Current(t), func() error {
			filterErr, routesErr := sync()
			if !errors.Is(filterErr, routes.ErrNoFilter) {
				t.Errorf("error %v, want %v", filterErr, routes.ErrNoFilter)
			}
			return routesErr
		}))
		if into, guards := left(); a.translates() || into > 0 || guards == 0 {
			t.Errorf("without nf_tables: translates %v, %d routes into the tunnel, %d guards", a.translates(), into, guards)
		}
		check(t, a.publish(t.Context())) // There is no API server.
	})
}

// annotations returns those of the node's object.
func (n *testNode) annotations() map[string]string {
	return n.cluster.Node(n.name).Annotations
}
