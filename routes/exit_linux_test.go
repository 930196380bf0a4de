package routes

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	mdlayher "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
)

// elsewhere is the number of another program's table, whose default routes lead to the uplink.
const elsewhere = 11

// remoteTargets are addresses of remote pods.
var remoteTargets = []string{"10.4.1.1:80", "[fd04::1]:80"}

// Another program's policy rule before ours leads packets of pods and of the host past the
// tunnel, into the capture on the uplink. With the exit filter none leaves, and each is counted;
// without the rule all enter the tunnel.
func TestNothingLeavesByForeignRules(t *testing.T) {
	for name, test := range map[string]struct {
		rules   func(*netlink.Rule)
		prepare func(*testing.T, *node) error // in the host's namespace
		both    bool                          // takes packets of host and pod; else of one of the two
		nft     bool                          // needs nft(8)
	}{
		"all":        {rules: func(*netlink.Rule) {}, both: true},
		"iif":        {rules: func(r *netlink.Rule) { r.IifName = "cni0" }},
		"iif lo":     {rules: func(r *netlink.Rule) { r.IifName = "lo" }},
		"from a pod": {rules: func(r *netlink.Rule) { r.Priority, r.Src = 111, ofFamily(r, "10.1.3.5/32", "fd01:0:0:3::5/128") }},
		"to":         {rules: func(r *netlink.Rule) { r.Dst = ofFamily(r, subnet4, subnet6) }, both: true},
		"to a part":  {rules: func(r *netlink.Rule) { r.Dst = ofFamily(r, "10.4.1.0/24", "fd04::/64") }, both: true},
		"to more":    {rules: func(r *netlink.Rule) { r.Dst = ofFamily(r, "10.0.0.0/8", "fd00::/8") }, both: true},
		"not to":     {rules: func(r *netlink.Rule) { r.Invert, r.Dst = true, ofFamily(r, "10.9.0.0/16", "fd09::/48") }, both: true},
		"uidrange":   {rules: func(r *netlink.Rule) { r.UIDRange = netlink.NewRuleUIDRange(0, 0) }, both: true},
		"ipproto":    {rules: func(r *netlink.Rule) { r.IPProto = unix.IPPROTO_UDP }, both: true},
		"dport": {rules: func(r *netlink.Rule) { r.IPProto, r.Dport = unix.IPPROTO_UDP, netlink.NewRulePortRange(80, 80) },
			both: true},
		"suppress_prefixlength": {rules: func(r *netlink.Rule) { r.SuppressPrefixlen = 7 },
			prepare: func(*testing.T, *node) error { return defaultsIn(elsewhere, "10.0.0.0/8", "fd00::/8") },
			both:    true},
		"main": {rules: func(r *netlink.Rule) { r.Table = unix.RT_TABLE_MAIN },
			prepare: func(*testing.T, *node) error { return defaultsIn(unix.RT_TABLE_MAIN, "10.4.1.0/24", "fd04::/64") },
			both:    true},
		"goto": {rules: func(r *netlink.Rule) { r.Table, r.Goto = -1, 32766 }, both: true,
			prepare: func(*testing.T, *node) error { // where the fallback routes have been removed
				return flushOurs(unix.RT_TABLE_MAIN)
			}},
		"fwmark": {rules: func(r *netlink.Rule) { r.Mark = 7 }, both: true,
			nft: true,
			prepare: func(t *testing.T, _ *node) error {
				nft(t, `table inet others {
					chain pre { type filter hook prerouting priority mangle; meta mark set 7; }
					chain out { type route hook output priority mangle; meta mark set 7; }
				}`)
				return nil
			}},
		"VRF": {rules: nil,
			prepare: func(t *testing.T, _ *node) error { return moveToVRF(t, "cni0") }},
	} {
		t.Run(name, func(t *testing.T) {
			if test.rules == nil {
				skipWithoutVRF(t)
			}
			if test.nft {
				needsNFT(t)
			}
			n := newNode(t)
			tunnelled(t, n)
			n.do(t, n.host, func() error { return defaultsIn(elsewhere, "0.0.0.0/0", "::/0") })
			n.probe(t, remoteTargets)
			if got := n.capture.leaked(t, n); got != 0 {
				t.Fatalf("%d packets left in plaintext without any foreign rule", got)
			}
			n.do(t, n.host, func() error {
				if test.prepare != nil {
					if err := test.prepare(t, n); err != nil {
						return err
					}
				}
				if test.rules == nil {
					return addL3mdevRules(10)
				}
				return addRules(test.rules)
			})
			want := len(remoteTargets)
			if test.both {
				want *= 2
			}
			n.probe(t, remoteTargets)
			if got := n.capture.leaked(t, n); got != want {
				t.Errorf("%d packets left in plaintext without the exit filter, want %d", got, want)
			}
			n.do(t, n.host, func() error { mustFilter(t, gcpOrigin()); return nil })
			n.probe(t, remoteTargets)
			if got := n.capture.leaked(t, n); got != 0 {
				t.Errorf("%d packets left in plaintext", got)
			}
			n.do(t, n.host, func() error { return stopped(t, uint64(want)) })
			t.Logf("%d packets left in plaintext before, 0 with the exit filter, which counted %d", want, want)
		})
	}
}

