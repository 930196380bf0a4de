package routes

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
)

const (
	testMark = 0x1073
	testPort = 51820
)

// sharedRuleset is that of a remote whose nodes have addresses inside its pod subnets.
func sharedRuleset() Ruleset {
	r := rulesetOf(gcpOrigin())
	r.Mark, r.Ports, r.Shared = testMark, map[string]int{"wireguard.gcp": testPort}, gcpOrigin()
	return r
}

// On a link with nodes inside the pod subnets neighbour discovery works, and nothing else that
// looks like it arrives.
func TestNeighbourDiscoveryAmongPods(t *testing.T) {
	b := newForgeBed(t)
	b.do(t, b.uplink, func() error { addAddress(t, "eth0", "fd04::9/128"); return nil })
	for _, shared := range []bool{false, true} {
		rules := sharedRuleset()
		if !shared {
			rules.Shared = nil
		}
		state := func() (s State) {
			b.do(t, b.host, func() (err error) {
				s, err = newFilter(t).Status(t.Context(), rules)
				return err
			})
			return s
		}
		b.do(t, b.host, func() error {
			table := newTable(t)
			table.mark = testMark
			mustFence(t, table, subnet4, subnet6)
			_, err := newFilter(t).Sync(t.Context(), rules)
			return err
		})
		// send sends a message, whose checksum the kernel adds, and then does something with the
		// socket. It returns how many packets are dropped.
		send := func(kind byte, hops int, to, about string, then func(conn *net.IPConn) error) uint64 {
			before := state().Forged["wireguard.gcp"]
			b.do(t, b.uplink, func() error {
				conn, err := net.DialIP("ip6:ipv6-icmp", &net.IPAddr{IP: net.ParseIP("fd04::9")}, &net.IPAddr{IP: net.ParseIP(to)})
				must(t, err)
				raw, err := conn.SyscallConn()
				must(t, err)
				must(t, raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, hops) }))
				must(t, err)
				_, err = conn.Write(append([]byte{kind, 0, 0, 0, 0, 0, 0, 0}, net.ParseIP(about)...))
				if err == nil && then != nil {
					err = then(conn)
				}
				return errors.Join(err, conn.Close())
			})
			return state().Forged["wireguard.gcp"] - before
		}
		if !shared {
			if got := send(136, 255, "2001:db8::1", "fd04::9", nil); got != 1 {
				t.Errorf("an advertisement from an address of a pod: %d dropped", got)
			}
			continue
		}
		for _, c := range []struct {
			what    string
			kind    byte
			hops    int
			to      string
			dropped uint64
		}{
			{"an advertisement", 136, 255, "2001:db8::1", 0},
			{"an advertisement by a router", 136, 254, "2001:db8::1", 1},
			{"an advertisement to a pod", 136, 255, "fd01:0:0:3::5", 1},
			{"an echo request", 128, 255, "2001:db8::1", 1},
			{"a redirect", 137, 255, "2001:db8::1", 1},
			{"a router advertisement", 134, 255, "2001:db8::1", 1},
		} {
			if got := send(c.kind, c.hops, c.to, "fd04::9", nil); got != c.dropped {
				t.Errorf("%s: %d dropped, want %d", c.what, got, c.dropped)
			}
		}
		if got := send(135, 255, "2001:db8::1", "2001:db8::1", func(conn *net.IPConn) error {
			must(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
			for buffer := make([]byte, 128); ; {
				if n, err := conn.Read(buffer); err != nil || n > 0 && buffer[0] == 136 {
					return err
				}
			}
		}); got != 0 {
			t.Errorf("a solicitation: %d dropped", got)
		}
		if got := state().Stopped["wireguard.gcp"]; got != 0 {
			t.Errorf("%d responses are stopped", got)
		}
	}
}

