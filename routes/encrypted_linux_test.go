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

	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/nstest"
	"github.com/kube-semaphore/kube-semaphore/internal/polltest"
)

const (
	testMark = 0x1073
	testPort = 51820
)

// sharedRuleset is that of a remote whose nodes have addresses inside its pod subnets.
func sharedRuleset() Ruleset {
	r := rulesetOf(gcpOrigin())
	r.Mark, r.Ports = testMark, map[string]int{"wireguard.gcp": testPort}
	return r
}

// Encrypted packets of nodes inside the pod subnets arrive at this host's port, with strict
// reverse path filters, too; everything else with such a source is dropped.
func TestEncryptedPacketsOfNodesAmongPodsArrive(t *testing.T) {
	b := newForgeBed(t)
	b.do(t, b.host, func() error {
		table := newTable(t)
		table.SetMark(testMark)
		subnets := prefixes(subnet4, subnet6)
		_, err := table.Sync(t.Context(), Desired(subnets, link(t, "wireguard.gcp").Attrs().Index, nil), subnets...)
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
		table.SetMark(testMark)
		mustFence(t, table, subnet4, subnet6)
		_, err := newFilter(t).Sync(t.Context(), sharedRuleset())
		return err
	})
	send(unix.EPERM) // The main table has the routes into the device.
	if got := n.capture.leaked(t, n); got != 0 {
		t.Errorf("with routes in the main table %d packets leave", got)
	}
	n.do(t, n.host, func() error {
		subnets := prefixes(subnet4, subnet6)
		_, err := table.Sync(t.Context(), Desired(subnets, link(t, "wireguard.gcp").Attrs().Index, nil), subnets...)
		return err
	})
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
		} {
			if !strings.Contains(got, want) {
				t.Errorf("no %q in\n%s", want, got)
			}
		}
		if got := strings.Count(got, "accept\n"); got != 4 {
			t.Errorf("%d rules accept packets, want one for each subnet on arrival and where packets of the host leave", got)
		}
	})
}