// Rules that lead packets to remote pods nowhere else let them pass.
func TestHarmlessForeignRules(t *testing.T) {
	for name, change := range map[string]func(*netlink.Rule){
		"at the same place later": func(r *netlink.Rule) { r.Priority = 400 },
		"behind ours":             func(r *netlink.Rule) { r.Priority = 402 },
		"an empty table":          func(r *netlink.Rule) { r.Table = 12 },
		"to others":               func(r *netlink.Rule) { r.Dst = ofFamily(r, "10.9.0.0/16", "fd09::/48") },
		"not to these":            func(r *netlink.Rule) { r.Invert, r.Dst = true, ofFamily(r, subnet4, subnet6) },
		"the default routes":      func(r *netlink.Rule) { r.SuppressPrefixlen = 0 },
		"delivery to the host": func(r *netlink.Rule) {
			r.Table, r.Mark = 13, 0x200
			_ = netlink.RouteAdd(&netlink.Route{Table: 13, Type: unix.RTN_LOCAL, Dst: ofFamily(r, "0.0.0.0/0", "::/0"), LinkIndex: 1})
		},
		"goto a rule before ours": func(r *netlink.Rule) {
			r.Table, r.Goto = -1, 20
			next := netlink.NewRule()
			next.Family, next.Priority, next.Table = r.Family, 20, 12
			_ = netlink.RuleAdd(next)
		},
		"into the device": func(r *netlink.Rule) {
			r.Table = 14
			device, _ := netlink.LinkByName("wireguard.gcp")
			_ = netlink.RouteAdd(&netlink.Route{Table: 14, Dst: ofFamily(r, subnet4, subnet6), LinkIndex: device.Attrs().Index})
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			tunnelled(t, n)
			n.do(t, n.host, func() error {
				mustFilter(t, gcpOrigin())
				return errors.Join(defaultsIn(elsewhere, "0.0.0.0/0", "::/0"), addRules(change))
			})
			n.probe(t, remoteTargets)
			if got := n.capture.leaked(t, n); got != 0 {
				t.Errorf("%d packets left in plaintext", got)
			}
			n.do(t, n.host, func() error { return stopped(t, 0) })
		})
	}
}

// Packets whose destination a service's translation changed are stopped by what they are then.
func TestNothingLeavesAfterTranslation(t *testing.T) {
	needsNFT(t)
	n := newNode(t)
	tunnelled(t, n)
	n.do(t, n.host, func() error {
		nft(t, `table inet others {
			chain pre { type nat hook prerouting priority dstnat; jump services; }
			chain out { type nat hook output priority -100; jump services; }
			chain services {
				ip daddr 192.0.2.200 meta l4proto udp dnat ip to 10.4.1.1:80
				ip6 daddr 2001:db8::200 meta l4proto udp dnat ip6 to [fd04::1]:80
			}
		}`)
		return errors.Join(defaultsIn(elsewhere, "0.0.0.0/0", "::/0"), addRules(func(*netlink.Rule) {}))
	})
	services := []string{"192.0.2.200:80", "[2001:db8::200]:80"}
	n.probe(t, services)
	if got := n.capture.leaked(t, n); got != 4 {
		t.Errorf("%d packets left in plaintext without the exit filter, want 4", got)
	}
	n.do(t, n.host, func() error { mustFilter(t, gcpOrigin()); return nil })
	n.probe(t, services)
	if got := n.capture.leaked(t, n); got != 0 {
		t.Errorf("%d packets left in plaintext", got)
	}
	n.do(t, n.host, func() error { return stopped(t, 4) })
}

