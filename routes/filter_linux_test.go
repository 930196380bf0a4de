package routes

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
)

// gcpOrigin is the remote of the filter's tests.
func gcpOrigin() []Origin {
	return []Origin{{Device: "wireguard.gcp", Subnets: prefixes(subnet4, subnet6)}}
}

func newFilter(t *testing.T) *Filter {
	t.Helper()
	return NewFilter(slog.New(slog.NewTextHandler(t.Output(), nil)))
}

// rulesetOf is for remotes whose packets arrive and leave through the same devices.
func rulesetOf(origins []Origin) (r Ruleset) {
	r.Origins = origins
	for _, o := range origins {
		r.Exits = append(r.Exits, Exit(o))
	}
	return r
}

func mustFilter(t *testing.T, origins []Origin) (changed bool) {
	t.Helper()
	changed, err := newFilter(t).Sync(t.Context(), rulesetOf(origins))
	must(t, err)
	return changed
}

// enforces reports whether the table has the rules for arriving and for leaving packets.
func enforces(t *testing.T, origins []Origin) (bool, error) {
	t.Helper()
	s, err := newFilter(t).Status(t.Context(), rulesetOf(origins))
	return s.Arrival && s.Exit, err
}

func TestFilterIsInstalledOnceAndRemoved(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		two := append(gcpOrigin(), Origin{Device: "wireguard.merit", Subnets: prefixes("10.5.0.0/16", "fd05::/48")})
		for i, step := range []struct {
			origins []Origin
			changed bool
		}{
			{nil, false}, {gcpOrigin(), true}, {gcpOrigin(), false}, {two, true}, {two, false}, {gcpOrigin(), true},
			{[]Origin{{Device: "wireguard.other", Subnets: prefixes(subnet4, subnet6)}}, true},
			{[]Origin{{Device: "wireguard.other", Subnets: prefixes(subnet4)}}, true},
			{nil, true}, {nil, false},
		} {
			if got := mustFilter(t, step.origins); got != step.changed {
				t.Errorf("step %d: changed %v, want %v", i, got, step.changed)
			}
			enforced, err := enforces(t, step.origins)
			if err != nil || len(step.origins) > 0 && !enforced {
				t.Errorf("step %d: enforced %v, %v", i, enforced, err)
			}
		}
	})
}

// Foreign changes of the table are undone, and those elsewhere are not touched.
func TestFilterIsRepaired(t *testing.T) {
	for _, mapped := range []bool{false, true} {
		t.Run(fmt.Sprintf("with a map %v", mapped), func(t *testing.T) { filterIsRepaired(t, mapped) })
	}
}

func filterIsRepaired(t *testing.T, mapped bool) {
	const table = "inet " + FilterTable
	for name, script := range map[string]string{
		"ruleset flushed":     "flush ruleset",
		"table deleted":       "delete table " + table,
		"chain flushed":       "flush chain " + table + " prerouting",
		"chain added":         "add chain " + table + " more",
		"chain deleted":       "flush chain " + table + " postrouting; delete chain " + table + " postrouting",
		"another hook":        "flush chain " + table + " forward; delete chain " + table + " forward; add chain " + table + " forward { type filter hook forward priority 0; }",
		"another rule before": "insert rule " + table + " prerouting accept",
		"another rule after":  "add rule " + table + " prerouting drop",
		"accepted to leave":   "insert rule " + table + " postrouting accept",
		"switched off":        "add table " + table + " { flags dormant; }",
		"address changed":     "flush chain " + table + " to-real; add rule " + table + " to-real ip daddr 100.64.0.0/14 ip daddr set 10.0.0.1",
		"jump changed":        "flush chain " + table + " postrouting; add rule " + table + " postrouting oifname wireguard.gcp jump to-real",
		"no hairpin":          "flush chain " + table + " hairpin; delete chain " + table + " hairpin",
		"hooked":              "flush chain " + table + " postrouting; flush chain " + table + " to-virtual; delete chain " + table + " to-virtual; add chain " + table + " to-virtual { type filter hook postrouting priority 0; }",
	} {
		if !mapped && strings.Contains(script, "to-") || !mapped && strings.Contains(script, hairpinChain) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				rules := rulesetOf(gcpOrigin())
				if mapped {
					rules.Map = awsMap
				}
				sync := func() bool {
					changed, err := newFilter(t).Sync(t.Context(), rules)
					must(t, err)
					return changed
				}
				enforced := func() bool {
					s, err := newFilter(t).Status(t.Context(), rules)
					must(t, err)
					return s.Arrival && s.Exit && s.Translation && s.Hairpin
				}
				sync()
				listed := func() []string { // Chains are listed in the order of their creation.
					lines := strings.Split(nft(t, "list table "+table), "\n")
					slices.Sort(lines)
					return lines
				}
				want := listed()
				nft(t, "add table ip others; add chain ip others raw { type filter hook prerouting priority raw; }")
				nft(t, script)
				if enforced() {
					t.Error("enforced")
				}
				others := nft(t, "list tables ip")
				if !sync() {
					t.Error("nothing was repaired")
				}
				if sync() {
					t.Error("and again there was something to repair")
				}
				if got := listed(); !enforced() || !slices.Equal(got, want) {
					t.Errorf("repaired: %q, want %q", got, want)
				}
				if after := nft(t, "list tables ip"); after != others {
					t.Errorf("tables of others: %q, were %q", after, others)
				}
			})
		})
	}
}

