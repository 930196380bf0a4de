package routes

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

func mustFence(t *testing.T, table *Table, subnets ...string) Changes {
	t.Helper()
	fenced, err := table.Fence(t.Context(), prefixes(subnets...))
	must(t, err)
	return fenced.Changes
}

// foreignRules counts the rules that aren't ours: local, main and default of
// IPv4, local and main of IPv6, in a fresh namespace.
func foreignRules(t *testing.T) (n int) {
	t.Helper()
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		rules, err := netlink.RuleList(family)
		must(t, err)
		for _, r := range rules {
			if r.Protocol != Protocol {
				n++
			}
		}
	}
	return n
}

func TestFenceInstallsBothFamiliesAndThenWritesNothing(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		table := newTable(t)
		foreign := foreignRules(t)
		subnets := []string{"10.4.0.0/16", "fd04::/48"}
		if diff := cmp.Diff(Changes{Added: 2}, mustFence(t, table, subnets...)); diff != "" {
			t.Errorf("first (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(Changes{}, mustFence(t, table, subnets...)); diff != "" {
			t.Errorf("again (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(Changes{Added: 1, Removed: 1}, mustFence(t, table, "10.5.0.0/16", "fd04::/48")); diff != "" {
			t.Errorf("another subnet (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(Changes{Removed: 2}, mustFence(t, table)); diff != "" {
			t.Errorf("none (-want +got):\n%s", diff)
		}
		if got := foreignRules(t); got != foreign {
			t.Errorf("%d foreign rules, were %d", got, foreign)
		}
	})
}

func TestFenceRemovesStrayRules(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		table := newTable(t)
		rule := netlink.NewRule()
		rule.Priority, rule.Table, rule.Protocol = 100, unix.RT_TABLE_MAIN, Protocol
		rule.Dst = &net.IPNet{IP: net.IPv4(10, 4, 0, 0).To4(), Mask: net.CIDRMask(16, 32)}
		must(t, netlink.RuleAdd(rule))
		if diff := cmp.Diff(Changes{Added: 1, Removed: 1}, mustFence(t, table, "10.4.0.0/16")); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func TestFenceLetsOnlyRoutesForTheSubnetDecide(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		table := newTable(t)
		eth, wg := addDevice(t, "eth0"), addDevice(t, "wg0")
		setUp(t, "eth0")
		setUp(t, "wg0")
		for _, wide := range []string{"0.0.0.0/0", "10.0.0.0/8", "::/0", "fd00::/8"} {
			addRoute(t, netlink.Route{LinkIndex: eth, Scope: unix.RT_SCOPE_LINK}, wide)
		}
		handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		must(t, err)
		defer handle.Close()
		subnets := prefixes("10.4.0.0/16", "fd04::/48")
		to := []netip.Addr{netip.MustParseAddr("10.4.7.2"), netip.MustParseAddr("fd04::2")}
		leads := func(want int) {
			t.Helper()
			for _, target := range to {
				device, err := lookup(handle, target)
				switch {
				case want == 0 && !errors.Is(err, unix.ENETUNREACH) && !errors.Is(err, unix.EHOSTUNREACH):
					t.Errorf("%s leads to device %d, %v; want it to be unreachable", target, device, err)
				case want != 0 && (err != nil || device != want):
					t.Errorf("%s leads to device %d, %v; want %d", target, device, err, want)
				}
			}
		}
		leads(eth)
		mustSync(t, table, Desired(subnets, 0, nil))
		_, err = table.Fence(t.Context(), subnets)
		must(t, err)
		leads(0)
		mustSync(t, table, Desired(subnets, wg, nil))
		leads(wg)
		mustSync(t, table, Desired(subnets, 0, nil))
		leads(0)
		// Nor does a foreign route to a part of the subnet, or to all of it.
		for _, narrow := range []string{"10.4.7.0/24", "10.4.0.0/16", "fd04::/64", "fd04::/48"} {
			addRoute(t, netlink.Route{LinkIndex: eth, Scope: unix.RT_SCOPE_LINK}, narrow)
		}
		leads(0)
		mustSync(t, table, Desired(subnets, wg, nil))
		leads(wg)
		mustFence(t, table)
		leads(eth)
	})
}

