package routes

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
)

// A peer's link-local address is for probes alone. On a host that accepts router advertisements
// those of a peer would lead packets of this host, also to other remotes, into its tunnel.
func TestPeersAreNoRouters(t *testing.T) {
	host, peer := nstest.New(t), nstest.New(t)
	nstest.Pair(t, host, peer, "wireguard.gcp", "eth0")
	const own, theirs, port = "fe80::1", "fe80::2", "10250"
	var listening net.Listener
	must(t, host.Do(func() (err error) {
		addAddress(t, "wireguard.gcp", own+"/64")
		must(t, os.WriteFile("/proc/sys/net/ipv6/conf/wireguard.gcp/accept_ra", []byte("2"), 0))
		listening, err = net.Listen("tcp6", "[::]:"+port)
		return err
	}))
	t.Cleanup(func() { _ = listening.Close() })
	var zone string // by its number: package net caches those of names, for all namespaces
	must(t, peer.Do(func() error {
		addAddress(t, "eth0", theirs+"/64")
		zone = strconv.Itoa(link(t, "eth0").Attrs().Index)
		return nil
	}))

	// advertise sends a router advertisement with a default route and a prefix, whose checksum the
	// kernel adds (RFC 4861, sections 4.2 and 4.6.2).
	advertise := func() {
		t.Helper()
		must(t, peer.Do(func() error {
			conn, err := net.ListenIP("ip6:ipv6-icmp", &net.IPAddr{IP: net.ParseIP(theirs), Zone: zone})
			must(t, err)
			raw, err := conn.SyscallConn()
			must(t, err)
			must(t, raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, 255) }))
			must(t, err)
			message := append([]byte{
				134, 0, 0, 0, 64, 0, 1800 >> 8, 1800 & 255, 0, 0, 0, 0, 0, 0, 0, 0,
				3, 4, 64, 0xc0, 0, 0, 255, 255, 0, 0, 255, 255, 0, 0, 0, 0,
			}, net.ParseIP("2001:db8:7::")...)
			_, err = conn.WriteToIP(message, &net.IPAddr{IP: net.ParseIP(own), Zone: zone})
			return errors.Join(err, conn.Close())
		}))
	}
	learned := func() (is bool) {
		t.Helper()
		must(t, host.Do(func() error {
			list, err := netlink.RouteListFiltered(unix.AF_INET6, &netlink.Route{Protocol: unix.RTPROT_RA}, netlink.RT_FILTER_PROTOCOL)
			is = len(list) > 0
			return err
		}))
		return is
	}
	connect := func(timeout time.Duration) error {
		var err error
		must(t, peer.Do(func() error {
			var conn net.Conn
			if conn, err = net.DialTimeout("tcp6", net.JoinHostPort(own+"%"+zone, port), timeout); err == nil {
				err = conn.Close()
			}
			return nil
		}))
		return err
	}
	advertise()
	polltest.Until(t, time.Minute, "the host to follow an advertisement without the filter", learned)
	must(t, connect(time.Minute))
	must(t, host.Do(func() error {
		must(t, netlink.LinkSetDown(link(t, "wireguard.gcp")))
		setUp(t, "wireguard.gcp")
		addAddress(t, "wireguard.gcp", own+"/64")
		return nil
	}))
	if learned() {
		t.Fatal("the routes are still there")
	}

	rules := Ruleset{Exits: []Exit{{Device: "wireguard.gcp", Subnets: prefixes(subnet4)}}, Ports: map[string]int{"wireguard.gcp": 51820}} // the source filter is off
	must(t, host.Do(func() error {
		if s, err := newFilter(t).Status(t.Context(), rules); err != nil || s.Exit || len(s.Forged) > 0 {
			t.Errorf("before the filter is installed: %+v, %v", s, err)
		}
		_, err := newFilter(t).Sync(t.Context(), rules)
		return err
	}))
	dropped := func(rule int) (n uint64) {
		must(t, host.Do(func() error {
			table, err := readTable(t.Context())
			n = countOf(table.rulesOf(controlChain)[rule])
			return err
		}))
		return n
	}
	advertise()
	polltest.Until(t, time.Minute, "the advertisement to be dropped", func() bool { return dropped(0) > 0 })
	if learned() {
		t.Error("the host follows the advertisement of a peer")
	}
	if err := connect(2 * time.Second); err == nil || dropped(2) == 0 {
		t.Errorf("a peer connects to a port of the host: %v", err)
	}
	// A probe by UDP is answered: its port is closed.
	must(t, peer.Do(func() error {
		conn, err := net.DialUDP("udp6", nil, net.UDPAddrFromAddrPort(netip.MustParseAddrPort("["+own+"%"+zone+"]:9")))
		must(t, err)
		defer conn.Close()
		must(t, conn.SetDeadline(time.Now().Add(time.Minute)))
		_, err = conn.Write([]byte("probe"))
		must(t, err)
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("a probe by UDP: %v", err)
		}
		return nil
	}))
	if n := dropped(3); n > 0 {
		t.Errorf("%d probes were dropped", n)
	}
}

