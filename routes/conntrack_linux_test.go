package routes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

// A client that connects again from the same port after an unreplied attempt goes to the
// same endpoint, whatever its service has by now, unless the entry is deleted.
func TestDeleteUnreplied(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		addDevice(t, "away")
		must(t, netlink.LinkSetARPOff(link(t, "away")))
		must(t, netlink.LinkSetUp(link(t, "away")))
		addAddress(t, "away", "192.0.2.1/24", "fd05::1/64")
		addAddress(t, "lo", "10.1.3.1/32", "fd01::1/128")
		device := link(t, "away").Attrs().Index
		// Packets to these get lost.
		for _, gone := range []string{"10.4.0.0/16", "fd04::/48"} {
			addRoute(t, netlink.Route{LinkIndex: device, Scope: netlink.SCOPE_LINK}, gone)
		}
		for _, c := range []struct{ family, service, prefix, gone, other, here, from string }{
			{"ip", "10.96.0.10", "10.4.1.0/24", "10.4.1.1", "10.4.2.1", "10.1.3.1", "192.0.2.1"},
			{"ip6", "fd96::10", "fd04:0:0:1::/64", "fd04:0:0:1::1", "fd04:0:0:2::1", "fd01::1", "fd05::1"},
		} {
			func() { // Not a subtest, which would be in another namespace.
				addRoute(t, netlink.Route{LinkIndex: device, Scope: netlink.SCOPE_LINK}, netip.PrefixFrom(netip.MustParseAddr(c.service), netip.MustParseAddr(c.service).BitLen()).String())
				listener, err := net.Listen("tcp", net.JoinHostPort(c.here, "8888"))
				must(t, err)
				t.Cleanup(func() { _ = listener.Close() })
				go func() {
					for {
						conn, err := listener.Accept()
						if err != nil {
							return
						}
						go func() { _, _ = io.Copy(conn, conn) }() // Until the other side ends it.
					}
				}()
				leadsTo := func(endpoint string) {
					nft(t, fmt.Sprintf(`
table %[1]s nat
delete table %[1]s nat
table %[1]s nat {
	chain output {
		type nat hook output priority -100
		%[1]s daddr %[2]s tcp dport 80 dnat to %[3]s
	}
}`, c.family, c.service, net.JoinHostPort(endpoint, "8888")))
				}
				from := func(port int, timeout time.Duration) (net.Conn, error) {
					d := net.Dialer{
						Timeout:   timeout,
						LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(c.from), uint16(port))),
					}
					return d.DialContext(context.Background(), "tcp", net.JoinHostPort(c.service, "80"))
				}
				lost := func(port int) {
					t.Helper()
					conn, err := from(port, 300*time.Millisecond)
					if timeout, ok := errors.AsType[net.Error](err); !ok || !timeout.Timeout() {
						t.Fatalf("an attempt from port %d: %v, %v, want none that is answered", port, conn, err)
					}
				}
				answered := func(port int) net.Conn {
					t.Helper()
					conn, err := from(port, time.Minute)
					must(t, err)
					t.Cleanup(func() { _ = conn.Close() })
					return conn
				}
				leadsTo(c.other)
				lost(2001)
				leadsTo(c.gone)
				lost(2000)
				leadsTo(c.here)
				open := answered(2002)
				lost(2000)
				t.Log("another attempt goes to the same endpoint")

				n, err := DeleteUnreplied(prefixes(c.prefix))
				if err != nil || n != 1 {
					t.Fatalf("%d attempts forgotten, want 1: %v", n, err)
				}
				answered(2000)
				lost(2001) // of another node
				if _, err := open.Write([]byte("x")); err != nil {
					t.Error(err)
				}
				if _, err := io.ReadFull(open, make([]byte, 1)); err != nil {
					t.Errorf("a connection that was answered: %v", err)
				}
				here := []netip.Prefix{netip.PrefixFrom(netip.MustParseAddr(c.here), netip.MustParseAddr(c.here).BitLen())}
				if n, err := DeleteUnreplied(here); n != 0 || err != nil {
					t.Errorf("%d connections that were answered forgotten: %v", n, err)
				}
			}()
		}
	})
}

func TestParseUnrepliedOfOthers(t *testing.T) {
	for _, message := range [][]byte{nil, {1}, make([]byte, 4), {2, 0, 0, 0, 255, 255, 3, 0}, {2, 0, 0, 0, 8, 0, 3, 0, 0, 0}} {
		if to, name := parseUnreplied(message, unix.AF_INET); name != nil {
			t.Errorf("%v reads as an attempt to reach %v", message, to)
		}
	}
}
