package nstest_test

import (
	"errors"
	"net"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

func TestDropsAreReported(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			t.Fatal(err)
		}
		const few = 1600 // bytes, a second
		err = netlink.QdiscAdd(&netlink.Tbf{
			QdiscAttrs: netlink.QdiscAttrs{LinkIndex: lo.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
			Rate:       few, Buffer: netlink.Xmittime(few, few), Limit: few,
		})
		if err != nil {
			t.Fatalf("have the kernel drop packets: %v", err)
		}
		out, err := net.DialUDP("udp4", nil, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = out.Close() }()
		if err := nstest.ReportDrops(out); err != nil {
			t.Fatal(err)
		}
		for range 1000 {
			if _, err = out.Write(make([]byte, few/2)); errors.Is(err, unix.ENOBUFS) {
				return
			}
		}
		t.Errorf("1000 packets are written, the last with %v, want %v", err, unix.ENOBUFS)
	})
}