// needsNFT returns the path of nft(8). It must first be called on the goroutine of the test.
func needsNFT(t *testing.T) (program string) {
	t.Helper()
	program, err := exec.LookPath("nft")
	if err != nil {
		if os.Getenv("SEMAPHORE_TEST_KERNEL") != "" {
			t.Skip("the emulated machine has no nft(8): this is tested outside of it")
		}
		t.Fatalf("nftables must be installed: %v", err)
	}
	return program
}

// nft runs an nft(8) script in the calling thread's namespace. The emulated machine has
// no nft.
func nft(t *testing.T, script string) string {
	t.Helper()
	program := needsNFT(t)
	cmd := exec.Command(program, "-f", "-")
	cmd.Stdin = strings.NewReader(script)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("nft %s: %v\n%s", script, err, out)
	}
	return string(out)
}

// The table as nft(8) prints it.
func TestFilterAsAnOperatorSeesIt(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		mustFilter(t, append(gcpOrigin(), Origin{Device: "wg.a2345.0123ab", Subnets: prefixes("10.5.0.0/16", "10.6.3.0/27")}))
		got := nft(t, "list table inet "+FilterTable)
		for _, want := range []string{
			"type filter hook prerouting priority raw - 10; policy accept;",
			`ip saddr 10.4.0.0/16 iifname != "wireguard.gcp" iifname != "lo" counter packets 0 bytes 0 drop`,
			`ip saddr 10.5.0.0/16 iifname != "wg.a2345.0123ab" iifname != "lo"`,
			`ip saddr 10.6.3.0/27 iifname != "wg.a2345.0123ab" iifname != "lo"`,
			"type filter hook forward priority raw - 10; policy accept;",
			"type filter hook postrouting priority 310; policy accept;",
			`ip daddr 10.4.0.0/16 oifname != "wireguard.gcp" oifname != "lo" counter packets 0 bytes 0 drop`,
			`ip6 daddr fd04::/48 oifname != "wireguard.gcp" oifname != "lo" counter packets 0 bytes 0 drop`,
			`ip6 saddr fd04::/48 iifname != "wireguard.gcp" iifname != "lo" counter packets 0 bytes 0 drop`,
		} {
			if !strings.Contains(got, want) {
				t.Errorf("no %q in\n%s", want, got)
			}
		}
	})
}