// With the source filter off, and a strict reverse path filter, only the mark lets encrypted
// packets of nodes inside pod subnets arrive.
func TestEncryptedPacketsArriveWithoutTheSourceFilter(t *testing.T) {
	b := newForgeBed(t)
	rules := sharedRuleset()
	rules.Origins = nil
	sync := func(rules Ruleset) {
		b.do(t, b.host, func() error {
			_, err := newFilter(t).Sync(t.Context(), rules)
			must(t, err)
			s, err := newFilter(t).Status(t.Context(), rules)
			if !s.Arrival || !s.Exit || len(s.Forged) > 0 {
				t.Errorf("the state is %+v", s)
			}
			return err
		})
	}
	b.do(t, b.host, func() error {
		table := newTable(t)
		table.mark = testMark
		subnets := prefixes(subnet4, subnet6)
		_, err := table.Sync(t.Context(), Desired(subnets, link(t, "wireguard.gcp").Attrs().Index, nil))
		must(t, err)
		mustFence(t, table, subnet4, subnet6)
		must(t, os.WriteFile("/proc/sys/net/ipv4/conf/eth0/rp_filter", []byte("1"), 0))
		must(t, os.WriteFile("/proc/sys/net/ipv4/conf/eth0/src_valid_mark", []byte("1"), 0))
		socket, err := net.ListenPacket("udp4", fmt.Sprintf(":%d", testPort))
		must(t, err)
		t.Cleanup(func() { _ = socket.Close() })
		go func() {
			for buffer := make([]byte, 64); ; b.received.Add(1) {
				if _, _, err := socket.ReadFrom(buffer); err != nil {
					return
				}
			}
		}()
		return nil
	})
	node, host := b.sender(t, b.uplink, "10.4.1.9", "fd04::9"), netip.MustParseAddrPort("192.0.2.1:51820")
	sync(Ruleset{Exits: rules.Exits, Mark: testMark, Ports: rules.Ports})
	b.send(t, node, host)
	sync(rules)
	before := b.received.Load()
	if got := b.delivered(t, node, host); before != 0 || got != 1 {
		t.Errorf("%d encrypted packets arrive without the rules, %d with them", before, got)
	}
}

// Encrypted packets of nodes inside the pod subnets arrive at this host's port, with strict
// reverse path filters, too; everything else with such a source is dropped.
func TestEncryptedPacketsOfNodesAmongPodsArrive(t *testing.T) {
	b := newForgeBed(t)
	b.do(t, b.host, func() error {
		table := newTable(t)
		table.mark = testMark
		subnets := prefixes(subnet4, subnet6)
		_, err := table.Sync(t.Context(), Desired(subnets, link(t, "wireguard.gcp").Attrs().Index, nil))
		must(t, err)
		mustFence(t, table, subnet4, subnet6)
		_, err = newFilter(t).Sync(t.Context(), sharedRuleset())
		must(t, err)
		return nil
	})
	for _, space := range []*nstest.Namespace{b.pod, b.host} {
		b.do(t, space, func() error {
			socket, err := net.ListenPacket("udp", fmt.Sprintf(":%d", testPort))
			must(t, err)
			t.Cleanup(func() { _ = socket.Close() })
			go func() {
				for buffer := make([]byte, 64); ; b.received.Add(1) {
					if _, _, err := socket.ReadFrom(buffer); err != nil {
						return
					}
				}
			}()
			return nil
		})
	}
	node := b.sender(t, b.uplink, "10.4.1.9", "fd04::9")
	pod, host := b.targets[:2], b.targets[2:]
	dropped := uint64(0)
	all := func(what string) {
		t.Helper()
		for i := range host {
			if got := b.delivered(t, node, netip.AddrPortFrom(host[i].Addr(), testPort)); got != 1 {
				t.Errorf("%s: %d of 1 encrypted packets to %s arrive", what, got, host[i].Addr())
			}
			before := b.received.Load()
			for _, to := range []netip.AddrPort{host[i], pod[i], netip.AddrPortFrom(pod[i].Addr(), testPort)} {
				b.send(t, node, to)
				dropped++
			}
			b.do(t, b.host, func() error {
				polltest.Until(t, time.Minute, "other packets to be dropped", func() bool {
					s, err := newFilter(t).Status(t.Context(), sharedRuleset())
					return err == nil && s.Arrival && s.Exit && s.Forged["wireguard.gcp"] == dropped
				})
				return nil
			})
			if got := b.received.Load() - before; got != 0 {
				t.Errorf("%s: %d of 3 other packets from a node's address arrive", what, got)
			}
		}
	}
	all("loose reverse path filters")
	b.do(t, b.host, func() error {
		must(t, os.WriteFile("/proc/sys/net/ipv4/conf/eth0/rp_filter", []byte("1"), 0))
		must(t, os.WriteFile("/proc/sys/net/ipv4/conf/eth0/src_valid_mark", []byte("1"), 0))
		return nil
	})
	all("strict reverse path filters")
}

