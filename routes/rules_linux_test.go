package routes

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/nstest"
)

func mustFence(t *testing.T, table *Table, subnets ...string) Changes {
	t.Helper()
	changes, err := table.Fence(t.Context(), prefixes(subnets...))
	must(t, err)
	return changes
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
		if diff := cmp.Diff(Changes{Added: 4}, mustFence(t, table, subnets...)); diff != "" {
			t.Errorf("first (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(Changes{}, mustFence(t, table, subnets...)); diff != "" {
			t.Errorf("again (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(Changes{Added: 2, Removed: 2}, mustFence(t, table, "10.5.0.0/16", "fd04::/48")); diff != "" {
			t.Errorf("another subnet (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(Changes{Removed: 4}, mustFence(t, table)); diff != "" {
			t.Errorf("none (-want +got):\n%s", diff)
		}
		if got := foreignRules(t); got != foreign {
			t.Errorf("%d foreign rules, were %d", got, foreign)
		}
	})
}

func TestFenceRemovesRulesThatCarryOurMarkInAnotherForm(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		table := newTable(t)
		rule := netlink.NewRule()
		rule.Priority, rule.Table, rule.Protocol = 100, unix.RT_TABLE_MAIN, Protocol
		rule.Dst = &net.IPNet{IP: net.IPv4(10, 4, 0, 0).To4(), Mask: net.CIDRMask(16, 32)}
		must(t, netlink.RuleAdd(rule))
		if diff := cmp.Diff(Changes{Added: 2, Removed: 1}, mustFence(t, table, "10.4.0.0/16")); diff != "" {
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
		_, err = table.Fence(t.Context(), subnets)
		must(t, err)
		leads(0)
		mustSync(t, table, Desired(subnets, wg, nil))
		leads(wg)
		mustSync(t, table, nil)
		leads(0)
		// A part of the subnet that somebody routes elsewhere is their business.
		addRoute(t, netlink.Route{LinkIndex: eth, Scope: unix.RT_SCOPE_LINK}, "10.4.7.0/24")
		addRoute(t, netlink.Route{LinkIndex: eth, Scope: unix.RT_SCOPE_LINK}, "fd04::/64")
		leads(eth)
		mustFence(t, table)
		leads(eth)
	})
}
