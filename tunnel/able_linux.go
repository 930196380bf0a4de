package tunnel

import (
	"errors"
	"fmt"
	"math"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Able returns why this process can't have devices of a backend on this host: it lacks
// NET_ADMIN, the kernel has no WireGuard, or TUN can't be opened. It changes nothing,
// so that a process can ask while another one has the devices; like [Device.Ensure], it
// makes a link for a moment where the kernel has to load its WireGuard first.
func Able(backend string) error {
	if err := checkBackend(backend); err != nil {
		return err
	}
	// Permission is checked before the link is looked for (rtnetlink_rcv_msg).
	nobody := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: math.MaxInt32}}
	if err := netlink.LinkDel(nobody); !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("change links: %w", explain(err))
	}
	if backend != Userspace {
		kernel, err := Supported()
		switch {
		case err != nil:
			return err
		case kernel:
			return nil
		case backend == Kernel:
			return fmt.Errorf("backend %s: the kernel has no WireGuard", Kernel)
		}
	}
	if err := makeTUNNode(); err != nil {
		return err
	}
	fd, err := unix.Open(tunPath, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", tunPath, explain(err))
	}
	return unix.Close(fd)
}