// Encrypted packets to nodes inside the pod subnets leave by the uplink, and never enter the
// device again, where a loop would begin.
func TestEncryptedPacketsLeaveAndDontLoop(t *testing.T) {
	n := newNode(t)
	send := func(want error) {
		t.Helper()
		n.do(t, n.host, func() error {
			for _, to := range remoteTargets {
				dialer := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
					return c.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, testMark) })
				}}
				conn, err := dialer.DialContext(t.Context(), "udp", to)
				must(t, err)
				if _, err = conn.Write([]byte("encrypted")); !errors.Is(err, want) {
					t.Errorf("to %s: %v, want %v", to, err, want)
				}
				must(t, conn.Close())
			}
			return nil
		})
	}
	table := tunnelled(t, n)
	n.do(t, n.host, func() error {
		table.mark = testMark
		mustFence(t, table, subnet4, subnet6)
		_, err := newFilter(t).Sync(t.Context(), sharedRuleset())
		return err
	})
	// A route of another program into the device would make a loop.
	n.do(t, n.host, func() error { return intoDevice(netlink.RouteAdd) })
	send(unix.EPERM)
	if got := n.capture.leaked(t, n); got != 0 {
		t.Errorf("with routes into the device %d packets leave", got)
	}
	n.do(t, n.host, func() error { return intoDevice(netlink.RouteDel) })
	send(nil)
	if got := n.capture.leaked(t, n); got != len(remoteTargets) {
		t.Errorf("%d encrypted packets leave, want %d", got, len(remoteTargets))
	}
	n.do(t, n.host, func() error {
		s, err := newFilter(t).Status(t.Context(), sharedRuleset())
		if !s.Exit || s.Stopped["wireguard.gcp"] != 0 {
			t.Errorf("%+v, want the rules, and no packet counted as plaintext", s)
		}
		return err
	})
	// Nodes of a new remote have addresses in the subnets of a removed one.
	n.do(t, n.host, func() error {
		rules := sharedRuleset()
		rules.Exits[0].Device, rules.Origins, rules.Shared = "", nil, nil
		_, err := newFilter(t).Sync(t.Context(), rules)
		return err
	})
	send(nil)
	if got := n.capture.leaked(t, n); got != len(remoteTargets) {
		t.Errorf("%d encrypted packets leave to subnets of a removed remote, want %d", got, len(remoteTargets))
	}
}

// intoDevice applies a change to routes of the main table into the device.
func intoDevice(change func(*netlink.Route) error) error {
	device, err := netlink.LinkByName("wireguard.gcp")
	if err != nil {
		return err
	}
	for _, to := range []string{subnet4, subnet6} {
		if err := change(&netlink.Route{Dst: cidr(to), LinkIndex: device.Attrs().Index, Scope: unix.RT_SCOPE_LINK}); err != nil {
			return err
		}
	}
	return nil
}

// The exemptions as nft(8) prints them.
func TestExemptionsAsAnOperatorSeesThem(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for i, changed := range []bool{true, false} {
			if got, err := newFilter(t).Sync(t.Context(), sharedRuleset()); err != nil || got != changed {
				t.Errorf("pass %d: changed %v, %v", i, got, err)
			}
		}
		got := nft(t, "list table inet "+FilterTable)
		for _, want := range []string{
			`ip saddr 10.4.0.0/16 udp dport 51820 fib daddr type local meta mark set 0x00001073 accept`,
			`ip6 daddr fd04::/48 meta l4proto udp meta mark & 0x00001073 == 0x00001073 oifname "wireguard.gcp" drop`,
			`ip6 daddr fd04::/48 meta l4proto udp meta mark & 0x00001073 == 0x00001073 accept`,
			`ip6 saddr fd04::/48 icmpv6 type 135-136 ip6 hoplimit 255 fib daddr type multicast accept`,
			`ip6 daddr fd04::/48 icmpv6 type 135-136 ip6 hoplimit 255 accept`,
		} {
			if !strings.Contains(got, want) {
				t.Errorf("no %q in\n%s", want, got)
			}
		}
		if got := strings.Count(got, "accept\n"); got != 7 {
			t.Errorf("%d rules accept packets, want one for each subnet on arrival and where packets of the host leave, and three for IPv6 neighbours", got)
		}
	})
}
