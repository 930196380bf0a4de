package tunnel

import (
	"testing"

	"github.com/vishvananda/netlink"
)

// Packets queue in the TUN while it has no reader. A longer queue is kept.
func TestQueueOfTheTUN(t *testing.T) {
	d := open(t, config(t, "gcp", Userspace))
	d.ensure(t)
	l := mustFind(t, d.cfg.Name)
	for _, c := range []struct{ before, want int }{{0, minQueue}, {500, minQueue}, {minQueue + 1, minQueue + 1}} {
		if c.before != 0 {
			if err := netlink.LinkSetTxQLen(l.ref(), c.before); err != nil {
				t.Fatal(err)
			}
			if err := l.lengthenQueue(); err != nil {
				t.Fatal(err)
			}
		}
		found, err := netlink.LinkByIndex(l.index)
		if err != nil {
			t.Fatal(err)
		}
		if got := found.Attrs().TxQLen; got != c.want {
			t.Errorf("%d packets after %d, want %d", got, c.before, c.want)
		}
	}
}