// A packet from outside the tunnel with a remote pod's source address reaches neither pod
// nor host, by whichever link it arrives; the remote's own packets and all others do.
func TestForgedSourcesAreDropped(t *testing.T) {
	b := newForgeBed(t)
	forged := map[string]sender{
		"from outside": b.sender(t, b.uplink, "10.4.1.1", "fd04::1"),
		"from a pod":   b.sender(t, b.pod2, "10.4.1.1", "fd04::1"),
		// Through the device of another remote.
		"from another remote": b.sender(t, b.merit, "10.4.1.1", "fd04::1"),
	}
	honest := map[string]sender{
		"the remote's pod":       b.sender(t, b.gcp, "10.4.1.1", "fd04::1"),
		"the other remote's pod": b.sender(t, b.merit, "10.5.1.1", "fd05::1"),
		"a local pod":            b.sender(t, b.pod2, "10.1.4.5", "fd01:0:0:4::5"),
		"a machine outside":      b.sender(t, b.uplink, "192.0.2.2", "2001:db8::2"),
	}
	arrive := func(what string, senders map[string]sender) {
		t.Helper()
		for name, s := range senders {
			for _, to := range b.targets {
				got := b.delivered(t, s, to)
				if got != 1 {
					t.Errorf("%s: %s to %s: %d of 1 packets arrive", what, name, to, got)
				}
			}
		}
	}
	arrive("before", forged)
	arrive("before", honest)

	origins := append(gcpOrigin(), Origin{Device: shortened, Subnets: prefixes("10.5.0.0/16", "fd05::/48")})
	b.do(t, b.host, func() error {
		mustFilter(t, origins)
		return nil
	})
	var want uint64
	refused := func(what string) {
		t.Helper()
		for name, s := range forged {
			for _, to := range b.targets {
				before := b.received.Load()
				b.send(t, s, to)
				want++
				b.waitDropped(t, origins, want)
				if b.received.Load() != before {
					t.Errorf("%s: %s to %s: arrived", what, name, to)
				}
			}
		}
		arrive(what, honest)
		b.waitDropped(t, origins, want) // and no others
	}
	refused("with everything there")
	// The filter works without routes and rules.
	b.do(t, b.host, func() error {
		table := newTable(t)
		mustFence(t, table)
		mustSync(t, table, nil)
		return nil
	})
	for name, s := range forged {
		for _, to := range b.targets {
			before := b.received.Load()
			b.send(t, s, to)
			want++
			b.waitDropped(t, origins, want)
			if b.received.Load() != before {
				t.Errorf("without routes: %s to %s: arrived", name, to)
			}
		}
	}
}

// The rules for a remote go with its configuration, and its device later: until then nothing passes
// through it, neither a packet of its own pods nor any other.
func TestNothingArrivesThroughDevicesThatGo(t *testing.T) {
	b := newForgeBed(t)
	origins := Origin{Device: shortened, Subnets: prefixes("10.5.0.0/16", "fd05::/48")}
	b.do(t, b.host, func() error {
		_, err := NewFilter(slog.New(slog.DiscardHandler)).Sync(t.Context(), Ruleset{Origins: []Origin{origins}, Gone: []string{gcpOrigin()[0].Device}})
		return err
	})
	stays := b.sender(t, b.merit, "10.5.1.1", "fd05::1")
	for what, s := range map[string]sender{
		"its pod":     b.sender(t, b.gcp, "10.4.1.1", "fd04::1"),
		"a local pod": b.sender(t, b.gcp, "10.1.4.5", "fd01:0:0:4::5"),
	} {
		for _, to := range b.targets {
			before := b.received.Load()
			b.send(t, s, to)
			if got := b.delivered(t, stays, to); got != 1 || b.received.Load() != before+1 {
				t.Errorf("%s to %s: %d of 1 packets of another remote arrive, and %d in all", what, to, got, b.received.Load()-before)
			}
		}
	}
}