// Without a device, as for a remote that was removed, packets leave by none, but reach this
// host's own addresses in the subnet.
func TestExitWithoutADevice(t *testing.T) {
	n := newNode(t)
	exits := []Exit{{Subnets: prefixes(subnet4, subnet6)}}
	n.do(t, n.host, func() error {
		if _, err := newFilter(t).Sync(t.Context(), Ruleset{Exits: exits}); err != nil {
			return err
		}
		setUp(t, "lo")
		addAddress(t, "cni0", "10.4.9.9/32", "fd04::9/128")
		for _, own := range []string{"10.4.9.9:9", "[fd04::9]:9"} {
			// The kernel makes an IPv6 address usable after the call that adds it.
			polltest.Until(t, time.Minute, "this host's "+own+" to answer", func() bool { return errors.Is(dial(own), unix.ECONNREFUSED) })
		}
		return nil
	})
	counted := func() (packets uint64) {
		n.do(t, n.host, func() error {
			s, err := newFilter(t).Status(t.Context(), Ruleset{Exits: exits})
			packets = s.Stopped[""]
			return err
		})
		return packets
	}
	before := counted()
	n.probe(t, remoteTargets)
	if got := n.capture.leaked(t, n); got != 0 {
		t.Errorf("%d packets left in plaintext", got)
	}
	if got := counted() - before; got != 4 {
		t.Errorf("%d packets counted, want 4", got)
	}
}

// The tunnel's own packets have a mark, and leave by any link; forwarded ones don't.
func TestMarkedPacketsOfTheHostLeave(t *testing.T) {
	needsNFT(t)
	const mark = 0x1073
	n := newNode(t)
	n.do(t, n.host, func() error {
		rules := rulesetOf(gcpOrigin())
		rules.Mark = mark
		for i, changed := range []bool{true, false} {
			if got, err := newFilter(t).Sync(t.Context(), rules); err != nil || got != changed {
				t.Errorf("pass %d: changed %v, %v", i, got, err)
			}
		}
		nft(t, `table inet others { chain pre { type filter hook prerouting priority mangle; meta mark set 0x1073; }
}`)
		return nil
	})
	n.probe(t, remoteTargets)
	n.do(t, n.host, func() error {
		for _, target := range remoteTargets {
			dialer := net.Dialer{Control: func(_, _ string, c syscall.RawConn) (err error) {
				return errors.Join(c.Control(func(fd uintptr) {
					err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, mark|0x4000)
				}), err)
			}}
			conn, err := dialer.DialContext(t.Context(), "udp", target)
			if err != nil {
				return err
			}
			_, err = conn.Write([]byte("encrypted"))
			if err := errors.Join(err, conn.Close()); err != nil {
				return err
			}
		}
		return nil
	})
	if got := n.capture.leaked(t, n); got != len(remoteTargets) {
		t.Errorf("%d packets left, want the %d with the mark", got, len(remoteTargets))
	}
}

// tunnelled gives the host device, routes and rules.
func tunnelled(t *testing.T, n *node) (table *Table) {
	t.Helper()
	n.do(t, n.host, func() error {
		table = newTable(t)
		mustSync(t, table, Desired(prefixes(subnet4, subnet6), addDevice(t, "wireguard.gcp"), nil))
		mustFence(t, table, subnet4, subnet6)
		return nil
	})
	return table
}

// stopped waits until the exit filter has counted the packets.
func stopped(t *testing.T, want uint64) error {
	t.Helper()
	var got uint64
	polltest.Until(t, time.Minute, "packets to be counted", func() bool {
		s, err := newFilter(t).Status(t.Context(), rulesetOf(gcpOrigin()))
		got = s.Stopped["wireguard.gcp"]
		return err == nil && s.Exit && got >= want
	})
	if got != want {
		t.Errorf("%d packets counted, want %d", got, want)
	}
	return nil
}

