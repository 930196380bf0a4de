package routes

import (
	"context"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// addTunnel creates a link with our alias, and returns its index.
func addTunnel(t *testing.T, remote string) int {
	t.Helper()
	nstest.TUN(t)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = tunnel.DeviceName(remote)
	must(t, netlink.LinkAdd(&netlink.Tuntap{LinkAttrs: attrs, Mode: netlink.TUNTAP_MODE_TUN}))
	must(t, netlink.LinkSetAlias(link(t, attrs.Name), tunnel.Alias(remote)))
	setUp(t, attrs.Name)
	return link(t, attrs.Name).Attrs().Index
}

// addressesOf lists the addresses of a link except link-local ones.
func addressesOf(t *testing.T, name string) (texts []string) {
	t.Helper()
	addrs, err := netlink.AddrList(link(t, name), netlink.FAMILY_ALL)
	must(t, err)
	for _, a := range addrs {
		if !a.IP.IsLinkLocalUnicast() {
			texts = append(texts, a.IPNet.String())
		}
	}
	slices.Sort(texts)
	return texts
}

func mustSyncAddresses(t *testing.T, table *Table, want []Address) Changes {
	t.Helper()
	changes, err := table.SyncAddresses(t.Context(), want)
	must(t, err)
	return changes
}

// dualStack is a host with a network plugin's cni0, and our devices to gcp, with both
// families, and merit, with IPv6 only.
func dualStack(t *testing.T) (src []netip.Addr, targets []Target) {
	t.Helper()
	addDevice(t, "eth0")
	addDevice(t, "cni0")
	addAddress(t, "eth0", "192.0.2.10/24", "2001:db8::10/64")
	addAddress(t, "cni0", "10.1.3.1/24", "fd01:0:0:3::1/64")
	src, err := Source(prefixes("10.1.3.0/24", "fd01:0:0:3::/64"))
	must(t, err)
	return src, []Target{
		{Device: addTunnel(t, "gcp"), Subnets: prefixes("10.4.0.0/16", "fd04::/48")},
		{Device: addTunnel(t, "merit"), Subnets: prefixes("fd06::/48")},
	}
}

func TestAddressesFollowWhatIsWanted(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		table := newTable(t)
		src, targets := dualStack(t)
		want := DesiredAddresses(targets, src)
		addAddress(t, "wireguard.gcp", "10.200.0.1/24") // foreign
		for _, tt := range []struct {
			name       string
			want       []Address
			changes    Changes
			gcp, merit []string
		}{
			{"first", want, Changes{Added: 3}, []string{"10.1.3.1/32", "10.200.0.1/24", "fd01:0:0:3::1/128"}, []string{"fd01:0:0:3::1/128"}},
			{"again", want, Changes{}, []string{"10.1.3.1/32", "10.200.0.1/24", "fd01:0:0:3::1/128"}, []string{"fd01:0:0:3::1/128"}},
			{"IPv4 only", DesiredAddresses(targets, src[:1]), Changes{Removed: 2}, []string{"10.1.3.1/32", "10.200.0.1/24"}, nil},
			{"none", nil, Changes{Removed: 1}, []string{"10.200.0.1/24"}, nil},
		} {
			if diff := cmp.Diff(tt.changes, mustSyncAddresses(t, table, tt.want)); diff != "" {
				t.Errorf("%s: (-want +got):\n%s", tt.name, diff)
			}
			if diff := cmp.Diff(tt.gcp, addressesOf(t, "wireguard.gcp")); diff != "" {
				t.Errorf("%s: gcp (-want +got):\n%s", tt.name, diff)
			}
			if diff := cmp.Diff(tt.merit, addressesOf(t, "wireguard.merit")); diff != "" {
				t.Errorf("%s: merit (-want +got):\n%s", tt.name, diff)
			}
		}
	})
}