// The release before had copies of the routes in the main table, and rules that refused what
// found no route. No packet takes another way while they are removed.
func TestUpgradeFromCopiesAndDenials(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		table := newTable(t)
		wg := addDevice(t, "wg0")
		want := Desired(prefixes(subnet4, subnet6), wg, nil)
		mustSync(t, table, want)
		mustFence(t, table, subnet4, subnet6)
		for _, r := range want {
			msg := message(r)
			msg.Table = unix.RT_TABLE_MAIN
			must(t, netlink.RouteAdd(msg))
		}
		for _, subnet := range prefixes(subnet4, subnet6) {
			deny := fence{kind: fenceLookup, prefix: subnet}.message()
			deny.Priority, deny.Table, deny.Type = 401, -1, unix.RTN_UNREACHABLE
			must(t, netlink.RuleAdd(deny))
		}
		lookups := watchLookups(t, []int{wg}, netip.MustParseAddr("10.4.1.1"), netip.MustParseAddr("fd04::1"))
		if diff := cmp.Diff(Changes{}, mustSync(t, table, want)); diff != "" {
			t.Errorf("routes (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(Changes{Removed: 2}, mustFence(t, table, subnet4, subnet6)); diff != "" {
			t.Errorf("rules (-want +got):\n%s", diff)
		}
		for _, copies := range []int{4, 0} {
			if got, err := table.RemoveCopies(t.Context()); err != nil || got != (Changes{Removed: copies}) {
				t.Errorf("%+v, %v, want %d copies to be removed", got, err, copies)
			}
		}
		lookups()
		if got := shown(t, table, subnet4, subnet6); len(got) != 4 {
			t.Errorf("our own table has %q", got)
		}
	})
}

// ipv6.disable=1 is not possible in a namespace: here the table's probe reports a missing
// IPv6, and any request for it would fail.
func TestUnsupportedFamilyIsSkipped(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		table := newTable(t)
		table.probe = func(family int) error {
			if family == unix.AF_INET6 {
				return unix.EAFNOSUPPORT
			}
			return nil
		}
		wg := addDevice(t, "wg0")
		if diff := cmp.Diff(Changes{Added: 2}, mustSync(t, table, Desired(prefixes(subnet4, subnet6), wg, nil))); diff != "" {
			t.Errorf("routes (-want +got):\n%s", diff)
		}
		fenced, err := table.Fence(t.Context(), prefixes(subnet4, subnet6))
		must(t, err)
		if fenced.Changes != (Changes{Added: 1}) || len(fenced.Subnets) != 2 {
			t.Errorf("rules: %+v, want those of IPv4, and both subnets to count as fenced", fenced)
		}
		rules, err := netlink.RuleList(unix.AF_INET6)
		must(t, err)
		for _, r := range rules {
			if r.Protocol == Protocol {
				t.Errorf("a rule of IPv6: %v", r)
			}
		}
	})
}

