package tunnel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
)

func contextWithTimeout() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), time.Minute)
}

// site is one end of a tunnel: a namespace with an underlay link, addresses in place of pods,
// and an agent.
type site struct {
	*agent
	ns       *nstest.Namespace
	underlay [2]netip.Addr   // IPv4, IPv6
	pods     [2]netip.Addr   // one of each family
	subnets  [2]netip.Prefix // routed here by the other site
}

// peerOf is the site as a peer of the other one.
func (s *site) peerOf(family int) Peer {
	return Peer{
		PublicKey:  s.key,
		Endpoint:   netip.AddrPortFrom(s.underlay[family], uint16(s.cfg.ListenPort)),
		AllowedIPs: s.subnets[:],
		Keepalive:  25 * time.Second,
	}
}

// twoSites builds two sites that aren't configured as peers yet.
func twoSites(t *testing.T, backendA, backendB string) (a, b *site) {
	t.Helper()
	return sitesOver(t, backendA, backendB, func(t *testing.T, a, b *site) {
		t.Helper()
		nstest.Pair(t, a.ns, b.ns, "underlay", "underlay")
	})
}

// sitesOver builds two sites on an underlay created by join, which may change their addresses.
func sitesOver(t *testing.T, backendA, backendB string, join func(t *testing.T, a, b *site)) (a, b *site) {
	t.Helper()
	if backendA != Kernel || backendB != Kernel {
		nstest.TUN(t)
	}
	sites := [2]*site{}
	for i := range sites {
		n := i + 1
		sites[i] = &site{
			ns:       nstest.New(t),
			underlay: [2]netip.Addr{addr("192.0.2.%d", n), addr("fd00:192::%d", n)},
			pods:     [2]netip.Addr{addr("10.%d.0.1", n), addr("fd00:10:%d::1", n)},
			subnets:  [2]netip.Prefix{netip.PrefixFrom(addr("10.%d.0.0", n), 16), netip.PrefixFrom(addr("fd00:10:%d::", n), 48)},
		}
	}
	a, b = sites[0], sites[1]
	join(t, a, b)
	for _, s := range sites {
		if err := s.ns.Do(s.addresses); err != nil {
			t.Fatal(err)
		}
	}
	for i, backend := range []string{backendA, backendB} {
		s, other := sites[i], sites[1-i]
		s.agent = startAgent(t, s.ns, Config{
			Name: DeviceName("peer"), Alias: Alias("peer"), KeyPath: t.TempDir(),
			Backend: backend, ListenPort: 51820 + i, MTU: 1420,
		})
		if err := s.ns.Do(func() error { return s.routes(other) }); err != nil {
			t.Fatal(err)
		}
	}
	return a, b
}

func addr(format string, n int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf(format, n)) }

// families returns the number of address families of this kernel: 1, IPv4 only, when booted
// with ipv6.disable=1.
func families() int {
	if _, err := os.Stat("/proc/net/if_inet6"); err != nil {
		return 1
	}
	return 2
}

func (s *site) addresses() error {
	var errs []error
	for family, bits := range []int{24, 64}[:families()] {
		errs = append(errs,
			addAddress("underlay", netip.PrefixFrom(s.underlay[family], bits)),
			addAddress("lo", netip.PrefixFrom(s.pods[family], s.pods[family].BitLen())))
	}
	return errors.Join(errs...)
}

func addAddress(device string, prefix netip.Prefix) error {
	l, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	ipnet := netsOf([]netip.Prefix{prefix})[0]
	return netlink.AddrAdd(l, &netlink.Addr{IPNet: &ipnet, Flags: unix.IFA_F_NODAD})
}

func (s *site) routes(other *site) error {
	l, err := findLink(s.cfg.Name)
	if err != nil {
		return err
	}
	var errs []error
	for family, dst := range netsOf(other.subnets[:families()]) {
		errs = append(errs, netlink.RouteAdd(&netlink.Route{
			LinkIndex: l.index, Dst: &dst, Src: s.pods[family].AsSlice(), Scope: netlink.SCOPE_LINK,
		}))
	}
	return errors.Join(errs...)
}

