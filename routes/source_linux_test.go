package routes

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

func TestSourceIsTheAddressOfTheHostInsideItsPodSubnet(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		addDevice(t, "eth0")
		addDevice(t, "cni0")
		addAddress(t, "eth0", "192.0.2.10/24", "2001:db8::10/64")
		addAddress(t, "cni0", "10.1.3.1/24", "fd01:0:0:3::1/64")
		deprecated, err := netlink.ParseAddr("fd01:0:0:3::0/64")
		must(t, err)
		deprecated.Flags, deprecated.ValidLft = unix.IFA_F_NODAD, 3600 // preferred lifetime 0
		must(t, netlink.AddrAdd(link(t, "eth0"), deprecated))

		got, err := Source(prefixes("10.1.3.0/24", "fd01:0:0:3::/64"))
		must(t, err)
		if want := "[10.1.3.1 fd01:0:0:3::1]"; fmt.Sprint(got) != want {
			t.Errorf("got %s, want %s", got, want)
		}
		got, err = Source(prefixes("10.1.4.0/24"))
		must(t, err)
		if len(got) != 0 {
			t.Errorf("got %s for a subnet without an address of the host", got)
		}
	})
}

func TestLocal(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		addAddress(t, "lo", "10.1.3.1/32")
		for address, want := range map[string]bool{"10.1.3.1": true, "10.1.3.2": false} {
			got, err := Local(netip.MustParseAddr(address))
			must(t, err)
			if got != want {
				t.Errorf("%s: got %t, want %t", address, got, want)
			}
		}
	})
}
