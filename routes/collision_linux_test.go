package routes

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

func TestOccupiedByHost(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		occupied := func() (texts []string) {
			found, err := OccupiedByHost()
			must(t, err)
			for _, o := range found {
				texts = append(texts, fmt.Sprint(o.Prefix, " ", o.What))
			}
			slices.Sort(texts)
			return texts
		}
		if got := occupied(); len(got) != 0 {
			t.Errorf("of an empty host: %q", got)
		}
		eth := addDevice(t, "eth0")
		bridge := netlink.NewLinkAttrs()
		bridge.Name = "docker0"
		must(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: bridge}))
		addTunnel(t, "gcp")
		addAddress(t, "eth0", "198.51.100.10/24", "fd02::10/64")
		addAddress(t, "docker0", "172.17.0.1/16")
		addAddress(t, "wireguard.gcp", "10.1.3.1/32")
		addAddress(t, "lo", "198.51.100.99/32")
		for _, gateway := range []string{"198.51.100.1", "fd02::1"} {
			must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: eth, Gw: netip.MustParseAddr(gateway).AsSlice()}))
		}
		want := []string{
			"198.51.100.1/32 the default gateway of this node",
			"198.51.100.10/32 an address of this node (eth0)",
			"198.51.100.99/32 an address of this node (lo)",
			"fd02::1/128 the default gateway of this node",
			"fd02::10/128 an address of this node (eth0)",
		}
		if diff := cmp.Diff(want, occupied()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		// A bridge may be the uplink as well.
		setUp(t, "docker0")
		must(t, netlink.RouteReplace(&netlink.Route{LinkIndex: link(t, "docker0").Attrs().Index, Gw: netip.MustParseAddr("172.17.0.9").AsSlice()}))
		if got := occupied(); !slices.Contains(got, "172.17.0.1/32 an address of this node (docker0)") || !slices.Contains(got, "172.17.0.9/32 the default gateway of this node") {
			t.Errorf("with a bridge as uplink: %q", got)
		}
	})
}
