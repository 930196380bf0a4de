package routes

import (
	"net"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Foreign routes to a remote pod subnet, to a part of one, and through rules after ours
// take no packet, with and without the device.
func TestForeignRoutesTakeNoPacket(t *testing.T) {
	n := newNode(t)
	targets := []string{"10.4.9.1:80", "[fd04:0:0:9::1]:80"}
	foreign := []netlink.Route{}
	for _, to := range []string{"10.4.9.0/24", subnet4, "fd04:0:0:9::/64", subnet6} {
		ip, dst, _ := net.ParseCIDR(to)
		gw := net.ParseIP("192.0.2.2")
		if ip.To4() == nil {
			gw = net.ParseIP("2001:db8::2")
		}
		foreign = append(foreign, netlink.Route{Dst: dst, Gw: gw, Protocol: unix.RTPROT_BIRD, Priority: 50})
	}
	const otherTable = 100
	in := func(f func()) { n.do(t, n.host, func() error { f(); return nil }) }
	in(func() {
		for i := range foreign {
			must(t, netlink.RouteAdd(&foreign[i]))
			other := foreign[i]
			other.Table = otherTable
			must(t, netlink.RouteAdd(&other))
		}
		for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
			rule := netlink.NewRule()
			rule.Priority, rule.Table, rule.Family = 1536, otherTable, family
			must(t, netlink.RuleAdd(rule))
		}
	})
	n.probe(t, targets)
	if leaked := n.capture.leaked(t, n); leaked != 2*len(targets) {
		t.Fatalf("%d packets were seen without anything of ours, want %d", leaked, 2*len(targets))
	}

	var table *Table
	var device int
	in(func() {
		table = newTable(t)
		device = addDevice(t, "wireguard.gcp")
	})
	subnets := prefixes(subnet4, subnet6)
	closed := func(what string) {
		t.Helper()
		for range 10 {
			n.probe(t, targets)
		}
		if leaked := n.capture.leaked(t, n); leaked != 0 {
			t.Errorf("%s: %d packets leaked", what, leaked)
		}
	}
	mustSync(t, table, Desired(subnets, device, nil))
	_, err := table.Fence(t.Context(), subnets)
	must(t, err)
	closed("with the device")
	in(func() { must(t, netlink.LinkDel(link(t, "wireguard.gcp"))) })
	closed("without the device")
	in(func() {
		mustFilter(t, gcpOrigin())
		must(t, flushOurs(OwnTable))
	})
	closed("without any route of ours, by the exit filter")
	in(func() { mustFence(t, table) })
	closed("without any route or rule of ours, by the exit filter")
	// Foreign routes are left in place.
	mustSync(t, table, nil)
	in(func() {
		_, err := newFilter(t).Sync(t.Context(), Ruleset{})
		must(t, err)
	})
	n.probe(t, targets)
	if leaked := n.capture.leaked(t, n); leaked != 2*len(targets) {
		t.Errorf("%d packets were seen after ours had gone, want %d", leaked, 2*len(targets))
	}
}