// Nodes may have addresses inside the pod subnets: the tunnel's own packets to them have to
// leave by other routes than packets to pods, also while the rules change.
func TestMarkedPacketsPassTheFence(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		table := newTable(t)
		eth, wg := addDevice(t, "eth0"), addDevice(t, "wg0")
		setUp(t, "eth0")
		setUp(t, "wg0")
		for _, wide := range []string{"0.0.0.0/0", "::/0"} {
			addRoute(t, netlink.Route{LinkIndex: eth, Scope: unix.RT_SCOPE_LINK}, wide)
		}
		// A rule by source, as of hosts with several uplinks, still applies.
		const uplink = 11
		addAddress(t, "eth0", "198.51.100.7/32")
		addRoute(t, netlink.Route{LinkIndex: eth, Scope: unix.RT_SCOPE_LINK, Table: uplink}, "10.4.7.9/32")
		bySource := netlink.NewRule()
		bySource.Priority, bySource.Table = 1000, uplink
		bySource.Src = &net.IPNet{IP: net.IPv4(198, 51, 100, 7).To4(), Mask: net.CIDRMask(32, 32)}
		must(t, netlink.RuleAdd(bySource))
		subnets := prefixes("10.4.0.0/16", "fd04::/48")
		leads := func(what string, options netlink.RouteGetOptions, want int) {
			t.Helper()
			for _, to := range []string{"10.4.7.2", "fd04::2"} {
				found, err := netlink.RouteGetWithOptions(net.ParseIP(to), &options)
				switch {
				case want == 0 && err == nil && found[0].Type == unix.RTN_UNICAST:
					t.Errorf("%s to %s leads to device %d, want none", what, to, found[0].LinkIndex)
				case want != 0 && (err != nil || found[0].LinkIndex != want):
					t.Errorf("%s to %s: %v, %v; want device %d", what, to, found, err, want)
				}
			}
		}
		const mark = 0x1073
		all := func(pods, tunnel int) {
			t.Helper()
			leads("an unmarked packet", netlink.RouteGetOptions{}, pods)
			leads("one with a part of the mark", netlink.RouteGetOptions{Mark: mark &^ 0x1000}, pods)
			leads("a marked packet", netlink.RouteGetOptions{Mark: mark}, tunnel)
			leads("one to which a network plugin has added bits", netlink.RouteGetOptions{Mark: mark | 0xf0000}, tunnel)
		}
		table.mark = mark
		changes := mustSync(t, table, Desired(subnets, wg, nil))
		if changes.Added != 4 {
			t.Errorf("%+v, want 4 routes", changes)
		}
		fenced, err := table.Fence(t.Context(), subnets)
		must(t, err)
		if fenced.Changes != (Changes{Added: 6}) || len(fenced.Passable) != 2 {
			t.Errorf("%+v, want 6 rules and both subnets to be passable", fenced)
		}
		if diff := cmp.Diff(Changes{}, mustFence(t, table, "10.4.0.0/16", "fd04::/48")); diff != "" {
			t.Errorf("again (-want +got):\n%s", diff)
		}
		all(wg, eth)
		if found, err := netlink.RouteGetWithOptions(net.IPv4(10, 4, 7, 9), &netlink.RouteGetOptions{Mark: mark, SrcAddr: net.IPv4(198, 51, 100, 7)}); err != nil || found[0].Table != uplink {
			t.Errorf("a marked packet from another uplink: %v, %v; want the route of table %d", found, err, uplink)
		}
		must(t, os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0))
		must(t, os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0))
		pods := addDevice(t, "cni0")
		setUp(t, "cni0")
		must(t, os.WriteFile("/proc/sys/net/ipv4/conf/cni0/rp_filter", []byte("0"), 0))
		for to, from := range map[string]string{"10.4.7.2": "10.2.0.7", "fd04::2": "fd02::7"} {
			bits := 8 * len(netip.MustParseAddr(from).AsSlice())
			addRoute(t, netlink.Route{LinkIndex: pods, Scope: unix.RT_SCOPE_LINK}, fmt.Sprintf("%s/%d", from, bits))
			found, err := netlink.RouteGetWithOptions(net.ParseIP(to), &netlink.RouteGetOptions{Mark: mark, Iif: "cni0", SrcAddr: net.ParseIP(from)})
			if err != nil || found[0].LinkIndex != wg {
				t.Errorf("a forwarded packet with the mark to %s: %v, %v; want device %d", to, found, err, wg)
			}
		}
		mustSync(t, table, Desired(subnets, 0, nil))
		all(0, eth)

		table.mark = 0x1033
		if diff := cmp.Diff(Changes{Added: 2, Removed: 2}, mustFence(t, table, "10.4.0.0/16", "fd04::/48")); diff != "" {
			t.Errorf("another mark (-want +got):\n%s", diff)
		}
		table.mark = 0
		if diff := cmp.Diff(Changes{Removed: 4}, mustFence(t, table, "10.4.0.0/16", "fd04::/48")); diff != "" {
			t.Errorf("no mark (-want +got):\n%s", diff)
		}
		all(0, 0)
		table.mark = mark
		mustFence(t, table, "10.4.0.0/16")
		if diff := cmp.Diff(Changes{Removed: 3}, mustFence(t, table)); diff != "" {
			t.Errorf("no subnets (-want +got):\n%s", diff)
		}
	})
}
