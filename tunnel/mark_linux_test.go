package tunnel

import (
	"net"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A device of an earlier release, without a mark, gets one while it carries traffic: no packet
// is lost, and all further ones have it, as the rules show that let no others out.
func TestAMarkIsSetOnALiveDevice(t *testing.T) {
	eachBackend(t, func(t *testing.T, backend string) {
		for family, bits := range []int{32, 128}[:families()] {
			a, b := twoSites(t, backend, Userspace)
			meet(t, a, b, family)
			conn := dial(t, a, b, 0)
			echo(t, conn, 1000)
			handshake := a.peer(t, b.key).LastHandshake

			flow := startLockstep(t, "a mark is set", a, b, b.pods[0])
			a.cfg.Mark = 0x1073
			a.call(t, request{Call: "open", Config: a.cfg})
			if !a.call(t, request{Call: "ensure"}).Changed {
				t.Error("no change is reported")
			}
			flow.check(t)

			err := a.ns.Do(func() error {
				out := netlink.NewRule()
				out.Priority, out.Type, out.Mark, out.Invert = 10, unix.RTN_UNREACHABLE, a.cfg.Mark, true
				out.Family = []int{unix.AF_INET, unix.AF_INET6}[family]
				to := netlink.NewRule()
				to.Priority, to.Table, to.Family = 9, unix.RT_TABLE_MAIN, out.Family
				to.Dst = &net.IPNet{IP: b.pods[family].AsSlice(), Mask: net.CIDRMask(bits/2, bits)}
				if err := netlink.RuleAdd(to); err != nil {
					return err
				}
				return netlink.RuleAdd(out)
			})
			if err != nil {
				t.Fatal(err)
			}
			echo(t, conn, 1<<16)
			if got := a.peer(t, b.key).LastHandshake; !got.Equal(handshake) {
				t.Errorf("a new session at %v, want that of %v to go on", got, handshake)
			}
		}
	})
}
