package routes

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// addDevice creates a link in place of a WireGuard device in the current namespace, up and
// with carrier, and returns its index. It is one end of a veth pair; peerOf is the other's
// name.
func addDevice(t *testing.T, name string) int {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: peerOf(name)}))
	setUp(t, name)
	setUp(t, peerOf(name))
	return link(t, name).Attrs().Index
}

func peerOf(device string) string { return strings.TrimPrefix(device, "wireguard.") + "-peer" }

func link(t *testing.T, name string) netlink.Link {
	t.Helper()
	l, err := netlink.LinkByName(name)
	must(t, err)
	return l
}

func setUp(t *testing.T, name string) {
	t.Helper()
	must(t, netlink.LinkSetUp(link(t, name)))
}

func addAddress(t *testing.T, name string, addresses ...string) {
	t.Helper()
	for _, address := range addresses {
		addr, err := netlink.ParseAddr(address)
		must(t, err)
		addr.Flags = unix.IFA_F_NODAD // otherwise IPv6 addresses are tentative at first
		must(t, netlink.AddrAdd(link(t, name), addr))
	}
}

func addRoute(t *testing.T, r netlink.Route, to string) {
	t.Helper()
	_, r.Dst, _ = net.ParseCIDR(to)
	must(t, netlink.RouteAdd(&r))
}

func newTable(t *testing.T) *Table {
	t.Helper()
	table, err := NewTable(slog.New(slog.NewTextHandler(t.Output(), nil)), 0)
	must(t, err)
	t.Cleanup(table.Close)
	return table
}

func mustSync(t *testing.T, table *Table, want []Route) Changes {
	t.Helper()
	changes, err := table.Sync(t.Context(), want)
	must(t, err)
	return changes
}

// mustRoute installs routes, and the rules that lead packets to them.
func mustRoute(t *testing.T, table *Table, want []Route) {
	t.Helper()
	mustSync(t, table, want)
	var subnets []netip.Prefix
	for _, r := range want {
		if r.Guard {
			subnets = append(subnets, r.Prefix)
		}
	}
	_, err := table.Fence(t.Context(), subnets)
	must(t, err)
}

// shown lists the routes to the prefixes in our own table, in the kernel's order. The main table
// must have none of ours.
func shown(t *testing.T, table *Table, to ...string) []string {
	t.Helper()
	for _, line := range list(t, table, unix.RT_TABLE_MAIN, to...) {
		if strings.Contains(line, "protocol 115") {
			t.Errorf("the main table has %q", line)
		}
	}
	return list(t, table, OwnTable, to...)
}

func list(t *testing.T, table *Table, number int, to ...string) []string {
	t.Helper()
	wanted := prefixes(to...)
	var found []netlink.Route
	must(t, table.dump(number, false, func(msg *netlink.Route) {
		if slices.Contains(wanted, prefixOf(msg)) {
			found = append(found, *msg)
		}
	}))
	var lines []string
	for i := range found {
		lines = append(lines, strings.TrimSuffix(table.describe(&found[i]), fmt.Sprintf(" table %d", OwnTable)))
	}
	return lines
}

// lookup returns the kernel's route for a packet to target.
func lookup(handle *netlink.Handle, target netip.Addr) (device int, err error) {
	found, err := handle.RouteGet(target.AsSlice())
	if err != nil {
		return 0, err
	}
	if len(found) != 1 {
		return 0, fmt.Errorf("%d routes to %s", len(found), target)
	}
	return found[0].LinkIndex, nil
}

// countEvents counts the kernel's events about our routes in the current namespace until
// the returned function is called.
func countEvents(t *testing.T) (stop func() int) {
	t.Helper()
	monitor := NewMonitor(MonitorConfig{Logger: slog.New(slog.DiscardHandler)})
	socket, err := monitor.subscribe()
	must(t, err)
	t.Cleanup(socket.Close)
	return func() int {
		t.Helper()
		// Events arrive in order, so a marker ends the count.
		addAddress(t, "lo", "198.51.100.1/32")
		for n := 0; ; {
			messages, _, err := socket.Receive()
			must(t, err)
			for _, msg := range messages {
				switch msg.Header.Type {
				case unix.RTM_NEWADDR:
					return n
				case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
					if monitor.concerns(msg) != 0 {
						n++
					}
				}
			}
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
