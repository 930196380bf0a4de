package routes

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

// Foreign routes in the main table are neither changed nor in the way, wherever they lead.
func TestSyncLeavesForeignRoutesAlone(t *testing.T) {
	for name, test := range map[string]struct {
		foreign netlink.Route
		to      string
		want    string
	}{
		"IPv4":                      {netlink.Route{Protocol: unix.RTPROT_BIRD, Gw: net.ParseIP("192.0.2.2")}, subnet4, "10.4.0.0/16 via 192.0.2.2 dev eth0 protocol bird"},
		"IPv6":                      {netlink.Route{Protocol: unix.RTPROT_STATIC, Gw: net.ParseIP("2001:db8::2"), Priority: 100}, subnet6, "fd04::/48 via 2001:db8::2 dev eth0 protocol static metric 100"},
		"nowhere":                   {netlink.Route{Type: unix.RTN_BLACKHOLE, Protocol: unix.RTPROT_STATIC}, subnet4, "blackhole 10.4.0.0/16 protocol static"},
		"with the guard's metric":   {netlink.Route{Protocol: unix.RTPROT_STATIC, Gw: net.ParseIP("192.0.2.2"), Priority: guardMetric}, subnet4, "10.4.0.0/16 via 192.0.2.2 dev eth0 protocol static metric 4294967295"},
		"to a part":                 {netlink.Route{Protocol: unix.RTPROT_STATIC, Gw: net.ParseIP("192.0.2.2")}, "10.4.9.0/24", "10.4.9.0/24 via 192.0.2.2 dev eth0 protocol static"},
		"of the original, its link": {netlink.Route{Scope: unix.RT_SCOPE_LINK, Protocol: unix.RTPROT_BOOT}, subnet4, "10.4.0.0/16 dev eth0 protocol boot"},
	} {
		t.Run(name, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				eth0 := addDevice(t, "eth0")
				addAddress(t, "eth0", "192.0.2.1/24", "2001:db8::1/64")
				gcp := addDevice(t, "wireguard.gcp")
				if test.foreign.Type == 0 {
					test.foreign.LinkIndex = eth0
				}
				addRoute(t, test.foreign, test.to)
				table := newTable(t)
				for range 2 {
					mustSync(t, table, Desired(prefixes(subnet4, subnet6), gcp, nil))
					_, err := table.RemoveCopies(t.Context())
					must(t, err)
				}
				if got := list(t, table, unix.RT_TABLE_MAIN, test.to); len(got) != 1 || got[0] != test.want {
					t.Errorf("the main table has %q, want %q", got, test.want)
				}
				if got := shown(t, table, subnet4, subnet6); len(got) != 4 {
					t.Errorf("our own table has %q", got)
				}
			})
		})
	}
}

// A foreign route may be inserted before ours in the same slot of our own table. Replacing ours
// would then overwrite it.
func TestSyncDoesNotReplaceAForeignRouteBeforeOurs(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		eth0, gcp := addDevice(t, "eth0"), addDevice(t, "wireguard.gcp")
		addAddress(t, "lo", "10.1.3.1/32")
		table := newTable(t)
		mustSync(t, table, Desired(prefixes(subnet4), gcp, nil))
		// Without NLM_F_EXCL and NLM_F_REPLACE, as in a request for an ECMP route,
		// the kernel puts an IPv4 route in front.
		_, dst, _ := net.ParseCIDR(subnet4)
		must(t, netlink.RouteAddEcmp(&netlink.Route{
			LinkIndex: eth0, Dst: dst, Scope: unix.RT_SCOPE_LINK, Protocol: unix.RTPROT_STATIC, Table: OwnTable,
		}))

		changes, err := table.Sync(t.Context(), Desired(prefixes(subnet4), gcp, []netip.Addr{netip.MustParseAddr("10.1.3.1")}))
		if !errors.Is(err, ErrInTheWay) || changes != (Changes{}) {
			t.Errorf("made %+v, %v", changes, err)
		}
		if diff := cmp.Diff([]string{
			"10.4.0.0/16 dev eth0 protocol static",
			"10.4.0.0/16 dev wireguard.gcp protocol 115",
			"unreachable 10.4.0.0/16 protocol 115 metric 4294967295",
		}, shown(t, table, subnet4)); diff != "" {
			t.Errorf("routes (-want +got):\n%s", diff)
		}
	})
}