func cidr(text string) *net.IPNet {
	_, parsed, _ := net.ParseCIDR(text)
	return parsed
}

func ofFamily(r *netlink.Rule, four, six string) *net.IPNet {
	if r.Family == unix.AF_INET6 {
		return cidr(six)
	}
	return cidr(four)
}

// addRules adds a rule of each family, to another program's table unless changed.
func addRules(change func(*netlink.Rule)) error {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		rule := netlink.NewRule()
		rule.Family, rule.Priority, rule.Table = family, 10, elsewhere
		change(rule)
		if err := netlink.RuleAdd(rule); err != nil {
			return err
		}
	}
	return nil
}

// defaultsIn adds a table's routes to the uplink.
func defaultsIn(table int, four, six string) error {
	return errors.Join(
		netlink.RouteReplace(&netlink.Route{Table: table, Dst: cidr(four), Gw: net.ParseIP("192.0.2.2")}),
		netlink.RouteReplace(&netlink.Route{Table: table, Dst: cidr(six), Gw: net.ParseIP("2001:db8::2")}),
	)
}

// flushOurs removes our routes from a table.
func flushOurs(table int) error {
	var errs []error
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		ours, err := netlink.RouteListFiltered(family, &netlink.Route{Table: table, Protocol: Protocol}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
		errs = append(errs, err)
		for i := range ours {
			errs = append(errs, netlink.RouteDel(&ours[i]))
		}
	}
	return errors.Join(errs...)
}

func newVRF() *netlink.Vrf {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "vrf0"
	return &netlink.Vrf{LinkAttrs: attrs, Table: 77}
}

func skipWithoutVRF(t *testing.T) {
	t.Helper()
	err := nstest.New(t).Do(func() error { return netlink.LinkAdd(newVRF()) })
	if errors.Is(err, unix.EOPNOTSUPP) && os.Getenv("SEMAPHORE_TEST_KERNEL") == "" {
		t.Skip("NOT TESTED: this kernel has no VRFs (CONFIG_NET_VRF); the emulated machine's has (shard kernel)")
	}
	must(t, err)
}

// moveToVRF moves a link with its addresses into a VRF whose default routes lead to the uplink.
func moveToVRF(t *testing.T, name string) error {
	vrf := newVRF()
	if err := netlink.LinkAdd(vrf); err != nil {
		return err
	}
	setUp(t, "vrf0")
	addrs, err := netlink.AddrList(link(t, name), unix.AF_INET6)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetMaster(link(t, name), vrf); err != nil {
		return err
	}
	for i := range addrs { // The kernel removes those of IPv6 that aren't link-local.
		if err := netlink.AddrReplace(link(t, name), &addrs[i]); err != nil {
			return err
		}
	}
	out := link(t, "eth0").Attrs().Index
	return errors.Join(
		netlink.RouteAdd(&netlink.Route{Table: 77, Dst: cidr("0.0.0.0/0"), Gw: net.ParseIP("192.0.2.2"), LinkIndex: out, Flags: int(netlink.FLAG_ONLINK)}),
		netlink.RouteAdd(&netlink.Route{Table: 77, Dst: cidr("::/0"), Gw: net.ParseIP("2001:db8::2"), LinkIndex: out}))
}

// addL3mdevRules adds a rule of each family that looks up the tables of VRFs. The routing
// library can't.
func addL3mdevRules(priority uint32) error {
	conn, err := mdlayher.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		attrs := mdlayher.NewAttributeEncoder()
		attrs.Uint32(nl.FRA_PRIORITY, priority)
		attrs.Uint8(nl.FRA_L3MDEV, 1)
		body, err := attrs.Encode()
		if err != nil {
			return err
		}
		header := make([]byte, unix.SizeofRtMsg)
		header[0], header[7] = family, 1 // FR_ACT_TO_TBL
		if _, err := conn.Execute(mdlayher.Message{
			Header: mdlayher.Header{Type: unix.RTM_NEWRULE, Flags: mdlayher.Request | mdlayher.Create | mdlayher.Excl | mdlayher.Acknowledge},
			Data:   append(header, body...),
		}); err != nil {
			return err
		}
	}
	return nil
}