// A remote reaches pods and this host, but no other remote through it, no tunnel of a network plugin
// and no port of the agent, and it doesn't change the path MTU to others.
func TestWhatRemotesCanNotReach(t *testing.T) {
	b := newForgeBed(t)
	const status, wireGuard, vxlan, other = 7773, 51820, 8472, 9999
	var arrived [2]atomic.Int64
	listen := func(space *nstest.Namespace, port int, count *atomic.Int64) {
		b.do(t, space, func() error {
			socket, err := net.ListenUDP("udp4", &net.UDPAddr{Port: port})
			must(t, err)
			t.Cleanup(func() { _ = socket.Close() })
			go func() {
				for {
					if _, _, err := socket.ReadFrom(make([]byte, 64)); err != nil {
						return
					}
					count.Add(1)
				}
			}()
			return nil
		})
	}
	listen(b.merit, other, &arrived[0])
	for _, port := range []int{vxlan, wireGuard, other} {
		listen(b.host, port, &arrived[1])
	}
	b.do(t, b.host, func() error {
		for _, port := range []int{status, other} {
			l, err := net.Listen("tcp4", fmt.Sprintf(":%d", port))
			must(t, err)
			t.Cleanup(func() { _ = l.Close() })
		}
		return nil
	})
	send := func(to string, port int) {
		t.Helper()
		b.do(t, b.gcp, func() error {
			conn, err := net.DialUDP("udp4", &net.UDPAddr{IP: net.ParseIP("10.4.1.1")}, &net.UDPAddr{IP: net.ParseIP(to), Port: port})
			must(t, err)
			_, err = conn.Write([]byte("packet"))
			return errors.Join(err, conn.Close())
		})
	}
	connect := func(port int, within time.Duration) (err error) {
		b.do(t, b.gcp, func() error {
			var conn net.Conn
			if conn, err = net.DialTimeout("tcp4", fmt.Sprintf("192.0.2.1:%d", port), within); err == nil {
				_ = conn.Close()
			}
			return nil
		})
		return err
	}
	// shorten sends "fragmentation needed" about an echo reply of the host (RFC 792; RFC 1191), and
	// returns the path MTU to its destination.
	shorten := func(about string) (mtu int) {
		t.Helper()
		b.do(t, b.gcp, func() error {
			conn, err := net.DialIP("ip4:icmp", &net.IPAddr{IP: net.ParseIP("10.4.1.1")}, &net.IPAddr{IP: net.ParseIP("192.0.2.1")})
			must(t, err)
			message := []byte{3, 4, 0, 0, 0, 0, 1000 >> 8, 1000 & 255, 0x45, 0, 5, 220, 0, 0, 0, 0, 64, 1, 0, 0}
			message = append(append(message, net.ParseIP("192.0.2.1").To4()...), net.ParseIP(about).To4()...)
			message = append(message, 0, 0, 0, 0, 0, 7, 0, 0) // an echo reply
			binary.BigEndian.PutUint16(message[2:], checksum(message))
			_, err = conn.Write(message)
			return errors.Join(err, conn.Close())
		})
		time.Sleep(50 * time.Millisecond)
		b.do(t, b.host, func() error {
			found, err := netlink.RouteGet(net.ParseIP(about))
			if err == nil {
				mtu = found[0].MTU
			}
			return err
		})
		return mtu
	}
	send("10.5.1.1", other)
	for _, port := range []int{vxlan, wireGuard, other} {
		send("192.0.2.1", port)
	}
	polltest.Until(t, time.Minute, "packets to arrive without the filter", func() bool { return arrived[0].Load() == 1 && arrived[1].Load() == 3 })
	must(t, connect(status, time.Minute))
	if mtu := shorten("192.0.2.77"); mtu != 1000 {
		t.Fatalf("an error of a remote doesn't change the path MTU without the filter: %d", mtu)
	}

	rules := Ruleset{
		Exits: []Exit{
			{Device: "wireguard.gcp", Subnets: prefixes(subnet4, subnet6)}, {Device: shortened, Subnets: prefixes("10.5.0.0/16", "fd05::/48")},
		},
		Ports: map[string]int{"wireguard.gcp": wireGuard, shortened: wireGuard + 1}, Status: status,
	}
	b.do(t, b.host, func() error { _, err := newFilter(t).Sync(t.Context(), rules); return err })
	send("10.5.1.1", other)
	for _, port := range []int{vxlan, wireGuard, other} {
		send("192.0.2.1", port)
	}
	polltest.Until(t, time.Minute, "a packet to another port", func() bool { return arrived[1].Load() > 3 })
	must(t, connect(other, time.Minute))
	if err := connect(status, 2*time.Second); err == nil {
		t.Error("a remote connects to the port of the status")
	}
	if others, host := arrived[0].Load()-1, arrived[1].Load()-3; others != 0 || host != 1 {
		t.Errorf("%d packets arrive in another remote, and %d at this host, want 0 and 1", others, host)
	}
	if mtu := shorten("192.0.2.78"); mtu == 1000 {
		t.Error("an error of a remote changes the path MTU to others")
	}
	if mtu := shorten("10.4.1.9"); mtu != 1000 {
		t.Errorf("an error about a packet to the remote doesn't arrive: %d", mtu)
	}
	b.do(t, b.host, func() error {
		s, err := newFilter(t).Status(t.Context(), rules)
		if !s.Exit || s.Stopped["wireguard.gcp"]+s.Stopped[shortened] > 0 {
			t.Errorf("%+v", s)
		}
		return err
	})
}