// A table is replaced atomically: no packet of a stream slips through.
func TestFilterIsReplacedWithoutAGap(t *testing.T) {
	b := newForgeBed(t)
	forged := b.sender(t, b.uplink, "10.4.1.1", "fd04::1")
	other := Origin{Device: shortened, Subnets: prefixes("10.5.0.0/16", "fd05::/48")}
	b.do(t, b.host, func() error {
		mustFilter(t, gcpOrigin())
		return nil
	})
	before := b.received.Load()
	stop, done := make(chan struct{}), make(chan int)
	go func() {
		sent := 0
		for {
			select {
			case <-stop:
				done <- sent
				return
			default:
				_ = forged.to(b.targets[sent%len(b.targets)])
				sent++
			}
		}
	}()
	b.do(t, b.host, func() error {
		for range 100 {
			mustFilter(t, append(gcpOrigin(), other))
			mustFilter(t, gcpOrigin())
		}
		return nil
	})
	close(stop)
	sent := <-done
	honest := b.sender(t, b.gcp, "10.4.1.1", "fd04::1")
	for _, to := range b.targets {
		if got := b.delivered(t, honest, to); got != 1 {
			t.Fatalf("the remote's own packet to %s: %d arrived", to, got)
		}
	}
	if got := b.received.Load() - before - int64(len(b.targets)); got != 0 || sent < 1000 {
		t.Errorf("%d of %d forged packets arrived", got, sent)
	}
}

// forgeBed is a node with two remotes' devices, two pods and an uplink. Packets that
// arrive at a port of pod and host are counted.
type forgeBed struct {
	*node
	gcp, merit, pod2 *nstest.Namespace
	targets          []netip.AddrPort
	received         atomic.Int64
}

// shortened is a device's name as for a remote whose own name is too long for "wireguard.NAME".
const shortened = "wg.merit.0123ab"