// A foreign route in our own table is a fault, since it would take effect.
func TestSyncReportsARouteInTheWay(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		eth0, gcp := addDevice(t, "eth0"), addDevice(t, "wireguard.gcp")
		foreign := netlink.Route{LinkIndex: eth0, Scope: unix.RT_SCOPE_LINK, Protocol: unix.RTPROT_STATIC, Table: OwnTable}
		addRoute(t, foreign, subnet4)
		table := newTable(t)
		want := Desired(prefixes(subnet4), gcp, nil)
		_, err := table.Sync(t.Context(), want)
		if !errors.Is(err, ErrInTheWay) || !strings.Contains(err.Error(), "10.4.0.0/16 dev eth0 protocol static table 115115") {
			t.Errorf("got error %v, want ErrInTheWay", err)
		}
		if got := shown(t, table, subnet4); len(got) != 2 {
			t.Errorf("our own table has %q, want the foreign route and the guard", got)
		}
		_, foreign.Dst, _ = net.ParseCIDR(subnet4)
		must(t, netlink.RouteDel(&foreign))
		mustSync(t, table, want)
	})
}

// The original tool calls RouteReplace with link, destination and scope only, which the kernel
// stores with protocol boot, in the main table. Until ours is installed, it counts as such; then it
// stays, without an effect, until its device is removed.
func TestTakeoverOfTheRouteOfTheOriginalTool(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		gcp := addDevice(t, "wireguard.gcp")
		table := newTable(t)
		for _, subnet := range []string{subnet4, subnet6} {
			_, dst, _ := net.ParseCIDR(subnet)
			must(t, netlink.RouteReplace(&netlink.Route{LinkIndex: gcp, Dst: dst, Scope: netlink.SCOPE_LINK}))
		}
		main := list(t, table, unix.RT_TABLE_MAIN, subnet4, subnet6)
		if diff := cmp.Diff([]string{
			"10.4.0.0/16 dev wireguard.gcp protocol boot",
			"fd04::/48 dev wireguard.gcp protocol boot metric 1024",
		}, main); diff != "" {
			t.Fatalf("before (-want +got):\n%s", diff)
		}
		lookups := watchLookups(t, []int{gcp}, netip.MustParseAddr("10.4.1.1"), netip.MustParseAddr("fd04::1"))
		want := Desired(prefixes(subnet4, subnet6), gcp, nil)
		installed, err := table.Installed(want)
		must(t, err)
		want = Retain(want, installed, false)
		if diff := cmp.Diff(Changes{Added: 4}, mustSync(t, table, want)); diff != "" {
			t.Errorf("changes (-want +got):\n%s", diff)
		}
		mustFence(t, table, subnet4, subnet6)
		if copies, err := table.RemoveCopies(t.Context()); err != nil || copies != (Changes{}) {
			t.Errorf("%+v, %v", copies, err)
		}
		lookups()
		if diff := cmp.Diff(main, list(t, table, unix.RT_TABLE_MAIN, subnet4, subnet6)); diff != "" {
			t.Errorf("after (-want +got):\n%s", diff)
		}
	})
}

func TestSyncRemovesStrayRoutes(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		eth0, gcp := addDevice(t, "eth0"), addDevice(t, "wireguard.gcp")
		addAddress(t, "eth0", "192.0.2.1/24", "2001:db8::1/64")
		gw4, gw6 := net.ParseIP("192.0.2.2"), net.ParseIP("2001:db8::2")
		addRoute(t, netlink.Route{LinkIndex: eth0, Gw: gw4, Protocol: Protocol, Table: OwnTable}, subnet4)
		addRoute(t, netlink.Route{LinkIndex: eth0, Gw: gw4, Protocol: Protocol, Table: OwnTable, Priority: 50}, subnet4)
		addRoute(t, netlink.Route{LinkIndex: gcp, Scope: unix.RT_SCOPE_LINK, Protocol: Protocol, Table: OwnTable, MTU: 1300}, "10.9.0.0/16")
		addRoute(t, netlink.Route{LinkIndex: eth0, Gw: gw6, Protocol: Protocol, Table: OwnTable}, subnet6)
		addRoute(t, netlink.Route{LinkIndex: gcp, Protocol: Protocol, Table: OwnTable, Priority: 50}, subnet6)
		addRoute(t, netlink.Route{Type: unix.RTN_BLACKHOLE, Protocol: Protocol, Table: OwnTable, Priority: 60}, subnet6)
		table := newTable(t)
		want := Desired(prefixes(subnet4, subnet6), gcp, nil)

		mustSync(t, table, want)
		if diff := cmp.Diff([]string{
			"10.4.0.0/16 dev wireguard.gcp protocol 115",
			"unreachable 10.4.0.0/16 protocol 115 metric 4294967295",
			"fd04::/48 dev wireguard.gcp protocol 115 metric 1024",
			"unreachable fd04::/48 dev lo protocol 115 metric 4294967295",
		}, shown(t, table, subnet4, subnet6, "10.9.0.0/16")); diff != "" {
			t.Errorf("routes (-want +got):\n%s", diff)
		}
		if changes := mustSync(t, table, want); changes != (Changes{}) {
			t.Errorf("second pass made %+v", changes)
		}
	})
}