// The effects of the bridge's address are the same with and without ours: the bridge's own
// routes, and the source address on other links.
func TestAddressesChangeNothingElse(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		table := newTable(t)
		src, targets := dualStack(t)
		handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		must(t, err)
		defer handle.Close()
		must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: link(t, "eth0").Attrs().Index, Gw: netip.MustParseAddr("192.0.2.1").AsSlice()}))
		must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: link(t, "eth0").Attrs().Index, Gw: netip.MustParseAddr("2001:db8::1").AsSlice()}))
		mustSync(t, table, Desired(targets[0].Subnets, targets[0].Device, src))
		type way struct{ Link, Source string }
		ways := func() map[string]way {
			all := map[string]way{}
			for _, to := range []string{
				"10.1.3.1", "10.1.3.7", "192.0.2.77", "198.51.100.1", "10.4.0.1",
				"fd01:0:0:3::1", "fd01:0:0:3::7", "2001:db8::77", "2001:db8:1::1", "fd04::1",
			} {
				found, err := handle.RouteGet(netip.MustParseAddr(to).AsSlice())
				must(t, err)
				if found[0].Type == unix.RTN_LOCAL {
					all[to] = way{"local", found[0].Src.String()} // by which link is the kernel's choice
					continue
				}
				l, err := netlink.LinkByIndex(found[0].LinkIndex)
				must(t, err)
				all[to] = way{l.Attrs().Name, found[0].Src.String()}
			}
			return all
		}
		var before map[string]way
		// The kernel adds it asynchronously.
		polltest.Until(t, time.Minute, "the kernel's own route of the bridge's address", func() bool {
			before = ways()
			return before["fd01:0:0:3::1"].Link == "local"
		})
		mustSyncAddresses(t, table, DesiredAddresses(targets, src))
		if diff := cmp.Diff(before, ways()); diff != "" {
			t.Errorf("with the addresses (-before +after):\n%s", diff)
		}
		mustSyncAddresses(t, table, nil)
		if diff := cmp.Diff([]string{"10.1.3.1/32", "fd01:0:0:3::1/128"}, addressesOf(t, "wireguard.gcp")); diff != "" {
			t.Errorf("addresses that routes use as their source (-want +got):\n%s", diff)
		}
		mustSync(t, table, Desired(targets[0].Subnets, targets[0].Device, nil))
		mustSyncAddresses(t, table, nil)
		if left := addressesOf(t, "wireguard.gcp"); len(left) != 0 {
			t.Errorf("left: %s", left)
		}
		mustSync(t, table, Desired(targets[0].Subnets, targets[0].Device, src))
		if diff := cmp.Diff(before, ways()); diff != "" {
			t.Errorf("after the addresses (-before +after):\n%s", diff)
		}
	})
}

// Without the bridge our own address doesn't count as one of the network plugin's, but
// stays for the routes of an earlier process.
func TestAddressesOfOursAreNoSource(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		table := newTable(t)
		src, targets := dualStack(t)
		mustSyncAddresses(t, table, DesiredAddresses(targets, src))
		mustSync(t, table, Desired(targets[0].Subnets, targets[0].Device, src))
		must(t, netlink.LinkDel(link(t, "cni0")))
		got, err := Source(prefixes("10.1.3.0/24", "fd01:0:0:3::/64"))
		must(t, err)
		if len(got) != 0 {
			t.Errorf("source: %s", got)
		}
		if local, err := Local(src[0]); err != nil || local {
			t.Errorf("%s is an address of this host: %t, %v", src[0], local, err)
		}
		installed, err := table.Installed(nil)
		must(t, err)
		sources, err := Sources(installed)
		must(t, err)
		if diff := cmp.Diff(src, sources, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("sources of routes (-want +got):\n%s", diff)
		}
	})
}

func TestAddressesOfADisabledFamily(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		table := newTable(t)
		src, targets := dualStack(t)
		must(t, os.WriteFile("/proc/sys/net/ipv6/conf/wireguard.gcp/disable_ipv6", []byte("1"), 0))
		if _, err := table.SyncAddresses(t.Context(), DesiredAddresses(targets, src)); err == nil {
			t.Error("no error")
		}
		if diff := cmp.Diff([]string{"10.1.3.1/32"}, addressesOf(t, "wireguard.gcp")); diff != "" {
			t.Errorf("gcp (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"fd01:0:0:3::1/128"}, addressesOf(t, "wireguard.merit")); diff != "" {
			t.Errorf("merit (-want +got):\n%s", diff)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := table.SyncAddresses(ended, nil); err == nil {
			t.Error("no error when the context has ended")
		}
	})
}
