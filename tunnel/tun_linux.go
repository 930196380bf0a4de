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

// openTUN attaches to the TUN link of that name, creating it if missing; with mustCreate an
// existing one is an error. A created link is removed with the file unless [persist] is
// called.
//
// IFF_VNET_HDR allows packets of up to 64 KiB (GSO and GRO), which wireguard-go's throughput
// depends on.
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
	// Not earlier: the runtime's poller refuses a TUN that isn't attached.
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

// persist makes the link outlive the file and this process, so that the next process finds
// index and routes unchanged.
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

// makeTUNNode creates the device node if missing, as in a container.
func makeTUNNode() error {
	_, err := os.Stat(tunPath)
	if !errors.Is(err, fs.ErrNotExist) {
		return nil // It exists, or opening it returns the better error.
	}
	if err := os.MkdirAll(filepath.Dir(tunPath), 0o755); err != nil {
		return fmt.Errorf("create %s: %w", tunPath, err)
	}
	err = unix.Mknod(tunPath, unix.S_IFCHR|0o600, int(unix.Mkdev(tunMajor, tunMinor)))
	if errors.Is(err, unix.EROFS) {
		// The directory is the host's, which our manifest mounts read-only.
		return fmt.Errorf("this host has no %s: load the kernel module tun, or wireguard", tunPath)
	}
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("create %s: %w (mount it into the container, or grant the capability MKNOD)", tunPath, err)
	}
	return nil
}
