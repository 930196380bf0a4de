package tunnel

import (
	"testing"

	"github.com/vishvananda/netlink"
)

// Without a configured MTU it is the default, then the one set by SetMTU, which a restart
// keeps until it is set again.
func TestAnOpenMTU(t *testing.T) {
	eachBackend(t, func(t *testing.T, backend string) {
		cfg := config(t, "gcp", backend)
		cfg.MTU = 0
		d := open(t, cfg)
		want := func(d *testDevice, changed bool, mtu int) {
			t.Helper()
			if got := d.ensure(t); got != changed {
				t.Errorf("changed: %v, want %v", got, changed)
			}
			if got := d.status(t).MTU; got != mtu {
				t.Errorf("MTU %d, want %d", got, mtu)
			}
		}
		want(d, true, DefaultMTU)
		want(d, false, DefaultMTU)
		d.SetMTU(8921)
		want(d, true, 8921)
		if err := netlink.LinkSetMTU(mustFind(t, d.Name()).ref(), 1500); err != nil {
			t.Fatal(err)
		}
		want(d, true, 8921)
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}

		again := open(t, cfg)
		again.ensure(t)
		want(again, false, 8921)
		again.SetMTU(1320)
		want(again, true, 1320)
	})
}
