package tunnel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const (
	tunPath  = "/dev/net/tun"
	tunMajor = 10 // Documentation/admin-guide/devices.txt: misc
	tunMinor = 200
)

// openTUN attaches to the TUN link of that name and creates it when there is
// none; with mustCreate an existing one is an error. A created link goes with
// the file unless [persist] is called.
//
// IFF_VNET_HDR lets the kernel hand over and take packets of up to 64 KiB,
// which is where wireguard-go's throughput comes from.
func openTUN(name string, mustCreate bool) (*os.File, error) {
	if err := makeTUNNode(); err != nil {
		return nil, err
	}
	fd, err := unix.Open(tunPath, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		return nil, fmt.Errorf("open %s: %w (the kernel has no TUN: load the module tun)", tunPath, err)
	case err != nil:
		return nil, fmt.Errorf("open %s: %w (the container needs access to that device)", tunPath, err)
	}
	flags := uint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if mustCreate {
		flags |= unix.IFF_TUN_EXCL
	}
	if err := attach(fd, name, flags); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	// Only now: the runtime's poller takes no TUN that isn't attached.
	return os.NewFile(uintptr(fd), tunPath), nil
}

func attach(fd int, name string, flags uint16) error {
	request, err := unix.NewIfreq(name)
	if err != nil {
		return fmt.Errorf("TUN name %q: %w", name, err)
	}
	request.SetUint16(flags)
	err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	switch {
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("attach to TUN %s: %w (another process has it)", name, err)
	case err != nil:
		return fmt.Errorf("attach to TUN %s: %w", name, explain(err))
	}
	return nil
}

// persist makes the link outlive the file and this process, so that index and
// routes are still there for the next one.
func persist(file *os.File) error {
	conn, err := file.SyscallConn()
	if err != nil {
		return fmt.Errorf("make TUN persistent: %w", err)
	}
	var ioctlErr error
	err = conn.Control(func(fd uintptr) { ioctlErr = unix.IoctlSetInt(int(fd), unix.TUNSETPERSIST, 1) })
	if err := errors.Join(err, ioctlErr); err != nil {
		return fmt.Errorf("make TUN persistent: %w", err)
	}
	return nil
}

// makeTUNNode creates the device node where a container has none.
func makeTUNNode() error {
	_, err := os.Stat(tunPath)
	if !errors.Is(err, fs.ErrNotExist) {
		return nil // There, or opening it gives the better error.
	}
	if err := os.MkdirAll(filepath.Dir(tunPath), 0o755); err != nil {
		return fmt.Errorf("create %s: %w", tunPath, err)
	}
	err = unix.Mknod(tunPath, unix.S_IFCHR|0o600, int(unix.Mkdev(tunMajor, tunMinor)))
	if errors.Is(err, unix.EROFS) {
		// The host's folder, as our manifest mounts it.
		return fmt.Errorf("this host has no %s: load the kernel module tun, or wireguard", tunPath)
	}
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("create %s: %w (mount it into the container, or grant the capability MKNOD)", tunPath, err)
	}
	return nil
}
