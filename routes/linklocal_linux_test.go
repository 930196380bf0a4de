package routes

import (
	"errors"
	"net"
	"net/netip"
	"os"
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
	const own, theirs, tcpPort = "fe80::1", "fe80::2", 10250
	var listening net.Listener
	must(t, host.Do(func() (err error) {
		addAddress(t, "wireguard.gcp", own+"/64")
		must(t, os.WriteFile("/proc/sys/net/ipv6/conf/wireguard.gcp/accept_ra", []byte("2"), 0))
		listening, err = net.Listen("tcp6", "[::]:10250")
		return err
	}))
	t.Cleanup(func() { _ = listening.Close() })
	must(t, peer.Do(func() error { addAddress(t, "eth0", theirs+"/64"); return nil }))

	// advertise sends a router advertisement with a default route and a prefix, whose checksum the
	// kernel adds (RFC 4861, sections 4.2 and 4.6.2).
	advertise := func() {
		t.Helper()
		must(t, peer.Do(func() error {
			conn, err := net.ListenIP("ip6:ipv6-icmp", &net.IPAddr{IP: net.ParseIP(theirs), Zone: "eth0"})
			must(t, err)
			raw, err := conn.SyscallConn()
			must(t, err)
			must(t, raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, 255) }))
			must(t, err)
			message := append([]byte{
				134, 0, 0, 0, 64, 0, 1800 >> 8, 1800 & 255, 0, 0, 0, 0, 0, 0, 0, 0,
				3, 4, 64, 0xc0, 0, 0, 255, 255, 0, 0, 255, 255, 0, 0, 0, 0,
			}, net.ParseIP("2001:db8:7::")...)
			_, err = conn.WriteToIP(message, &net.IPAddr{IP: net.ParseIP(own), Zone: "eth0"})
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
			if conn, err = net.DialTimeout("tcp6", net.JoinHostPort(own+"%eth0", "10250"), timeout); err == nil {
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

	rules := Ruleset{Exits: []Exit{{Device: "wireguard.gcp", Subnets: prefixes(subnet4)}}} // the source filter is off
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
			n = countOf(table.rulesOf(arrivalChain)[rule])
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
		conn, err := net.DialUDP("udp6", nil, net.UDPAddrFromAddrPort(netip.MustParseAddrPort("["+own+"%eth0]:9")))
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