func newForgeBed(t *testing.T) *forgeBed {
	t.Helper()
	b := &forgeBed{node: newNode(t), gcp: nstest.New(t), merit: nstest.New(t), pod2: nstest.New(t)}
	// Each is a link with another host behind it: its name, our addresses on it, the other
	// host's addresses, and the routes back to those.
	for _, l := range []struct {
		name   string
		space  *nstest.Namespace
		own    []string
		others []string
	}{
		{"wireguard.gcp", b.gcp, []string{"169.254.1.1/32", "fe80::1/64"}, []string{"10.4.1.1/32", "fd04::1/128"}},
		{shortened, b.merit, []string{"169.254.1.2/32", "fe80::1/64"}, []string{"10.5.1.1/32", "fd05::1/128"}},
		{"cni1", b.pod2, []string{"10.1.4.1/24", "fd01:0:0:4::1/64", "fe80::1/64"}, []string{"10.1.4.5/32", "fd01:0:0:4::5/128"}},
	} {
		nstest.Pair(t, b.host, l.space, l.name, "eth0")
		b.do(t, b.host, func() error { addAddress(t, l.name, l.own...); return nil })
		b.do(t, l.space, func() error {
			addAddress(t, "eth0", l.others...)
			out := link(t, "eth0").Attrs().Index
			gateway := net.ParseIP(strings.Split(l.own[0], "/")[0])
			return errors.Join(
				netlink.RouteAdd(&netlink.Route{LinkIndex: out, Gw: gateway, Flags: int(netlink.FLAG_ONLINK)}),
				netlink.RouteAdd(&netlink.Route{LinkIndex: out, Gw: net.ParseIP("fe80::1")}))
		})
	}
	b.do(t, b.host, func() error {
		table := newTable(t)
		gcp, merit := link(t, "wireguard.gcp").Attrs().Index, link(t, shortened).Attrs().Index
		mustRoute(t, table, append(Desired(prefixes(subnet4, subnet6), gcp, nil),
			Desired(prefixes("10.5.0.0/16", "fd05::/48"), merit, nil)...))
		return looseReversePath()
	})
	b.targets = []netip.AddrPort{
		netip.MustParseAddrPort("10.1.3.5:7"), netip.MustParseAddrPort("[fd01:0:0:3::5]:7"), // the pod
		netip.MustParseAddrPort("192.0.2.1:7"), netip.MustParseAddrPort("[2001:db8::1]:7"), // the host
	}
	for _, space := range []*nstest.Namespace{b.pod, b.host} {
		b.do(t, space, func() error {
			socket, err := net.ListenPacket("udp", ":7")
			if err != nil {
				return err
			}
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
	return b
}

// looseReversePath switches off the kernel's own source check (rp_filter) on all links of
// the calling thread's namespace. The stricter of the values of "all" and the link applies
// (kernel documentation, networking/ip-sysctl).
func looseReversePath() error {
	files, err := filepath.Glob("/proc/sys/net/ipv4/conf/*/rp_filter")
	for _, file := range files {
		err = errors.Join(err, os.WriteFile(file, []byte("0"), 0))
	}
	return err
}

// sender sends from a source address in each family.
type sender []*net.UDPConn

// sender opens a sender in a namespace, adding the addresses if missing.
func (b *forgeBed) sender(t *testing.T, space *nstest.Namespace, addrs ...string) sender {
	t.Helper()
	var s sender
	b.do(t, space, func() error {
		for _, a := range addrs {
			addr := netip.MustParseAddr(a)
			if have, err := localAddresses(); err != nil {
				return err
			} else if !usable(have, addr) {
				addAddress(t, "lo", netip.PrefixFrom(addr, addr.BitLen()).String())
			}
			conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
			if err != nil {
				return fmt.Errorf("from %s: %w", addr, err)
			}
			t.Cleanup(func() { _ = conn.Close() })
			s = append(s, conn)
		}
		return nil
	})
	return s
}

func usable(have []localAddress, addr netip.Addr) bool {
	for _, l := range have {
		if l.addr == addr {
			return true
		}
	}
	return false
}

func (s sender) to(target netip.AddrPort) error {
	conn := s[0]
	if target.Addr().Is6() {
		conn = s[1]
	}
	_, err := conn.WriteToUDPAddrPort([]byte("plaintext"), target)
	return err
}

func (b *forgeBed) send(t *testing.T, s sender, to netip.AddrPort) {
	t.Helper()
	if err := s.to(to); err != nil {
		t.Fatalf("to %s: %v", to, err)
	}
}

// delivered sends a packet and waits until one more has arrived.
func (b *forgeBed) delivered(t *testing.T, s sender, to netip.AddrPort) int64 {
	t.Helper()
	before := b.received.Load()
	b.send(t, s, to)
	polltest.Until(t, time.Minute, "the packet to arrive", func() bool { return b.received.Load() > before })
	return b.received.Load() - before
}

// waitDropped waits until the filter has dropped the given numbers of packets in total.
func (b *forgeBed) waitDropped(t *testing.T, origins []Origin, want uint64) {
	t.Helper()
	var got uint64
	polltest.Until(t, time.Minute, "the packet to be counted", func() bool {
		got = 0
		b.do(t, b.host, func() error {
			state, err := newFilter(t).Status(t.Context(), rulesetOf(origins))
			if err == nil && !state.Arrival {
				err = errors.New("the filter is not enforced")
			}
			for _, n := range state.Forged {
				got += n
			}
			return err
		})
		return got >= want
	})
	if got != want {
		t.Errorf("%d packets dropped, want %d", got, want)
	}
}

// TestExemptedSubnetsAreRead reads what an earlier process has exempted.
func TestExemptedSubnetsAreRead(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		const mark, port = 0x1073, 51820
		exempted := func(mark uint32, port int) string {
			found, err := Exempted(t.Context(), mark, gcpOrigin()[0], port)
			must(t, err)
			return fmt.Sprint(found)
		}
		if got := exempted(mark, port); got != "[]" {
			t.Errorf("without a table: %s", got)
		}
		rules := rulesetOf(gcpOrigin())
		rules.Mark, rules.Ports = mark, map[string]int{"wireguard.gcp": port}
		rules.Shared = []Origin{{Device: "wireguard.gcp", Subnets: prefixes(subnet6)}}
		_, err := newFilter(t).Sync(t.Context(), rules)
		must(t, err)
		if got, want := exempted(mark, port), fmt.Sprint(prefixes(subnet6)); got != want {
			t.Errorf("exempted are %s, want %s", got, want)
		}
		if got := exempted(mark, port+1) + exempted(mark<<1, port) + exempted(0, port); got != "[][][]" {
			t.Errorf("of another port, another mark and without one: %s", got)
		}
	})
}
