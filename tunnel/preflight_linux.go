package tunnel

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os/exec"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/control"
)

// Preflight returns why this process can't have devices of a backend on this host: it lacks
// NET_ADMIN, the kernel has no WireGuard, TUN can't be opened, or no engine runs and there
// is no program to start. It changes nothing, so that a process can check while another one
// has the devices.
func Preflight(ctx context.Context, backend, program string) error {
	// The kernel checks permissions before it looks up the link (rtnetlink_rcv_msg).
	missing := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: math.MaxInt32}}
	if err := netlink.LinkDel(missing); !errors.Is(err, unix.ENODEV) {
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
	if err := unix.Close(fd); err != nil {
		return fmt.Errorf("close %s: %w", tunPath, err)
	}
	if program != "" {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("find the engine: %w", err)
		}
		return nil
	}
	client, err := control.Dial(ctx)
	if err != nil {
		return fmt.Errorf("connect to the engine: %w", err)
	}
	client.Close()
	return nil
}
