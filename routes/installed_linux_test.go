package routes

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

func TestSourcesAreThoseOfInstalledRoutes(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		table := newTable(t)
		sources := func() []string {
			t.Helper()
			installed, err := table.Installed(nil)
			must(t, err)
			found, err := Sources(installed)
			must(t, err)
			var out []string
			for _, a := range found {
				out = append(out, a.String())
			}
			return out
		}
		if got := sources(); got != nil {
			t.Errorf("without routes: %v", got)
		}
		wg := addDevice(t, "wg0")
		setUp(t, "wg0")
		addDevice(t, "cni0")
		setUp(t, "cni0")
		addAddress(t, "cni0", "10.2.1.1/24", "fd02::1/64")
		subnets := prefixes("10.4.0.0/16", "10.6.0.0/16", "fd04::/48")
		src := []netip.Addr{netip.MustParseAddr("10.2.1.1"), netip.MustParseAddr("fd02::1")}
		mustSync(t, table, Desired(subnets, wg, src))
		if diff := cmp.Diff([]string{"10.2.1.1", "fd02::1"}, sources()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		// With the address the kernel removes its IPv4 routes, too.
		must(t, netlink.LinkDel(link(t, "cni0")))
		if got := sources(); got != nil {
			t.Errorf("sources that are no longer addresses of the host: %v", got)
		}
	})
}