// link reads the site's device from the kernel.
func (s *site) link(t *testing.T) (l link) {
	t.Helper()
	err := s.ns.Do(func() (err error) {
		l, err = findLink(s.cfg.Name)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// meet configures two sites as peers, and returns when there is a session. One side initiates
// first: initiations that cross cost seconds, see [Device.Nudge].
func meet(t *testing.T, a, b *site, family int) {
	t.Helper()
	quiet := a.peerOf(family)
	quiet.Keepalive = 0
	b.configure(t, quiet)
	a.configure(t, b.peerOf(family))
	polltest.Until(t, time.Minute, "a session", func() bool {
		return !a.peer(t, b.key).LastHandshake.IsZero() && !b.peer(t, a.key).LastHandshake.IsZero()
	})
	b.configure(t, a.peerOf(family))
}

// dial opens a TCP connection from a pod of one site to one of the other, which echoes.
func dial(t *testing.T, from, to *site, family int) net.Conn {
	t.Helper()
	var listener net.Listener
	err := to.ns.Do(func() (err error) {
		listener, err = net.Listen("tcp", netip.AddrPortFrom(to.pods[family], 0).String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan net.Conn, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(accepted)
		server, err := listener.Accept()
		if err != nil {
			return
		}
		accepted <- server
		_, _ = io.Copy(server, server)
	}()
	var conn net.Conn
	err = from.ns.Do(func() (err error) {
		local := &net.TCPAddr{IP: from.pods[family].AsSlice()}
		conn, err = (&net.Dialer{LocalAddr: local, Timeout: time.Minute}).Dial("tcp", listener.Addr().String())
		return err
	})
	// Each end is closed separately: the tunnel may be gone by then.
	t.Cleanup(func() {
		_ = listener.Close()
		if conn != nil {
			_ = conn.Close()
		}
		if server, ok := <-accepted; ok {
			_ = server.Close()
		}
		<-done
	})
	if err != nil {
		t.Fatalf("%s to %s: %v", from.pods[family], to.pods[family], err)
	}
	return conn
}

// echo sends n bytes and reads them back.
func echo(t *testing.T, conn net.Conn, n int) {
	t.Helper()
	if err := conn.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	sent := make([]byte, n)
	for i := range sent {
		sent[i] = byte(i * 7)
	}
	failed := make(chan error, 1)
	go func() {
		_, err := conn.Write(sent)
		failed <- err
	}()
	got := make([]byte, n)
	_, err := io.ReadFull(conn, got)
	if err := errors.Join(<-failed, err); err != nil {
		t.Fatalf("%s to %s: %v", conn.LocalAddr(), conn.RemoteAddr(), err)
	}
	if !bytes.Equal(got, sent) {
		t.Fatal("the bytes that come back are other ones")
	}
}

// Both backends interoperate, over and inside both address families.
func TestTraffic(t *testing.T) {
	nstest.Namespaces(t)
	for _, backends := range [][2]string{{Userspace, Userspace}, {Kernel, Userspace}, {Kernel, Kernel}} {
		t.Run(backends[0]+" and "+backends[1], func(t *testing.T) {
			if backends[0] == Kernel {
				needKernel(t)
			}
			for underlay, name := range []string{"over IPv4", "over IPv6"}[:families()] {
				t.Run(name, func(t *testing.T) {
					a, b := twoSites(t, backends[0], backends[1])
					meet(t, a, b, underlay)
					for family := range families() {
						echo(t, dial(t, a, b, family), 1<<20)
						echo(t, dial(t, b, a, family), 1<<20)
					}
					for _, ends := range [][2]*site{{a, b}, {b, a}} {
						got := ends[0].peer(t, ends[1].key)
						if got.Endpoint != ends[1].peerOf(underlay).Endpoint {
							t.Errorf("endpoint %s, want %s", got.Endpoint, ends[1].peerOf(underlay).Endpoint)
						}
						if payload := int64(families()) * 2 << 20; got.RxBytes < payload || got.TxBytes < payload {
							t.Errorf("%d bytes received and %d sent, want more than the payload of %d", got.RxBytes, got.TxBytes, payload)
						}
						if age := time.Since(got.LastHandshake); age < 0 || age > time.Minute {
							t.Errorf("the last handshake was %v ago", age)
						}
					}
				})
			}
		})
	}
}

// After a kill and restart, an agent finds its link, index, routes and key, and connections
// through the tunnel go on.
func TestConnectionsSurviveAKilledAgent(t *testing.T) {
	eachBackend(t, func(t *testing.T, backend string) {
		a, b := twoSites(t, Userspace, backend)
		meet(t, a, b, 0)
		conn := dial(t, a, b, 0)
		echo(t, conn, 1000)
		before, key := b.link(t), b.key

		b.kill()
		if l := b.link(t); l.index != before.index || !l.up {
			t.Errorf("without a serving process: link %+v, want it as before: %+v", l, before)
		}
		b.agent = startAgent(t, b.ns, b.cfg)
		b.configure(t, a.peerOf(0))
		echo(t, conn, 1000)
		if l := b.link(t); l != before {
			t.Errorf("link %+v, want it as before: %+v", l, before)
		}
		if b.key != key {
			t.Error("the key changed")
		}
		echo(t, dial(t, b, a, families()-1), 1000) // needs the route, too
	})
}

// The new endpoint of a site that roams, as behind NAT, is learned, and configuring the other
// side again keeps it.
func TestRoamingIsFollowedAndKept(t *testing.T) {
	eachBackend(t, func(t *testing.T, backend string) {
		a, b := twoSites(t, backend, Userspace)
		published := b.peerOf(0)
		meet(t, a, b, 0)
		echo(t, dial(t, a, b, 0), 1000)

		b.kill()
		b.cfg.ListenPort = 4711
		b.agent = startAgent(t, b.ns, b.cfg)
		b.configure(t, a.peerOf(0))
		moved := b.peerOf(0).Endpoint
		polltest.Until(t, time.Minute, "a sends to where b is now", func() bool { return a.peer(t, b.key).Endpoint == moved })

		for range 2 {
			if changes := a.configure(t, published); changes.Any() {
				t.Errorf("configuring the same peers: %+v", changes)
			}
			a.call(t, request{Call: "later"}) // The second time the device is read.
		}
		if got := a.peer(t, b.key).Endpoint; got != moved {
			t.Errorf("the endpoint is %s, want %s, where b roamed to", got, moved)
		}
		echo(t, dial(t, a, b, 0), 1000)

		// Any late packet of b makes a learn that endpoint.
		b.kill()
		read := int64(-1)
		polltest.Until(t, time.Minute, "a has read what b sent", func() bool {
			before := read
			read = a.peer(t, b.key).RxBytes
			return read == before
		})
		published.Endpoint = netip.MustParseAddrPort("192.0.2.77:7")
		a.configure(t, published)
		if got := a.peer(t, b.key).Endpoint; got != published.Endpoint {
			t.Errorf("the endpoint is %s, want the newly published %s", got, published.Endpoint)
		}
	})
}

// Changes to other peers don't affect a session: no new handshake, no new endpoint, no loss.
func TestSessionsOfUnchangedPeersGoOn(t *testing.T) {
	eachBackend(t, func(t *testing.T, backend string) {
		a, b := twoSites(t, backend, Userspace)
		crowd := func(n int) []Peer {
			peers := []Peer{b.peerOf(0)}
			for i, p := range thousands(n) {
				p.AllowedIPs = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 100, byte(i), 0}), 24)}
				peers = append(peers, p)
			}
			return peers
		}
		meet(t, a, b, 0)
		conn := dial(t, a, b, 0)
		echo(t, conn, 1000)
		before := a.peer(t, b.key)
		for _, n := range []int{100, 50, 0, 20} {
			a.configure(t, crowd(n)...)
			echo(t, conn, 1000)
		}
		a.call(t, request{Call: "later"})
		if changes := a.configure(t, crowd(20)...); changes.Any() {
			t.Errorf("a full comparison finds something: %+v", changes)
		}
		after := a.peer(t, b.key)
		if !after.LastHandshake.Equal(before.LastHandshake) {
			t.Errorf("a handshake at %v, the session was from %v", after.LastHandshake, before.LastHandshake)
		}
		if after.RxBytes <= before.RxBytes || after.Endpoint != before.Endpoint {
			t.Errorf("before %+v, after %+v", before, after)
		}
	})
}

// wg(8) shows a userspace device like one of the kernel.
func TestWgShowsTheDevice(t *testing.T) {
	nstest.Namespaces(t)
	if _, err := os.Stat("/usr/bin/wg"); err != nil {
		t.Skip("wg is not installed here: apt-get install wireguard-tools")
	}
	eachBackend(t, func(t *testing.T, backend string) {
		d := open(t, config(t, "gcp", backend))
		d.ensure(t)
		d.configure(t, testPeer(1, "192.0.2.1:51820", "10.1.0.0/16", "fd00:1::/48"))
		want := fmt.Sprintf("interface: wireguard.gcp\n  public key: %s\n  private key: (hidden)\n  listening port: 51820\n\n"+
			"peer: %s\n  endpoint: 192.0.2.1:51820\n  allowed ips: 10.1.0.0/16, fd00:1::/48\n", d.PublicKey(), testKey(1))
		if got := wgShow(t, d.Name()); got != want {
			t.Errorf("got:\n%s\nwant:\n%s", got, want)
		}
	})
}

// wgShow returns the output of wg before any traffic.
func wgShow(t *testing.T, device string) string {
	t.Helper()
	out, err := exec.Command("/usr/bin/wg", "show", device).CombinedOutput()
	if err != nil {
		t.Fatalf("wg show: %v: %s", err, out)
	}
	var kept strings.Builder
	for line := range strings.Lines(string(out)) {
		if !strings.Contains(line, "transfer:") && !strings.Contains(line, "keepalive:") {
			kept.WriteString(line)
		}
	}
	return kept.String()
}
